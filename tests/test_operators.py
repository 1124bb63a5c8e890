"""Operators of torch's database, on the reference backends: those that were wrong once, and the benchmark that runs all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("expecttest", reason="torch's operator database wants it")
from benchmarks import operators
from benchmarks.operators import judge, main
from tests.toys import use_kind

Tensor = torch.Tensor
BACKENDS = ("cpp_cpu", "onnxruntime")
PLACES = torch.tensor([[0, 2, 1, 0], [3, 0, 2, 2]])
BOOLS = torch.tensor([[True, False, True, True], [False, False, True, False]])

FOUND: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a number added to a product": (
        torch.addmm, (torch.tensor(3), torch.arange(4).reshape(2, 2), torch.arange(6).reshape(2, 3))
    ),
    "a count of rows": (
        lambda x: x.new_ones(x.shape, dtype=torch.int64).sum(0) + torch.masked.var(x, 0), (torch.randn(3, 40),)
    ),
    "product of bools": (lambda x: (x.prod(0, dtype=torch.bool), x.prod(dtype=torch.bool)), (torch.rand(9, 40) > 0.1,)),
    "extremes of bools at places": (
        lambda x, index, y: tuple(x.scatter_reduce(0, index, y, how, include_self=own) for how in ("amin", "amax", "prod")
                                  for own in (False, True)),
        (torch.rand(4, 4) > 0.5, PLACES, BOOLS),
    ),
    "lines that follow each other": (
        lambda x: torch.unique_consecutive(x, return_counts=True, dim=-1), (torch.arange(12.0).reshape(3, 4) // 2,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FOUND)
def test_what_was_wrong(name: str, backend: str) -> None:
    function, inputs = FOUND[name]
    torch.compiler.reset()
    found, wanted = torch.compile(function, backend=backend)(*inputs), function(*inputs)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("index", [torch.tensor(2), torch.tensor([[1, -1], [0, 4]])], ids=["one place", "places"])
def test_elements_at_places(index: Tensor, backend: str) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.take(index), x.put(index, y, accumulate=True)

    x, y = torch.randn(2, 3, requires_grad=True), torch.randn(index.shape, requires_grad=True)
    torch.compiler.reset()
    found, wanted = torch.compile(function, backend=backend, fullgraph=True)(x, y), function(x, y)
    torch.testing.assert_close(found, wanted)
    slopes = [torch.autograd.grad([a.square().sum() for a in each], [x, y]) for each in (found, wanted)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("backend", [*BACKENDS, "toyloops"])
@pytest.mark.parametrize("batches", [0, 2])
def test_gradients_of_distances_in_batches_that_one_side_has(batches: int, backend: str) -> None:
    """Of no batches torch returns zeros for one, not none."""
    use_kind(backend)

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.cdist(x, y, 2.0, "donot_use_mm_for_euclid_dist")

    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(batches, 3, 5, requires_grad=True)
    torch.compiler.reset()
    found, wanted = torch.compile(function, backend=backend, fullgraph=True)(x, y), function(x, y)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(each.sin().sum(), [x, y]) for each in (found, wanted)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_what_fills_places(backend: str) -> None:
    """Of places that are named several times it counts one: it has as many terms as there are others, which only data tells."""

    def function(x: Tensor, value: Tensor) -> Tensor:
        return x.index_fill(-1, torch.tensor([1, 4, 4, 4, 0]), value)

    x, value, weights = torch.randn(5, 5, requires_grad=True), torch.tensor(2.0, requires_grad=True), torch.randn(5, 5)
    torch.compiler.reset()
    found, wanted = torch.compile(function, backend=backend, fullgraph=True)(x, value), function(x, value)
    torch.testing.assert_close(found, wanted)
    slopes = [torch.autograd.grad((each * weights).sum(), [x, value]) for each in (found, wanted)]
    torch.testing.assert_close(*slopes)


AT_ONE_PLACE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "select": lambda x, i, source: x.index_select(0, i) * source,
    "select columns": lambda x, i, source: x.index_select(1, i).sin() * source[0],
    "add": lambda x, i, source: x.index_add(0, i, source, alpha=3),
    "add in place": lambda x, i, source: x.clone().index_add_(-2, i, source),
    "add to one": lambda x, i, source: x[0, 0].index_add(0, i - 1, source[0, 0]),
    "copy": lambda x, i, source: x.index_copy(0, i, source),
    "reduce": lambda x, i, source: x.index_reduce(0, i, source, "prod"),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("what", AT_ONE_PLACE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_index_of_no_dimensions_names_one_place(backend: str, what: str) -> None:
    """Torch's decomposition of ``index_add`` puts one row where it says none is, in the gradient of ``index_select``, too."""
    function = AT_ONE_PLACE[what]
    x, source, index = torch.randn(4, 3, requires_grad=True), torch.randn(1, 3, requires_grad=True), torch.tensor(1)
    torch.compiler.reset()
    found, wanted = torch.compile(function, backend=backend, fullgraph=True)(x, index, source), function(x, index, source)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), [x, source]) for each in (found, wanted)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_are_scaled_by_a_float_are_compiled_again(backend: str) -> None:
    """Such a size is no expression of integers: it is a number, guarded, and the others stay symbols."""

    def function(x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x * 2, scale_factor=(0.6, 1.3), mode="bilinear").sin()

    torch.compiler.reset()
    compiles = 0

    def counted(module: Any, inputs: Any, **options: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return torch._dynamo.lookup_backend(backend)(module, inputs)

    compiled = torch.compile(function, backend=counted, dynamic=True, fullgraph=True)
    for count, shape in ((1, (2, 3, 5, 6)), (2, (2, 3, 10, 11)), (2, (4, 3, 5, 6)), (3, (2, 3, 20, 7))):
        x = torch.randn(shape, requires_grad=True)
        found, wanted = compiled(x), function(x)
        assert compiles == count
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        weights = torch.randn(wanted.shape)
        torch.testing.assert_close(*(torch.autograd.grad(each, x, weights) for each in (found, wanted)), rtol=1e-4, atol=1e-5)


SLICES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "from": lambda x, n: x[n:] * 2,
    "to": lambda x, n: x[:, :n].sin(),
    "at": lambda x, n: x[n].exp(),
    "rolled": lambda x, n: x.roll(n, 0)[n:] + 1,
    "written": lambda x, n: torch.slice_scatter(x, x[n:] * 3, 0, n, None),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SLICES)
def test_bounds_of_unknown_sign(name: str, backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(SLICES[name], backend=backend, dynamic=True, fullgraph=True)
    for shape, bound in (((5, 6), 2), ((7, 6), -3), ((5, 8), -1), ((9, 9), 4), ((9, 9), -9)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x, bound), SLICES[name](x, bound))


@pytest.mark.parametrize("backend", BACKENDS)
def test_bounds_of_a_histogram_that_are_symbols(backend: str) -> None:
    """Where they are equal, those of the data are taken, which is known at the call."""

    def function(x: Tensor, low: float, high: float) -> Tensor:
        return torch.histc(x, 50, low, high)

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for low, high in ((-3, 7), (4, 4), (0, 10), (2.0, 5.5), (3.5, 3.5), (6, 6)):
        for x in (torch.randn(5, 9) * 6, torch.full((3,), 4.0)):
            torch.testing.assert_close(compiled(x, low, high), function(x, low, high))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start", [-3, 1])
def test_a_view_from_where_data_says(start: int, backend: str) -> None:
    """It is a view of the input: at another place than at the start of a copy."""
    torch.compiler.reset()
    x = torch.arange(125.0).reshape(5, 5, 5)
    compiled = torch.compile(lambda x, i: torch.narrow(x, 2, i, 2), backend=backend, fullgraph=True)
    found = compiled(x, torch.tensor(start))
    torch.testing.assert_close(found, torch.narrow(x, 2, start % 5, 2))
    assert found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


NOTHING: dict[str, Callable[[Tensor], Any]] = {
    "divided by zero": lambda x: torch.arange(0) // torch.tensor(0) + torch.tril_indices(0, 0)[0],
    "extremes": lambda x: torch.aminmax(x, dim=0),
    "gradients of extremes": lambda x: torch.autograd.grad(torch.aminmax(x * 2, dim=0).max.sum(), x),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NOTHING)
def test_results_without_elements(name: str, backend: str) -> None:
    """ONNX Runtime refuses a constant divisor of zero, and products without rows."""
    torch.compiler.reset()
    x = torch.ones(5, 0, 5, requires_grad="gradients" in name)
    found, wanted = torch.compile(NOTHING[name], backend=backend)(x), NOTHING[name](x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_conjugate_that_was_not_resolved(backend: str) -> None:
    torch.compiler.reset()
    x = torch.randn(5, 6, 7)
    found, wanted = (call(x, 10, 1, "ortho") for call in (torch.compile(torch.fft.ifft, backend=backend), torch.fft.ifft))
    torch.testing.assert_close(found, wanted)


# The benchmark


def _wrong(module: torch.fx.GraphModule, inputs: Any) -> Any:
    return lambda *values: [result * (1 + 1e-4) if result.is_floating_point() else result for result in module(*values)]


def _coarse(module: torch.fx.GraphModule, inputs: Any) -> Any:
    return lambda *values: [result * 1.125 if result.is_floating_point() else result for result in module(*values)]


def _refuses(module: torch.fx.GraphModule, inputs: Any) -> Any:
    raise NotImplementedError("no such unit")


def _narrow(module: torch.fx.GraphModule, inputs: Any) -> Any:
    return lambda *values: [result.to(torch.int32) if result.dtype == torch.int64 else result for result in module(*values)]


@pytest.mark.parametrize(
    ("name", "backend", "state", "why"),
    [
        ("cumprod", "eager", "ok", ""),
        ("sum", _wrong, "wrong", "times as far from float64"),
        ("add", _narrow, "wrong", "torch.int32"),
        ("add", _refuses, "failed", "no such unit"),
        ("randn_like", _wrong, "ok", ""),
        ("imag", "eager", "not built", "no sample"),
        ("jiterator_unary", "eager", "not built", "no sample that eager takes"),
    ],
)
def test_an_operator_is_judged(name: str, backend: Any, state: str, why: str) -> None:
    found = judge(name, backend, "cpu", 2)
    assert (found.name, found.state) == (name, state), found
    assert why in found.why


@pytest.mark.parametrize(("backend", "state"), [("eager", "ok"), (_coarse, "wrong")])
def test_operators_are_judged_in_halves(backend: Any, state: str) -> None:
    assert judge("softmax", backend, "cpu", 2, dtypes=["bfloat16", "float16"]).state == state


def test_what_is_no_dtype_is_refused() -> None:
    done = CliRunner().invoke(main, ["--dtypes", "float32,half16", "--only", "neg"])
    assert done.exit_code == 2
    assert "no dtype of torch: half16" in done.output


def test_a_run_goes_on_with_what_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    words = ["--backend", "eager", "--only", "neg,no_such_*", "--samples", "1", "--json", str(path)]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "1 ok, 0 wrong, 0 failed, 0 not built")
    assert json.loads(path.read_text())["name"] == "neg"
    monkeypatch.setattr(operators, "judge", lambda *given, **named: pytest.fail("run again"))
    assert CliRunner().invoke(main, words).output == done.output
