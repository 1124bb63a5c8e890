"""What all generated functions have in common: parameters, numbers of the call, the decorator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vendor_sdk import LoopKernel, index, loop


def symbol_name(s: loop.Symbol) -> str:
    """Shape symbols are torch's short names; anything else could clash with a name of Python."""
    return s.name if s.role == "size" else f"arg_{s.name}"


def argument_names(kernel: LoopKernel) -> tuple[list[str], list[str]]:
    """What the function of each nest takes: buffers, with seeds of random numbers among them, and numbers."""
    seeds = [symbol_name(s) for s in kernel.symbols if s.role == "seed"]
    numbers = [symbol_name(s) for s in kernel.symbols if s.role != "seed"]
    return [*(p.name for p in (*kernel.params, *kernel.scratch)), *seeds], numbers


def given(kernel: LoopKernel) -> list[str]:
    """All of these, in the order of a function's parameters."""
    buffers, numbers = argument_names(kernel)
    return [*buffers, *numbers]


def told_text(kernel: LoopKernel, sizes: Sequence[str]) -> str:
    """Text of what a launch has to know of them: where among the numbers they are."""
    if not any(s.role == "size" for s in kernel.symbols):
        return ""
    numbers = argument_names(kernel)[1]
    return f", sizes={tuple(map(numbers.index, sizes))}"


def numbers_text(kernel: LoopKernel, sizes: Sequence[str] = ()) -> list[str]:
    """Lines that begin a function: its numbers in the types they are computed with.

    Args:
        sizes: those of which it has a divisor (``analysis.sizes_told``).
    """
    lines = []
    for s in kernel.symbols:
        if s.role == "size":
            known = f"{s.name} // {s.name}_by * {s.name}_by" if s.name in sizes else s.name
            lines.append(f"{s.name} = tl.cast({known}, INDEX)")
        elif s.role == "seed":
            lines.append(f"arg_{s.name} = tl.load(arg_{s.name})")
        elif s.dtype == torch.float64:
            lines.append(f"arg_{s.name} = tl.cast(arg_{s.name}, tl.int64).to(tl.float64, bitcast=True)")
        else:
            lines.append(f"arg_{s.name} = tl.cast(arg_{s.name}, tl.int64)")
    return lines


def function_text(
    kernel: LoopKernel,
    name: str,
    statements: Sequence[loop.Stmt],
    lines: Sequence[str],
    constants: Sequence[str],
    sizes: Sequence[str] | None = None,
) -> str:
    """A function of the kernel's buffers and numbers, and of ``constants``.

    Args:
        statements: what it computes.
        lines: the text of it, indented.
        sizes: those of which it has a divisor, before other constants (``analysis.sizes_told``); None: Triton finds out.
    """
    fixed = ", ".join(f'"{symbol_name(s)}"' for s in kernel.symbols if s.role != "size" or sizes is not None)
    constants = [*(f"{name}_by" for name in sizes or ()), *constants]
    asserts = any(isinstance(s, loop.Compute) and s.op == "wrap_index" for s in loop.walk(tuple(statements)))
    options = [f"do_not_specialize=[{fixed}]"] if fixed else []
    options += ["debug=True"] if asserts else []
    decorator = f"@triton.jit({', '.join(options)})" if options else "@triton.jit"
    parameters = ", ".join([*given(kernel), *(f"{constant}: tl.constexpr" for constant in constants)])
    return "\n".join([decorator, f"def {name}({parameters}):", *lines, "", "", ""])


def most_elements(kernel: LoopKernel) -> str:
    """Python text of the number of elements of the largest buffer: it decides how wide indices are."""
    sizes = [p.size for p in (*kernel.params, *kernel.scratch)]
    largest = max((s.value for s in sizes if s.value is not None), default=0)
    open_sizes = "".join(f", {index.to_python(s)}" for s in dict.fromkeys(sizes) if s.value is None)
    return f"max({largest}{open_sizes})" if open_sizes else str(largest)


def arguments_text(kernel: LoopKernel) -> str:
    """Python text of the buffers and of the numbers, as a launch takes them."""
    buffers, numbers = ("".join(f"{name}, " for name in names) for names in argument_names(kernel))
    return f"({buffers}), ({numbers})"
