"""Normalizations in training save their operand and statistics for the gradients of what follows, and not their result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.toys import use_kind

pytestmark = pytest.mark.usefixtures("fresh_graphs")
Tensor = torch.Tensor
Norm = Callable[..., Tensor]
BACKENDS = ("cpp_cpu", "toyloops")
DTYPES = (torch.float32, torch.bfloat16)
CHANNELS = 8


def _batch(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def _followed(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """With running statistics."""
    running = (torch.full((CHANNELS,), value, dtype=x.dtype) for value in (0.0, 1.0))
    return F.batch_norm(x, *running, weight, bias, training=True)


NORMS: dict[str, tuple[Norm, tuple[int, ...]]] = {
    "layer": (lambda x, weight, bias: F.layer_norm(x, (CHANNELS,), weight, bias), (3, 5, 7, CHANNELS)),
    "layer, plain": (lambda x, weight, bias: F.layer_norm(x, (7, CHANNELS)), (3, 5, 7, CHANNELS)),
    "rms": (lambda x, weight, bias: F.rms_norm(x, (CHANNELS,), weight, 1e-6), (3, 5, 7, CHANNELS)),
    "group": (lambda x, weight, bias: F.group_norm(x, 4, weight, bias), (3, CHANNELS, 5, 7)),
    "group, plain": (lambda x, weight, bias: F.group_norm(x, 2), (3, CHANNELS, 11)),
    "group of all, no pixels' dimension": (lambda x, weight, bias: F.group_norm(x, 1, weight, bias), (9, CHANNELS)),
    "batch": (_followed, (3, CHANNELS, 5, 7)),
    "instance": (lambda x, weight, bias: F.instance_norm(x, None, None, weight, bias), (3, CHANNELS, 5, 7)),
    "batch, no running statistics": (_batch, (3, CHANNELS, 5, 7)),
    "batch, plain": (lambda x, weight, bias: _batch(x, None, None), (19, CHANNELS)),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu (tanh)": lambda y: F.gelu(y, approximate="tanh"),
    "mish": F.mish,
    "silu, written out": lambda y: y * torch.sigmoid(y),
    "in float64 between": lambda y: F.silu(y.double()).to(y.dtype),
}


def _operands(shape: Sequence[int], dtype: torch.dtype, *, mean: float = 0.0) -> list[Tensor]:
    parameters = [torch.randn(CHANNELS), torch.randn(CHANNELS)]
    return [value.to(dtype) for value in (torch.randn(shape) + mean, *parameters)]


def _trained(function: Callable[..., Tensor], operands: Sequence[Tensor], grad: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Result and gradients; and what was saved for these that has an element of each of the first operand's, or more."""
    saved: list[Tensor] = []

    def save(value: Tensor) -> Tensor:
        if value.numel() >= operands[0].numel():
            saved.append(value)
        return value

    leaves = [value.detach().requires_grad_() for value in operands]
    with torch.autograd.graph.saved_tensors_hooks(save, lambda value: value):
        result = function(*leaves)
    result.backward(grad.to(result.dtype))
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)], saved


def _saved(compiled: Callable[..., Tensor], function: Callable[..., Tensor], operands: Sequence[Tensor]) -> list[Tensor]:
    """What was saved; results must be as near those in float64 as eager's are, twice as far at most."""
    with torch.no_grad():
        grad = torch.randn_like(function(*operands))
    ours, saved = _trained(compiled, operands, grad)
    eager, _ = _trained(function, operands, grad)
    exact, _ = _trained(function, [value.double() for value in operands], grad.double())
    assert len(ours) == len(eager) == len(exact)
    for mine, theirs, true in zip(ours, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype
        off, allowed = ((value.double() - true).abs().max() for value in (mine, theirs))
        assert off <= 2 * allowed + 16 * torch.finfo(mine.dtype).eps * true.abs().max()
    return saved


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_operand_alone_is_saved(backend: str, norm: str, dtype: torch.dtype) -> None:
    """Each norm with all activations, among its backends and dtypes."""
    use_kind(backend)
    torch.manual_seed(0)
    normalized, shape = NORMS[norm]
    part = BACKENDS.index(backend) + len(BACKENDS) * DTYPES.index(dtype)
    for name, activation in list(ACTIVATIONS.items())[part :: len(BACKENDS) * len(DTYPES)]:

        def function(x: Tensor, *parameters: Tensor, activation: Callable[[Tensor], Tensor] = activation) -> Tensor:
            return activation(normalized(x, *parameters))

        torch._dynamo.reset()
        saved = _saved(torch.compile(function, backend=backend, fullgraph=True), function, _operands(shape, dtype))
        assert [(value.shape, value.dtype) for value in saved] == [(torch.Size(shape), dtype)], name


@pytest.mark.parametrize("backend", BACKENDS)
def test_scaled_rows_of_a_batch(backend: str) -> None:
    """As in a transformer whose norms are scaled by what it is conditioned on: what is multiplied is saved, and the operand."""
    use_kind(backend)
    torch.manual_seed(0)

    def function(x: Tensor, scale: Tensor, shift: Tensor, matrix: Tensor) -> Tensor:
        return (F.layer_norm(x, (CHANNELS,)) * (1 + scale[:, None]) + shift[:, None]) @ matrix

    operands = [torch.randn(3, 50, CHANNELS), torch.randn(3, CHANNELS), torch.randn(3, CHANNELS), torch.randn(CHANNELS, 2)]
    assert len(_saved(torch.compile(function, backend=backend, fullgraph=True), function, operands)) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_result_that_a_product_reads(backend: str) -> None:
    """It is saved for the gradient of the matrix, and computed once."""
    use_kind(backend)
    torch.manual_seed(0)

    def function(x: Tensor, weight: Tensor, bias: Tensor, matrix: Tensor) -> Tensor:
        y = F.layer_norm(x, (CHANNELS,), weight, bias)
        return F.silu(y) + y @ matrix

    operands = [*_operands((30, CHANNELS), torch.float32), torch.randn(CHANNELS, CHANNELS)]
    assert len(_saved(torch.compile(function, backend=backend, fullgraph=True), function, operands)) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropped_elements_are_drawn_once(backend: str) -> None:
    use_kind(backend)
    operands = _operands((64, CHANNELS), torch.float32)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.silu(F.dropout(F.layer_norm(x, (CHANNELS,), weight, bias), 0.5))

    results, _ = _trained(torch.compile(function, backend=backend, fullgraph=True), operands, torch.ones(64, CHANNELS))
    dropped = results[0] == 0
    assert 0.3 < dropped.float().mean() < 0.7

    def known(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.silu(F.layer_norm(x, (CHANNELS,), weight, bias) * ~dropped * 2)

    torch.testing.assert_close(results, _trained(known, operands, torch.ones(64, CHANNELS))[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_that_a_user_reads(backend: str) -> None:
    """They stay in the dtype that torch gives them."""
    use_kind(backend)
    torch.manual_seed(0)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, rstd = torch.native_group_norm(x, weight, bias, 3, CHANNELS, 35, 4, 1e-5)
        return F.silu(y), mean, rstd

    operands = _operands((3, CHANNELS, 5, 7), torch.bfloat16)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for mine, theirs in zip(compiled(*(v.requires_grad_() for v in operands)), function(*operands), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02)  # checks dtypes, too


@pytest.mark.parametrize("backend", BACKENDS)
def test_far_from_zero_in_halves(backend: str) -> None:
    """A mean of many times the deviation, rounded to a half, would move all that is computed again."""
    use_kind(backend)
    torch.manual_seed(0)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.silu(F.group_norm(x, 2, weight, bias))

    operands = _operands((3, CHANNELS, 9, 5), torch.bfloat16, mean=30.0)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    assert len(_saved(compiled, function, operands)) == 1
    grad = torch.randn(operands[0].shape)
    ours, exact = (
        _trained(called, values, grad)[0]
        for called, values in ((compiled, operands), (function, [v.double() for v in operands]))
    )
    for mine, true in zip(ours, exact, strict=True):
        assert (mine.double() - true).abs().max() <= 0.02 * true.abs().max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_size(backend: str) -> None:
    """Sizes that are symbols, none among them."""
    use_kind(backend)
    torch.manual_seed(0)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.silu(F.group_norm(x, 4, weight, bias)) + F.gelu(F.layer_norm(x, x.shape[-1:]))

    compiled = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for shape in ((2, CHANNELS, 5, 7), (3, CHANNELS, 11, 13), (1, CHANNELS, 2, 64)):
        saved = _saved(compiled, function, _operands(shape, torch.float32))
        assert [value.shape for value in saved] == [torch.Size(shape)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_operand_that_lies_otherwise_than_the_result(backend: str) -> None:
    """The result is seen in another shape, in which what is computed of the operand cannot be without a copy."""
    use_kind(backend)
    torch.manual_seed(0)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.silu(F.layer_norm(x.transpose(0, 1), (CHANNELS,), weight, bias).view(-1, CHANNELS))

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    assert len(_saved(compiled, function, _operands((5, 7, CHANNELS), torch.float32))) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_that_are_given(backend: str) -> None:
    """A batch norm that is frozen while what is around it trains."""
    use_kind(backend)
    torch.manual_seed(0)

    def functional(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mean, variance = (torch.full((CHANNELS,), value, dtype=x.dtype) for value in (0.5, 2.0))
        given: list[Any] = [x, weight, bias, mean, variance, False, 0.1, 1e-5]
        return F.silu(torch.ops.aten._native_batch_norm_legit_functional.default(*given)[0])

    def frozen(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mean, variance = (torch.full((CHANNELS,), value, dtype=x.dtype) for value in (0.5, 2.0))
        return F.silu(F.batch_norm(x, mean, variance, weight, bias))

    operands = _operands((3, CHANNELS, 5, 7), torch.float32)
    grad = torch.randn(operands[0].shape)
    expected, _ = _trained(frozen, operands, grad)
    for function in (functional, frozen):
        torch._dynamo.reset()
        ours, _ = _trained(torch.compile(function, backend=backend, fullgraph=True), operands, grad)
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_running_statistics_follow(backend: str) -> None:
    use_kind(backend)
    torch.manual_seed(0)

    def model() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(3, CHANNELS, 3), nn.BatchNorm2d(CHANNELS), nn.SiLU()).to(torch.bfloat16)

    ours, theirs = model(), model()
    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.randn(2, 3, 9, 9, dtype=torch.bfloat16)
        for each in (compiled, theirs):
            result: Any = each(x)
            result.float().square().sum().backward()
    for (name, mine), other in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0.02, atol=0.02, msg=name)
    for (name, weight), parameter in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, parameter.grad, rtol=0.1, atol=0.5, msg=name)
