"""A kernel's translation unit has what the kernel needs of the headers (``headers.py``), and no more."""

from __future__ import annotations

import platform
import random
import re
import subprocess
from pathlib import Path

import pytest
import torch

from reference_backends.cpp_cpu import compiler, headers, units
from reference_backends.cpp_cpu.emitter import CppEmitter
from tests.test_cpp_cache import compiled

NAMES = (*units._FILES, *units.HEADER_WEIGHT)
PIECES = [piece for name in NAMES for piece in headers.pieces_of(name).pieces]


@pytest.mark.parametrize(("processor", "share"), [("native", 1.0), ("x86-64-v3", 0.2), ("x86-64-v2", 0.2)])
def test_any_piece_compiles_with_what_it_needs_alone(processor: str, share: float, tmp_path: Path) -> None:
    if processor != "native" and platform.machine() != "x86_64":
        pytest.skip("other processors have other names")
    values = units._values()
    texts = sorted({headers.needed(NAMES, f"{values}\n{piece.text}") for piece in PIECES})
    chosen = random.sample(texts, round(share * len(texts)))
    file = tmp_path / "pieces.cpp"
    file.write_text("\n".join((values, *(f"namespace of_{at} {{\n{text}\n}}" for at, text in enumerate(chosen)))))
    path = compiler.compiler()
    assert path
    flags = [flag for flag in compiler.FLAGS if not flag.startswith("-march")]
    command = [path, *flags, f"-march={processor}", "-fsyntax-only", "-fmax-errors=3", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_pieces_are_the_headers() -> None:
    """Nothing is lost but blank lines and remarks between them."""
    for name in NAMES:
        left = headers.library(name)
        for piece in headers.pieces_of(name).pieces:
            between, found, left = left.partition(piece.text)
            assert found
            assert all(not line or line.startswith("//") for line in between.split("\n"))
        assert all(not line or line.startswith("//") for line in left.split("\n"))


@pytest.mark.parametrize("name", ["op_abs", "load_lanes", "store", "VectorConvert", "op_floor", "matrix_product"])
def test_all_that_declare_a_name_come_together(name: str) -> None:
    """Else a call might find another overload than with the whole headers."""
    found = headers.needed(NAMES, name)
    declaring = [piece for piece in PIECES if name in piece.declares]
    assert len(declaring) > 1
    assert all(piece.text in found for piece in declaring)


def test_what_nobody_mentions_is_left_out() -> None:
    found = headers.needed(NAMES, "")
    assert "op_exp" not in found
    assert "Product" not in found
    assert len(found) < sum(len(piece.text) for piece in PIECES) / 4


def test_a_kernel_has_what_it_mentions() -> None:
    kernel = next(iter(compiled(lambda x: x.exp() + 1, torch.randn(64)).loops.values()))
    source = units._source([units._unit(kernel, CppEmitter().emit(kernel))])
    assert "op_exp(" in source
    assert not re.search(r"\bop_log1p\b", source)
    assert len(source) < sum(len(headers.library(name)) for name in units._FILES) / 2
