"""Parameters that products read in panels: what is kept, what it looks like to kernels, and when it is made anew."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import vendor_sdk
from tests.toyloops import LoopEmitter
from tests.toys import register_toys
from vendor_sdk import contraction, pipeline
from vendor_sdk.ir.panels import panels
from vendor_sdk.run import kept as keeping
from vendor_sdk.run.kept import Kept

Tensor = torch.Tensor
register_toys()


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    keeping.kept.release()
    yield
    torch._dynamo.reset()


def compiled(model: Callable[..., Tensor], *, keep: bool = True) -> Callable[..., Tensor]:
    return torch.compile(model, backend="toyloops", options={"keep": keep})  # type: ignore[return-value, arg-type]


def check(found: Tensor, model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        parameters = {name: value.double() for name, value in model.named_parameters()}
        expected = torch.func.functional_call(model, parameters, (x.double(),))
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("shape", [(1, 1), (3, 64), (5, 65), (0, 10), (4, 0)])
@pytest.mark.parametrize("transposed", [False, True])
def test_panels_hold_the_columns(shape: tuple[int, int], transposed: bool) -> None:
    matrix = torch.randn(shape[::-1] if transposed else shape)
    found = panels(matrix, 16, transposed)
    k, n = shape
    assert found.shape == (-(-n // 16), k, 16)
    assert found.is_contiguous()
    flat = found.permute(1, 0, 2).reshape(k, found.shape[0] * 16)
    assert torch.equal(flat[:, :n], matrix.t() if transposed else matrix)
    assert not flat[:, n:].any()


@pytest.mark.parametrize(
    ("rows", "steps", "columns", "dtype"),
    [
        (1, 300, 128, torch.float32),
        (16, 513, 200, torch.float32),
        (37, 129, 65, torch.float32),
        (130, 1000, 257, torch.float32),
        (9, 70, 33, torch.float64),
        (0, 70, 64, torch.float32),
    ],
)
def test_products_with_kept_parameters(rows: int, steps: int, columns: int, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(steps, columns), nn.GELU(), nn.Linear(columns, 70, bias=False)).to(dtype)
    x = torch.randn(rows, steps, dtype=dtype)
    run = compiled(model)
    with torch.no_grad():
        found = run(x)
    if rows:
        check(found, model, x)
    assert found.shape == (rows, 70)
    assert len(keeping.kept._entries) == 2


def test_matrices_that_are_not_transposed_and_nan() -> None:
    weight = nn.Parameter(torch.randn(33, 100))

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x @ self.weight)

    model, x = Product(), torch.randn(4, 33)
    x[1, 2] = torch.nan
    with torch.no_grad():
        found = compiled(model)(x)
        assert found[1].isnan().all()
        assert not found[0].isnan().any()
        weight[:, 99] = torch.inf
        again = compiled(model)(x.nan_to_num(0))
        torch.testing.assert_close(again, torch.relu(x.nan_to_num(0) @ weight), equal_nan=True)


def test_one_copy_for_all_products_of_a_parameter_and_all_graphs() -> None:
    layer = nn.Linear(64, 128)

    def twice(x: Tensor) -> Tensor:
        return layer(layer(x)[:, :64])

    with torch.no_grad():
        compiled(twice)(torch.randn(3, 64))
        compiled(layer)(torch.randn(5, 64))
        compiled(layer)(torch.randn(6, 64))  # dynamic
    assert len(keeping.kept._entries) == 1
    assert keeping.kept.release() == 64 * 128 * 4


def test_changes_are_seen() -> None:
    model = nn.Linear(96, 160)
    x = torch.randn(7, 96)
    run = compiled(model)

    def optimizer_step() -> None:
        model.weight.add_(1)

    def some_elements() -> None:
        model.weight[3:5] = 0

    def past_the_counter() -> None:
        model.weight.data.mul_(2)

    def through_numpy() -> None:
        model.weight.detach().numpy()[:] += 1

    def other_memory() -> None:
        model.weight.data = torch.randn(160, 96)

    def other_strides() -> None:
        model.weight.data = torch.randn(96, 160).t()

    def loaded() -> None:
        model.load_state_dict(nn.Linear(96, 160).state_dict())

    def assigned() -> None:
        model.load_state_dict(nn.Linear(96, 160).state_dict(), assign=True)

    def other_parameter() -> None:
        model.weight = nn.Parameter(torch.randn(160, 96))

    def announced() -> None:
        model.weight.data[1, 1] = 100
        vendor_sdk.release_memory()

    with torch.no_grad():
        check(run(x), model, x)
        for change in (
            optimizer_step,
            some_elements,
            past_the_counter,
            through_numpy,
            other_memory,
            other_strides,
            loaded,
            assigned,
            other_parameter,
            announced,
        ):
            before = model.weight.detach().clone()
            change()
            assert not torch.equal(model.weight, before)
            check(run(x), model, x)


def test_kept_values_die_with_their_parameters() -> None:
    model = nn.Linear(64, 64)
    with torch.no_grad():
        compiled(model)(torch.randn(2, 64))
        assert len(keeping.kept._entries) == 1
        model.weight = nn.Parameter(torch.randn(64, 64))
        gc.collect()
    assert not keeping.kept._entries
    assert not any(keeping.kept._known.values())


def test_what_is_not_kept() -> None:
    model, x = nn.Linear(64, 64), torch.randn(4, 64)
    check(compiled(model)(x).detach(), model, x)  # trained
    assert not keeping.kept._entries
    with torch.no_grad():
        check(compiled(model, keep=False)(x), model, x)
        torch._dynamo.reset()
        check(torch.compile(model, backend="toyloops")(x), model, x)  # nobody allowed it
        torch._dynamo.reset()
        compiled(nn.Linear(64, 5))(x)  # narrower than a panel
    assert not keeping.kept._entries
    with torch.inference_mode():
        model = nn.Linear(64, 64)
        x = torch.randn(4, 64)
        run = compiled(model)
        run(x)
        model.weight[0, 0] = 50
        torch.testing.assert_close(run(x), model(x))
    assert not keeping.kept._entries


def test_threads_share_what_is_kept() -> None:
    store, tensor = Kept(), torch.randn(50, 70)
    calls: list[int] = []

    def make(value: Tensor, width: int) -> Tensor:
        calls.append(width)
        return panels(value, width, False)

    get = store.getter(make, 16)
    found: list[Tensor] = []
    threads = [threading.Thread(target=lambda: found.extend(get(tensor) for _ in range(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [16]
    assert all(value is found[0] for value in found)
    assert store.getter(make, 16)(tensor[:]) is found[0]  # another tensor that shows the same memory
    assert get(tensor[1:]) is not found[0]


def test_kernels_read_panels_in_place() -> None:
    graphs: list[vendor_sdk.CompiledGraph] = []
    model = nn.Sequential(nn.Linear(512, 1024), nn.Tanh())
    with pipeline.recording(graphs.append), torch.no_grad():
        compiled(model)(torch.randn(16, 512))
    (graph,) = graphs
    assert graph.wrapper.launches == (1, 1)
    assert "= K0(" in graph.wrapper.source
    (kernel,) = graph.loops.values()
    (product,) = map(contraction.match, kernel.body)
    assert product is not None
    (panel,) = [p for p in kernel.params if any(p.name == getattr(s, "param", "") for s in product.right.body)]
    assert panel.size.value == 512 * 1024


@pytest.mark.parametrize(("columns", "transposed"), [(192, False), (192, True), (200, True)])
def test_a_factor_of_many_products_lies_in_panels_for_the_call(columns: int, transposed: bool) -> None:
    weight = torch.randn(columns, 40) if transposed else torch.randn(40, columns)
    back = torch.randn(columns, 40)

    def steps(x: Tensor, weight: Tensor, back: Tensor, count: int) -> Tensor:
        factor = weight.t() if transposed else weight
        for _ in range(count):
            x = torch.tanh(x @ factor) @ back * 0.1
        return x

    x = torch.randn(7, 40)
    for count, copies in ((3, 0), (5, 1 if columns % 64 == 0 else 0)):
        graphs: list[vendor_sdk.CompiledGraph] = []
        run = compiled(lambda x, w, b, count=count: steps(x, w, b, count), keep=False)
        with pipeline.recording(graphs.append), torch.no_grad():
            found = run(x, weight, back)
            weight.data[0, 0] += 1  # nothing is kept: no write is missed
            again = run(x, weight, back)
        torch.testing.assert_close(again, steps(x, weight, back, count), rtol=1e-4, atol=1e-4)
        assert not torch.equal(found, again)
        (graph,) = graphs
        assert sum("clone" in kernel.name for kernel in graph.loops.values()) == copies


def test_what_is_read_along_the_sum_lies_in_no_panels_for_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the emitter says so, and only if the columns of the factor are contiguous."""
    monkeypatch.setattr(LoopEmitter, "reads_along", lambda self, dtype, rows, columns, steps: rows == 7 and steps == 40)

    def steps(x: Tensor, weight: Tensor) -> Tensor:
        factor = weight.t() if weight.shape[0] == 64 else weight
        for _ in range(5):
            x = torch.tanh(x @ factor)[:, :40]
        return x

    for shape, rows, copies in (((64, 40), 7, 0), ((64, 40), 8, 1), ((40, 64), 7, 1)):
        graphs: list[vendor_sdk.CompiledGraph] = []
        x, weight = torch.randn(rows, 40), torch.randn(shape)
        with pipeline.recording(graphs.append), torch.no_grad():
            found = compiled(steps, keep=False)(x, weight)
        torch.testing.assert_close(found, steps(x, weight), rtol=1e-4, atol=1e-4)
        assert sum("clone" in kernel.name for kernel in graphs[0].loops.values()) == copies
        torch._dynamo.reset()


def test_factors_of_trained_graphs_stay_as_they_are() -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    graphs: list[vendor_sdk.CompiledGraph] = []

    def steps(x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.tanh(x @ weight)
        return x.sum()

    with pipeline.recording(graphs.append):
        compiled(steps, keep=False)(torch.randn(3, 64)).backward()  # type: ignore[no-untyped-call]
    assert not any("clone" in kernel.name for graph in graphs for kernel in graph.loops.values())
