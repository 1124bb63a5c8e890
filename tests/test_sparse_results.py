"""Sparse gradients of embeddings: a graph returns their parts, and a call makes them, as in eager mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import vendor_sdk
from tests.toys import register_toys
from vendor_sdk import torch_private
from vendor_sdk.capture.sparse import without_sparse

ROWS, WIDTH = 10, 4
Tensor = torch.Tensor


class Twice(nn.Module):
    """Its gradient is a sum of two."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, indices: Tensor) -> Tensor:
        return self.last(self.embedding(indices) * self.embedding(indices.flip(0)))


def bag(mode: str, **more: object) -> nn.EmbeddingBag:
    return nn.EmbeddingBag(ROWS, WIDTH, mode=mode, sparse=True, **more)  # type: ignore[arg-type]


MODELS = {
    "embedding": lambda: nn.Embedding(ROWS, WIDTH, sparse=True),
    "padded": lambda: nn.Embedding(ROWS, WIDTH, sparse=True, padding_idx=2),
    "twice": Twice,
    "sums": lambda: bag("sum"),
    "means": lambda: bag("mean", padding_idx=3),
    "bags": lambda: bag("mean", include_last_offset=True),
}


# Sums of sparse tensors of symbolic size torch does not trace (2.13, its own backends too).
CASES = [(name, dynamic) for name in MODELS for dynamic in (False, True) if (name, dynamic) != ("twice", True)]


@pytest.mark.parametrize(("name", "dynamic"), CASES)
@pytest.mark.usefixtures("fresh_graphs")
def test_models_train_as_in_eager_mode(name: str, dynamic: bool) -> None:
    register_toys()
    model = MODELS[name]()
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend="toyloops", dynamic=dynamic)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (model, reference)]
    for rows in (3, 4):
        inputs: tuple[Tensor, ...] = (torch.randint(0, ROWS, (rows, 5)),)
        if name == "bags":  # of which two have nothing
            inputs = (inputs[0].reshape(-1), torch.tensor([0, 0, 4, 9, 9, rows * 5]))
        for each, call, optimizer in zip((model, reference), (compiled, reference), optimizers, strict=True):
            optimizer.zero_grad()
            result = call(*inputs)
            result.sin().sum().backward()
            each.result = result  # type: ignore[assignment]
        torch.testing.assert_close(model.result, reference.result, rtol=1e-4, atol=1e-4)
        for found, expected in zip(model.parameters(), reference.parameters(), strict=True):
            assert found.grad is not None
            assert expected.grad is not None
            assert (found.grad.layout, found.grad.dtype) == (expected.grad.layout, expected.grad.dtype)
            torch.testing.assert_close(found.grad.to_dense(), expected.grad.to_dense(), rtol=1e-4, atol=1e-4)
        for optimizer in optimizers:
            optimizer.step()
        model.load_state_dict(reference.state_dict())  # so that roundings do not add up


def test_graphs_with_sparse_results_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    register_toys()
    monkeypatch.setattr(vendor_sdk.aot, "WORTH_STORING", 0)
    model = MODELS["embedding"]()
    indices = torch.randint(0, ROWS, (3, 5))
    gradients = []
    for _ in range(2):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model.zero_grad()
        torch.compile(model, backend="toyloops")(indices).exp().sum().backward()
        gradients.append(model.weight.grad.to_dense())
    assert torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert torch.equal(*gradients)


def test_other_sparse_results_are_refused() -> None:
    register_toys()

    def function(indices: Tensor, values: Tensor) -> Tensor:
        made = torch.sparse_coo_tensor(indices, values, (ROWS, WIDTH), check_invariants=False)
        return made * 2

    with pytest.raises(vendor_sdk.VendorSDKError, match="sparse"):
        vendor_sdk.trace(function, [torch.randint(0, ROWS, (1, 3)), torch.randn(3, WIDTH)])


def test_sums_may_have_thousands_of_terms() -> None:
    aten, mode = torch.ops.aten, torch_private.new_fake_mode()
    graph = torch.fx.Graph()

    def put(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = graph.call_function(target, args, kwargs)
        with mode:
            node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda each: each.meta["val"]), **kwargs)
        return node

    given = [graph.placeholder(name) for name in ("indices", "rows")]
    for node, value in zip(given, (torch.zeros(1, 3, dtype=torch.int64), torch.zeros(3, WIDTH)), strict=True):
        node.meta["val"] = mode.from_tensor(value, static_shapes=True)
    dense, options = given[1], {"dtype": torch.float32, "layout": torch.sparse_coo, "device": torch.device("cpu")}
    made = [
        put(aten._sparse_coo_tensor_with_dims_and_tensors.default, 1, 1, [ROWS, WIDTH], *given, **options) for _ in range(3)
    ]
    total = put(aten.add.Tensor, put(aten.add.Tensor, made[0], made[1]), made[2])
    like = dict(total.meta)
    for _ in range(3000):
        total = graph.call_function(aten.add.Tensor, (total, made[0]))
        total.meta.update(like)
        dense = put(aten.add.Tensor, dense, given[1])
    graph.output((total, dense))
    rewritten, (parts,) = without_sparse(torch.fx.GraphModule({}, graph))
    assert (parts.indices, parts.values, parts.size) == (0, 2, (ROWS, WIDTH))
    indices, _, values = rewritten(torch.arange(3).view(1, 3), torch.ones(3, WIDTH))
    assert indices.shape == (1, 3003 * 3)
    assert values.shape == (3003 * 3, WIDTH)


@pytest.mark.usefixtures("fresh_graphs")
def test_dense_sums_may_have_thousands_of_terms() -> None:
    register_toys()

    def function(x: Tensor) -> Tensor:
        y = x
        for _ in range(1200):
            y = y + x
        return y

    x = torch.ones(3)
    assert torch.equal(torch.compile(function, backend="toyloops")(x), function(x))
