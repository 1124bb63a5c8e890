"""Complex numbers as pairs of real ones: the same numbers, in loops, and complex in memory where others want them so."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import vendor_sdk
from vendor_sdk.contract.placement import Kind
from vendor_sdk.ir.primgraph import tensors_of
from vendor_sdk.normalize.pairs import in_pairs

Tensor = torch.Tensor


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions."""
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def arithmetic(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * y + 1j * x - 2.5, x - y, 2 * x + (1 - 2j), -x, x * y.real, y.imag - x


def parts(x: Tensor) -> tuple[Tensor, ...]:
    return (x.conj() * x).real + x.abs() + x.imag, x.angle() + torch.view_as_real(x).sum(-1)


def shown(x: Tensor) -> tuple[Tensor, ...]:
    return x.t(), x[1:3], x.t() * x[0, 0], (x.t() * 2).contiguous(), (x + 1).unfold(1, 2, 3)


def summed(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(1), x.mean(0, keepdim=True), x.sum(), torch.cat([x, x * 2], 1), x.flip(0) + x, torch.stack([x, -x])


def summed_in(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """In a dtype that is named."""
    wide, of = torch.complex128, torch.complex64
    return x.sum(0, dtype=of), x.sum(1, dtype=wide), y.sum(0, dtype=of), y.mean(1, dtype=of), x.cumsum(0, dtype=of)


def picked(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    return (x * 2)[i], x.index_select(1, i), torch.where(x.real > 0, x, -x), (x == x.flip(0)) | (x != x)


def transformed(x: Tensor, y: Tensor) -> Tensor:
    """A convolution around."""
    both: Tensor = torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(y), x.shape[-1])
    return both


def between(x: Tensor, y: Tensor) -> Tensor:
    """What has a rule, between what has none and is read as parts itself."""
    both: Tensor = torch.fft.ifft(torch.fft.fft(x) * y) * 2
    return both


def others(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """What has no rule, between what does."""
    return x / (y * 2) + x / 3 + (x * y).exp(), (x @ y.t()) * x.abs().sum()


def drawn(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    return torch.randn(shape, dtype=dtype)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "rotated": (rotated, (torch.randn(2, 5, 3, 8), torch.randn(5, 1, 4))),
    "arithmetic": (arithmetic, (drawn(5, 6), drawn(5, 6))),
    "of other precision": (arithmetic, (drawn(5, 6), drawn(5, 6, dtype=torch.complex128))),
    "broadcast": (lambda x, y: (x * y, x + y, y - x), (drawn(5, 6), drawn(6))),
    "real factor": (lambda x, y: (x * y + y, y * x), (drawn(5, 6), torch.randn(6))),
    "parts": (parts, (drawn(5, 6, dtype=torch.complex128),)),
    "shown": (shown, (drawn(5, 6),)),
    "summed": (summed, (drawn(5, 6),)),
    "summed in a dtype": (summed_in, (drawn(5, 6), torch.randn(5, 6))),
    "picked": (picked, (drawn(5, 6), torch.tensor([4, 0, 2, 2, 1]))),
    "transformed": (transformed, (torch.randn(5, 64), torch.randn(5, 64))),
    "between": (between, (drawn(5, 16), drawn(5, 16))),
    "compared in the wider type": (
        lambda x, y: (x == y, y != x),
        (drawn(5, 6), drawn(5, 6).to(torch.complex128) * (1 + 1e-12)),
    ),
    "others": (others, (drawn(5, 6), drawn(5, 6))),
    "converted": (lambda x: x.to(torch.complex128) * x.real.to(torch.complex64), (drawn(5, 6),)),
    "empty": (lambda x, y: x * y + 1, (drawn(0, 6), drawn(0, 6))),
    "one number": (lambda x, y: x * y + x.conj(), (drawn(), drawn())),
}


def flat(outputs: Any) -> Sequence[Tensor]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def alike(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(flat(found), flat(wanted), strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert one.is_conj() == other.is_conj()
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers(name: str, dynamic: bool, backend: str) -> None:
    function, inputs = CASES[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for _ in range(2):
        alike(compiled(*inputs), function(*inputs))


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("picked", "empty", "summed in a dtype", "compared in the wider type")]
)
def test_the_same_gradients(name: str, backend: str) -> None:
    function, inputs = CASES[name]
    torch._dynamo.reset()
    given = [t.clone().requires_grad_() for t in inputs]

    def loss(outputs: Any) -> Tensor:
        return sum((t.abs() ** 2).sum() if t.is_complex() else t.sum() for t in flat(outputs))  # type: ignore[return-value]

    found = torch.autograd.grad(loss(torch.compile(function, backend=backend)(*given)), given)
    alike(found, torch.autograd.grad(loss(function(*given)), given), 1e-4)


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
def test_what_is_written_to_inputs(backend: str) -> None:
    torch._dynamo.reset()
    x, y = drawn(5, 6), drawn(3)
    given, other = x.clone(), y.clone()
    conjugate = other.conj()
    torch.compile(lambda x, y: x.mul_(2j).add_(1)[:3, 0].add_(y), backend=backend)(given, conjugate)
    x.mul_(2j).add_(1)[:3, 0].add_(y.conj())
    alike(given, x)
    assert torch.equal(other, y)


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_special_values(backend: str) -> None:
    values = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 2.0]
    x = torch.complex(*torch.meshgrid(torch.tensor(values), torch.tensor(values), indexing="ij")).flatten()
    found = torch.compile(lambda x: (x[:, None] * x, x.abs(), -x), backend=backend)(x)
    for one, other in zip(found, (x[:, None] * x, x.abs(), -x), strict=True):
        pairs = [torch.view_as_real(t) if t.is_complex() else t for t in (one, other)]
        torch.testing.assert_close(*pairs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
def test_the_other_factor_of_a_complex_matrix_is_the_adjoint(upper: bool, backend: str) -> None:
    a, b = drawn(3, 5, 5), drawn(3, 5, 2)
    factor = torch.linalg.cholesky(a @ a.mH + 5 * torch.eye(5), upper=upper)

    def solved(factor: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.cholesky_solve(b, factor, upper),
            torch.cholesky_inverse(factor, upper),
            torch.cholesky_inverse(factor[0], upper),
        )

    torch._dynamo.reset()
    alike(torch.compile(solved, backend=backend)(factor, b), solved(factor, b))


def graph_of(name: str) -> vendor_sdk.PrimGraph:
    function, inputs = CASES[name]
    return vendor_sdk.trace(function, inputs)


@pytest.mark.parametrize("name", ["rotated", "arithmetic", "parts", "summed", "picked", "between"])
def test_no_arithmetic_of_complex_numbers_is_left(name: str) -> None:
    graph = in_pairs(graph_of(name))
    graph.verify()
    aten = torch.ops.aten
    memory = (aten.view_as_complex.default, aten.view_as_real.default, aten._fft_c2c.default, operator.getitem)
    complex_calls = {
        node.target
        for node in graph.calls()
        for value in (v for n in (node, *node.all_input_nodes) for v in tensors_of(n.meta["val"]))
        if value.dtype.is_complex and node.target not in memory
    }
    assert not complex_calls


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_views_of_complex_inputs_stay_views(backend: str) -> None:
    x = drawn(5, 6)
    compiled = torch.compile(lambda x: (x.t(), x[1:3], x * 2), backend=backend)
    turned, part, _ = compiled(x)
    assert turned.data_ptr() == x.data_ptr()
    assert part.data_ptr() == x[1:].data_ptr()


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
@pytest.mark.parametrize("name", ["rotated", "arithmetic", "summed"])
def test_nothing_runs_on_the_host(name: str, backend: str) -> None:
    """Views apart, which show what is there."""
    function, inputs = CASES[name]
    torch._dynamo.reset()
    explanation = vendor_sdk.explain(function, *inputs, backend=backend, show=False)
    hosted = {p.prim for p in explanation.placements() if p.placement.kind is Kind.HOST}
    assert not hosted - {"view_as_complex", "view_as_real"}


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_a_rotation_is_two_kernels(backend: str) -> None:
    """The angles' cosines and sines, and the rotation, which reads pairs and stores pairs."""
    function, inputs = CASES["rotated"]
    torch._dynamo.reset()
    explanation = vendor_sdk.explain(function, *inputs, backend=backend, show=False)
    assert len(explanation.graphs[0].kernels.kernels) <= 2
