"""Triton puts an operand behind its use where a tile has one element for each thread.

Two sums of columns are taken in turns of 16x1 and stored; one of them is added to a tile of 16x8, by 128 threads. The pass that
removes conversions between layouts makes a program that the verifier refuses; for 64 threads it does not.
"""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def columns(left, right, total, product):
    x = tl.arange(0, 16)[:, None]
    sums, products = tl.full([16, 1], 0.0, tl.float32), tl.full([16, 1], 0.0, tl.float32)
    for turn in tl.static_range(8):
        value = tl.load(left + (16 * turn + x))
        sums += value
        products += value * tl.load(right + (16 * turn + x))
    more = products + 1
    tl.store(total + x, sums)
    tl.store(product + x, products)
    tile = 16 * tl.arange(0, 8)[None, :] + x
    tl.store(left + tile, tl.load(left + tile) - more)


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    pointers = dict.fromkeys(columns.arg_names, "*fp32")
    even = {(position,): [["tt.divisibility", 16]] for position in range(len(pointers))}
    try:
        triton.compile(ASTSource(columns, pointers, None, even), target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    except RuntimeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
