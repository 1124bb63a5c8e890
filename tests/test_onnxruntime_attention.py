"""Attention of the ONNX Runtime backend: its own operators for long sequences, heads as they come, what a provider lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn import functional

import vendor_sdk
from vendor_sdk import Kind
from vendor_sdk.pipeline import recording

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from reference_backends.onnxruntime import attention, contrib  # noqa: E402
from reference_backends.onnxruntime.builder import CONTRIB, Builder, Operator, Outline  # noqa: E402
from reference_backends.onnxruntime.providers import Provider  # noqa: E402

NAME = "onnxruntime"
WIDTH = 32
BLOCKED, CAUSAL = "MultiHeadAttention", "GroupQueryAttention"
RELEASE = tuple(int(part) for part in ort.__version__.split(".")[:2])
needs_causal = pytest.mark.skipif(RELEASE < (1, 27), reason="before 1.27 GroupQueryAttention wants a cache to write to")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(contrib, "_answers", {})
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def from_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of ONNX Runtime's own pay from few positions."""
    monkeypatch.setattr(attention, "BLOCKED_FROM", 8)
    monkeypatch.setattr(attention, "BLOCKED_FROM_HEADS", 16)
    monkeypatch.setattr(attention, "CAUSAL_FROM", 12)


def run(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, **options: Any) -> tuple[torch.Tensor, onnx.ModelProto]:
    """The result in inference, and the model of the one partition, with all attention in it."""
    graphs: list[Any] = []
    torch._dynamo.reset()
    with torch.no_grad(), recording(graphs.append):
        result = torch.compile(function, backend=NAME, options=options)(*inputs)
    (graph,) = graphs
    assert {each.placement.kind for each in graph.placements if "attention" in each.prim} == {Kind.NATIVE}
    (partition,) = (node.target.run for node in graph.graph.calls() if hasattr(node.target, "run"))
    model = partition._make.model
    onnx.checker.check_model(model)
    return result, model


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def of_heads(**keywords: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v, **more: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **keywords, **more)


def of_rows(width: int = WIDTH, **keywords: Any) -> Callable[..., torch.Tensor]:
    """Attention between the transposes of a layer."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        heads = (x.unflatten(2, (x.shape[2] // width, width)).transpose(1, 2) for x in (q, k, v))
        return of_heads(**keywords)(*heads, attn_mask=mask).transpose(1, 2).flatten(2)

    return call


def rows(length: int, keys: int, heads: int = 2, own: int = 2, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    sizes = ((length, heads), (keys, own), (keys, own))
    return [torch.randn(2, count, number * WIDTH, dtype=dtype) for count, number in sizes]


def heads(length: int, keys: int, number: int = 2, own: int = 2) -> list[torch.Tensor]:
    sizes = ((number, length), (own, keys), (own, keys))
    return [torch.randn(2, each, count, WIDTH) for each, count in sizes]


def as_accurate(function: Callable[..., torch.Tensor], result: torch.Tensor, *inputs: torch.Tensor) -> None:
    """At most twice eager's error, in the mean square."""
    exact = function(*(x.double() for x in inputs))
    ours, eager = ((each.double() - exact).square().mean().sqrt() for each in (result, function(*inputs)))
    assert ours <= 2 * eager


# Operators of ONNX Runtime's own


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "least", "sizes", "keywords"),
    [
        (BLOCKED, attention.BLOCKED_FROM, (2, 2), {}),
        (BLOCKED, attention.BLOCKED_FROM, (2, 2), {"scale": 0.3}),
        pytest.param(CAUSAL, attention.CAUSAL_FROM, (2, 2), {"is_causal": True, "scale": 0.3}, marks=needs_causal),
        pytest.param(CAUSAL, attention.CAUSAL_FROM, (4, 2), {"is_causal": True}, marks=needs_causal),
    ],
)
def test_long_sequences_have_an_operator_of_their_own(
    kind: str, least: int, sizes: tuple[int, int], keywords: dict[str, Any], dtype: torch.dtype
) -> None:
    function, inputs = of_rows(**keywords), rows(least, least, *sizes, dtype=dtype)
    result, model = run(function, *inputs)
    assert [node.op_type for node in model.graph.node if node.domain == CONTRIB] == [kind]
    assert "Transpose" not in kinds(model)
    assert {each.domain: each.version for each in model.opset_import}[CONTRIB] == 1
    as_accurate(function, result, *inputs)
    shorter = [x[:, :-1] for x in inputs]
    result, model = run(function, *shorter)
    assert "Attention" in kinds(model)
    assert [each.domain for each in model.opset_import] == [""]
    as_accurate(function, result, *shorter)


@pytest.mark.usefixtures("from_few")
@pytest.mark.parametrize(
    ("sizes", "keywords", "kind"),
    [
        ((16, 16), {}, BLOCKED),
        ((16, 21), {}, BLOCKED),
        pytest.param((12, 12), {"is_causal": True}, CAUSAL, marks=needs_causal),
        pytest.param((13, 13, 4, 1), {"is_causal": True}, CAUSAL, marks=needs_causal),
        ((16, 15), {}, "Attention"),  # has to be moved, for too little
        ((16, 21), {"is_causal": True}, "Attention"),  # which end the rows are at differs
        ((16, 16, 4, 2), {}, "Attention"),  # it has no shared heads
        ((16, 16), {"scale": -0.5}, "Softmax-like"),
        ((16, 16), {"scale": 0.0}, "Softmax-like"),
        ((7, 9), {"scale": 0.0}, "Softmax-like"),
    ],
)
def test_heads_in_their_own_layout(sizes: tuple[int, ...], keywords: dict[str, Any], kind: str) -> None:
    function, inputs = of_heads(**keywords), heads(*sizes)
    result, model = run(function, *inputs)
    found = [each for each in kinds(model) if "Attention" in each]
    assert found == ([] if kind == "Softmax-like" else [kind])
    as_accurate(function, result, *inputs)


@pytest.mark.usefixtures("from_few")
@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=needs_causal)])
def test_what_is_not_a_number_stays_where_torch_has_it(causal: bool) -> None:
    function = of_heads(is_causal=causal)
    for place in range(3):
        for value in (torch.nan, torch.inf):
            inputs = heads(24, 24)
            inputs[place][0, 1, 17, 3] = value
            result, model = run(function, *inputs)
            assert (CAUSAL if causal else BLOCKED) in kinds(model)
            # Rows give no weight to what is behind them, and zero times what is no number is none.
            first = 17 if causal and place == 2 else 0
            torch.testing.assert_close(result[:, :, first:], function(*inputs)[:, :, first:], equal_nan=True)
            assert torch.isfinite(result[1]).all()


@pytest.mark.usefixtures("from_few")
def test_sizes_of_the_call_leave_the_standard_operator_but_for_the_batch() -> None:
    function = of_heads()
    inputs = heads(16, 16)
    for x in inputs:
        torch._dynamo.mark_dynamic(x, 0)
    graphs: list[Any] = []
    call = torch.compile(function, backend=NAME)
    with torch.no_grad(), recording(graphs.append):
        torch.testing.assert_close(call(*inputs), function(*inputs))
        more = [x.repeat(3, 1, 1, 1) for x in inputs]
        torch.testing.assert_close(call(*more), function(*more))
    (graph,) = graphs
    (partition,) = (node.target.run for node in graph.graph.calls() if hasattr(node.target, "run"))
    assert BLOCKED in kinds(partition._make.model)
    for x in inputs:
        torch._dynamo.mark_dynamic(x, 2)
    result, model = run(function, *inputs)
    assert "Attention" in kinds(model)
    torch.testing.assert_close(result, function(*inputs))


def test_gradients_through_long_sequences() -> None:
    function, inputs = of_rows(), rows(attention.BLOCKED_FROM, attention.BLOCKED_FROM)
    ours, theirs, exact = (
        [x.clone().to(dtype).requires_grad_() for x in inputs] for dtype in (torch.float32,) * 2 + (torch.float64,)
    )
    for call, given in ((torch.compile(function, backend=NAME), ours), (function, theirs), (function, exact)):
        call(*given).square().sum().backward()
    for mine, other, true in zip(ours, theirs, exact, strict=True):
        mistakes = [(each.grad.double() - true.grad).square().mean() ** 0.5 for each in (mine, other)]
        assert mistakes[0] <= 2 * mistakes[1]


# Heads as they come


MASKS = {
    "a row of keys": torch.tensor([[True] * 6 + [False] * 5]).expand(9, 11),
    "nothing for some rows": (torch.arange(9) % 3 > 0).unsqueeze(1).expand(9, 11),
    "for each of a batch": torch.rand(2, 1, 9, 11) > 0.7,
    "for each head": torch.rand(2, 4, 9, 11) > 0.7,
    "added": torch.randn(2, 4, 9, 11),
    "padding": torch.arange(11) < torch.tensor([11, 6]).view(2, 1, 1, 1),
    "added to all rows": torch.randn(1, 11),
    "rows as a whole": torch.tensor([True, False, True] * 3).view(9, 1),
}


@pytest.mark.parametrize("mask", MASKS)
def test_heads_of_rows_are_not_moved_under_a_mask(mask: str) -> None:
    function, inputs = of_rows(), [*rows(9, 11, 4, 4), MASKS[mask]]
    result, model = run(function, *inputs)
    (node,) = (each for each in model.graph.node if each.op_type == "Attention")
    assert {each.name: each.i for each in node.attribute}["q_num_heads"] == 4
    moved = [each for each in model.graph.node if each.op_type == "Transpose"]
    assert len(moved) == 1  # which rows have a key at all
    torch.testing.assert_close(result, function(*inputs))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_masks_of_one_row_or_key_are_for_all(mask: str, dynamic: bool) -> None:
    inputs = [torch.randn(2, 4, n, 16) for n in (9, 11, 11)]
    compiled = torch.compile(F.scaled_dot_product_attention, backend="onnxruntime", dynamic=dynamic)
    torch.testing.assert_close(compiled(*inputs, MASKS[mask]), F.scaled_dot_product_attention(*inputs, MASKS[mask]))


@pytest.mark.parametrize(("number", "own"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_of_rows_are_not_moved(number: int, own: int, causal: bool) -> None:
    function, inputs = of_rows(is_causal=causal), rows(9, 9, number, own)
    result, model = run(function, *inputs)
    assert "Transpose" not in kinds(model)
    torch.testing.assert_close(result, function(*inputs))
    for x in inputs:
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(x, 1)
    result, model = run(function, *inputs)
    assert "Transpose" not in kinds(model)
    torch.testing.assert_close(result, function(*inputs))


def test_heads_that_others_read_too() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        split = [x.unflatten(2, (2, WIDTH)).transpose(1, 2) for x in (q, k, v)]
        result = of_heads()(*split)
        return result + split[0], result.transpose(1, 2).transpose(2, 3), split[2]

    inputs = rows(5, 7)
    inputs[0], inputs[2] = inputs[0][:, :1].expand(2, 7, 2 * WIDTH).contiguous(), inputs[2]
    torch.testing.assert_close(torch.compile(function, backend=NAME)(*inputs), function(*inputs))


def test_transposes_of_transposes_are_one() -> None:
    builder = Builder()
    x = builder.operand(torch.float32, (2, 3, 4))
    turned = builder.transpose(x, [1, 2, 0])
    assert builder.transpose(turned, [2, 0, 1]) is x
    assert builder.untransposed(turned, [1, 2, 0]) is x
    assert builder.untransposed(turned, [2, 0, 1]) is None
    other = builder.transpose(turned, [1, 0, 2])
    model = builder.model([(other, Outline(torch.float32, (4, 3, 2)))])
    assert kinds(model) == ["Transpose"]
    values = torch.randn(2, 3, 4)
    (found,) = ort.InferenceSession(model.SerializeToString()).run(None, {x.name: values.numpy()})
    assert torch.equal(torch.from_numpy(found), values.permute(1, 2, 0).permute(1, 0, 2))


# What a provider lacks


def without(monkeypatch: pytest.MonkeyPatch, *lacking: str) -> list[str]:
    """Kernels that providers are asked for, from now on; they have all but these."""
    asked: list[str] = []
    ask = contrib._asked

    def answer(provider: Provider, operator: Operator) -> bool:
        asked.append(operator.kind)
        return operator.kind not in lacking and ask(provider, operator)

    monkeypatch.setattr(contrib, "_asked", answer)
    return asked


@pytest.mark.usefixtures("from_few")
@pytest.mark.parametrize("causal", [False, True])
def test_a_provider_without_the_kernel_gets_what_is_standard(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    asked = without(monkeypatch, BLOCKED, CAUSAL)
    function, inputs = of_rows(is_causal=causal), rows(16, 16)
    result, model = run(function, *inputs)
    assert asked.count(CAUSAL if causal else BLOCKED) == 1
    assert [each.domain for each in model.opset_import] == [""]
    assert "Attention" in kinds(model)
    torch.testing.assert_close(result, function(*inputs))


@pytest.mark.usefixtures("from_few")
def test_a_provider_without_attention_gets_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, BLOCKED, CAUSAL, "Attention")
    for function in (of_rows(), of_rows(is_causal=True)):
        inputs = rows(16, 16)
        result, model = run(function, *inputs)
        assert not [each for each in kinds(model) if "Attention" in each]
        torch.testing.assert_close(result, function(*inputs))


def test_answers_are_those_of_a_provider_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = without(monkeypatch)
    double, single = (
        Operator("BiasGelu", ((dtype, (4, "rows", 3)), (dtype, None)), domain=CONTRIB)
        for dtype in (torch.float64, torch.float32)
    )
    for _ in range(2):
        has = contrib.in_sessions(Provider())
        assert has(single)
        assert not has(double)
        assert not has(Operator("NoSuchOperator", ((torch.float32, None),), domain=CONTRIB))
    assert asked == ["BiasGelu", "BiasGelu", "NoSuchOperator"]
    if "AzureExecutionProvider" in ort.get_available_providers():  # one without a kernel
        assert not contrib.in_sessions(Provider("AzureExecutionProvider"))(single)


def test_a_graph_inside_a_node_may_have_them() -> None:
    builder = Builder(has=contrib.in_sessions(Provider()))
    x, flag = builder.operand(torch.float32, [3]), builder.operand(torch.bool, [])
    yes, no = builder.child(), builder.child()
    found = yes.contrib("QuickGelu", x, alpha=2.0)
    assert found is not None
    branches = {"then_branch": builder.inner(yes, "yes", [found]), "else_branch": builder.inner(no, "no", [x])}
    result = builder.op("If", flag, dtype=torch.float32, **branches)
    model = builder.model([(result, Outline(torch.float32, (3,)))])
    onnx.checker.check_model(model)
    values = torch.tensor([-1.0, 0.0, 2.0])
    session = ort.InferenceSession(model.SerializeToString())
    (out,) = session.run(None, {x.name: values.numpy(), flag.name: torch.tensor(True).numpy()})
    torch.testing.assert_close(torch.from_numpy(out), values * torch.sigmoid(2 * values))
    assert Builder().contrib("QuickGelu", x, alpha=2.0) is None


# Where a user wants them


@pytest.mark.usefixtures("from_few")
@pytest.mark.parametrize(("where", "kind"), [("nowhere", "Attention"), ("sessions", BLOCKED), ("files", BLOCKED)])
def test_sessions_have_them_unless_the_user_wants_none(where: str, kind: str) -> None:
    function, inputs = of_heads(), heads(16, 16)
    result, model = run(function, *inputs, contrib=where)
    assert [each for each in kinds(model) if "Attention" in each] == [kind]
    torch.testing.assert_close(result, function(*inputs))


class _Attention(torch.nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.call = of_rows(is_causal=causal)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return self.call(q, k, v)


@pytest.mark.usefixtures("from_few")
@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=needs_causal)])
def test_files_are_standard_unless_the_user_wants_them_otherwise(causal: bool, tmp_path: Path) -> None:
    model, inputs = _Attention(causal), rows(16, 16)
    own = CAUSAL if causal else BLOCKED
    for where, expected in (("nowhere", "Attention"), ("sessions", "Attention"), ("files", own)):
        options = {"contrib": where} if where != "sessions" else None
        path = vendor_sdk.export(model, inputs, tmp_path / f"{where}.onnx", backend=NAME, options=options)
        written = onnx.load(path)
        onnx.checker.check_model(written)
        assert [each for each in kinds(written) if "Attention" in each] == [expected]
        assert {each.domain for each in written.opset_import} == ({"", CONTRIB} if expected == own else {""})
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {name: x.numpy() for name, x in zip("qkv", inputs, strict=True)})
        torch.testing.assert_close(torch.from_numpy(found), model(*inputs))


@pytest.mark.parametrize("rows", [5, 40], ids=["few rows", "more"])
def test_rows_hidden_by_the_least_number_weigh_all_keys_alike(rows: int) -> None:
    query, key, value = (torch.randn(2, 3, rows, WIDTH) for _ in range(3))
    mask = torch.zeros(2, 1, rows, rows)
    mask[:, :, 2], mask[:, :, 3, :2], mask[:, :, 4] = torch.finfo(torch.float32).min, -torch.inf, -torch.inf
    with torch.no_grad():
        found = torch.compile(of_heads(), backend=NAME)(query, key, value, attn_mask=mask)
    exact = functional.scaled_dot_product_attention(*(x.double() for x in (query, key, value)), attn_mask=mask.double())
    exact[:, :, 2], exact[:, :, 4] = value.double().mean(2), 0
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
