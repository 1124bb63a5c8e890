"""The second example chip: an emitter that is a table of assembly, an assembler, an interpreter; all in under 300 lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tests.chips import EXAMPLES, use_chip
from vendor_sdk import KernelError
from vendor_sdk.cli import main

sys.path.append(str(EXAMPLES / "vecchip"))  # where it is not installed

from vecchip.chip import AssemblyError, Lanes, Trap, assemble


@pytest.fixture(autouse=True)
def _chip() -> None:
    use_chip("vecchip")
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="vecchip", **options)


def test_the_whole_chip_is_small() -> None:
    files = sorted((EXAMPLES / "vecchip" / "vecchip").glob("*.py"))
    assert [file.name for file in files] == ["__init__.py", "chip.py", "plugin.py", "table.py"]
    assert sum(len(file.read_text().splitlines()) for file in files) < 300


def test_a_table_reaches_150_prims() -> None:
    listed = json.loads(CliRunner().invoke(main, ["ops", "--backend", "vecchip", "--json"], catch_exceptions=False).output)
    native = {row["name"] for row in listed if row["placement"]["kind"] == "native"}
    assert len(native) >= 150


def test_a_block_trains_as_in_eager() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 16)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return layer(x).square().sum()

    results = []
    for function in (loss, compiled(loss, options={"fallback": "error"})):
        layer.zero_grad()
        value = function(x)
        value.backward()
        results.append([value.detach(), *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    for got, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_scans_scatters_strides_random_numbers_and_dynamic_sizes() -> None:
    def f(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = x.cummax(1)
        return values, places, x.t().logcumsumexp(0), torch.zeros(9).index_add(0, at, x[:, 1]), x[:, ::2].argmin(1), x.var(0)

    call = compiled(f, dynamic=True)
    for rows in (3, 70, 130):
        x, at = torch.randn(rows, 7), torch.randint(9, (rows,))
        x[1, 2:4] = torch.nan
        for got, expected in zip(call(x, at), f(x, at), strict=True):
            torch.testing.assert_close(got, expected, equal_nan=True)
    drawn = compiled(lambda: torch.rand(4, 1000))()
    assert 0 <= drawn.min() < 0.01 < 0.99 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.05


def test_traps_name_the_kernel() -> None:
    with pytest.raises(IndexError, match="vecchip: trap index") as caught:
        compiled(lambda x, at: x[at] + 1)(torch.randn(3), torch.tensor([1, 3]))
    assert "which fuses index and add, on" in caught.value.__notes__[0]
    with pytest.raises(KernelError, match="RuntimeError: vecchip: trap divide"):
        compiled(lambda x, y: x // y)(torch.tensor([1, 2]), torch.tensor([1, 0]))


@pytest.mark.parametrize("line", ["x = leap.f32 y", "x = add.f33 1, 2", "x = add.f32 y, 1"])
def test_the_assembler_names_the_line_it_refuses(line: str) -> None:
    with pytest.raises(AssemblyError, match="line 2: x = "):
        assemble(f"n = number.i64\n{line}\n")


def test_a_program_by_hand() -> None:
    program = assemble(
        """
        a = buffer
        b = buffer
        n = number.i64
        i = loop n
            m = add.i64 i, 1
            j = loop m
                v = load.f32 a, j
                s = fold_sum.f32 v, 1, 0.0
            end
            store.f32 b, i, s
        end
        """.strip()
    )
    a, b = np.arange(5, dtype="f4"), np.zeros(5, "f4")
    Lanes([a, b], [5]).run(program)
    assert b.tolist() == [0, 1, 3, 6, 10]
    with pytest.raises(Trap):
        Lanes([a, b], [0]).run(assemble("n = number.i64\nx = div.i64 1, n"))
