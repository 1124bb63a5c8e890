"""Inductor's C++ for signbit of bfloat16 does not compile: g++ 12 crashes on it (internal compiler error in extract_insn).

Its loop of four calls of std::signbit is vectorised into an instruction that the compiler does not know afterwards. Seen with
g++ 12.2 on a processor with AVX-512. Found by the case `signbit[bfloat16]`.
"""

import re
import shutil
import subprocess
import sys

import torch


def here() -> bool:
    """Whether this machine can show it."""
    compiler = shutil.which("g++")
    version = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True).stdout if compiler else ""
    return version.startswith("12") and torch.cpu._is_avx512_supported()


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.tensor([1.0, -1.0, 0.0, -0.0], dtype=torch.bfloat16)
    torch.compiler.reset()
    try:
        found = torch.compile(torch.signbit, backend="inductor")(x)
    except RuntimeError as error:
        crash = re.search("internal compiler error.*", str(error))
        return crash.group() if crash else str(error)
    return "" if found.tolist() == [False, True, False, True] else f"{found.tolist()}"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
