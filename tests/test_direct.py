"""Inference calls the compiled graph itself where AOTAutograd's wrapper has nothing to do around it, and only there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from tests.toys import register_toys
from vendor_sdk import ALL, Backend, aot, hookimpl
from vendor_sdk.torch_private import dynamo


class Noting:
    """Kernels that note what is around them: whether AOTAutograd's wrapper is, and the mode of gradients."""

    def __init__(self) -> None:
        self.wrapped: list[bool] = []
        self.gradients: list[bool] = []

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name="noting", version="1", dtypes=frozenset(ALL))

    @hookimpl
    def kernels(self) -> Mapping[str, Callable[..., Any]]:
        def noting(function: Callable[..., Any]) -> Callable[..., Any]:
            def kernel(*args: Any, **kwargs: Any) -> Any:
                self.wrapped.append("runtime_wrapper" in _callers())
                self.gradients.append(torch.is_grad_enabled())
                return function(*args, **kwargs)

            return kernel

        return {"mul": noting(torch.mul), "add": noting(torch.add), "mm": noting(torch.mm)}


def _callers() -> Iterator[str]:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        yield frame.f_code.co_name


@pytest.fixture
def noting(register: Callable[..., str]) -> Iterator[Noting]:
    torch._dynamo.reset()
    plugin = Noting()
    register(plugin)
    yield plugin
    torch._dynamo.reset()


def _doubled(x: Tensor) -> Tensor:
    return x * 2


def _several(x: Tensor) -> tuple[Any, ...]:
    return x * 2, None, {"sum": x + 1}, 3


def _module(x: Tensor) -> Tensor:
    return MODEL(x) * 2


MODEL = nn.Linear(3, 3).requires_grad_(False)


@pytest.mark.parametrize("function", [_doubled, _several, _module])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_inference_is_direct(function: Callable[..., Any], mode: Any, noting: Noting) -> None:
    compiled = torch.compile(function, backend="noting")
    x = torch.randn(2, 3)
    with mode():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), function(x))
        assert compiled(x) is not compiled(x)
    assert not any(noting.wrapped)
    assert set(noting.gradients) == {mode is torch.enable_grad}


def test_gradients_that_nobody_may_take_are_off(noting: Noting) -> None:
    """Without a result that needs gradients, the graph is one for inference, also of tensors that do."""
    compiled = torch.compile(lambda x: x.detach() * 2, backend="noting")
    assert not compiled(torch.randn(3, requires_grad=True)).requires_grad
    assert noting.wrapped == [True]
    assert noting.gradients == [False]
    with torch.no_grad():
        compiled(torch.randn(3, requires_grad=True))
    assert noting.wrapped == [True, False]


def test_a_change_of_the_mode_finds_another_way(noting: Noting) -> None:
    compiled = torch.compile(_doubled, backend="noting")
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    result = compiled(x)
    result.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert noting.wrapped == [False, True, False, False]  # forward, forward, backward, forward


def test_under_autocast_the_wrapper_turns_that_off(noting: Noting) -> None:
    compiled = torch.compile(lambda x: x @ x * 2, backend="noting")
    x = torch.randn(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        result = compiled(x)
    assert result.dtype == torch.bfloat16
    assert all(noting.wrapped)
    assert compiled(x).dtype == torch.float32
    assert not any(noting.wrapped[2:])


def _writes(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def _resizes(x: Tensor) -> Tensor:
    x.t_()
    return x * 2


def _alias(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x.t()


def _itself(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x


def _of_one_value(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y.t()


def _leaves_gradients_off(x: Tensor) -> Tensor:
    y = x * 2
    torch.set_grad_enabled(False)
    return y


WRAPPED = _writes, _alias, _leaves_gradients_off


@pytest.mark.parametrize("function", [*WRAPPED, _resizes, _itself, _of_one_value])
def test_what_the_wrapper_does_stays_its_part(function: Callable[..., Any], noting: Noting) -> None:
    compiled = torch.compile(function, backend="noting")
    with torch.enable_grad():
        for _ in range(2):
            torch.set_grad_enabled(True)
            ours = torch.randn(2, 3)
            theirs = ours.clone()
            version = ours._version
            got, on = compiled(ours), torch.is_grad_enabled()
            torch.set_grad_enabled(True)
            expected = function(theirs)
            assert on == torch.is_grad_enabled()
            torch.testing.assert_close(got, expected)
            torch.testing.assert_close(ours, theirs)
            assert (ours._version > version) is (theirs._version > 0)
    if function in WRAPPED:
        assert all(noting.wrapped)


def test_arguments_given_twice(noting: Noting) -> None:
    compiled = torch.compile(lambda x, y: x * y + 1, backend="noting")
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    for given in ((x, x), (x, y), (y, y)):
        torch.testing.assert_close(compiled(*given), given[0] * given[1] + 1)


def test_sizes_that_vary(noting: Noting) -> None:
    compiled = torch.compile(lambda x: (x * 2, x.shape[0]), backend="noting", dynamic=True)
    for rows in (3, 4):
        result, size = compiled(torch.ones(rows, 2))
        assert result.shape == (rows, 2)
        assert size == rows


@torch.library.custom_op("vendor_sdk_tests::twice", mutates_args=())
def _twice(x: Tensor) -> Tensor:
    return x * 2


@_twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_operators_of_others_are_left_to_the_wrapper(noting: Noting) -> None:
    """It examines their results in the first call."""
    compiled = torch.compile(lambda x: _twice(x) * 2, backend="noting")
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x * 4)
    assert all(noting.wrapped)


def test_graphs_from_the_cache_are_direct_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(aot, "WORTH_STORING", 0)
    found: list[bool] = []
    direct = aot._direct

    def noted(run: Callable[..., Any], inputs: Any) -> Callable[..., Any]:
        made = direct(run, inputs)
        found.append(made is not run)
        return made

    monkeypatch.setattr(aot, "_direct", noted)
    register_toys()
    for hits in (0, 1):
        torch.compiler.reset()
        counters.clear()
        x, y = torch.randn(3), torch.randn(3)
        torch.testing.assert_close(torch.compile(_doubled, backend="toyloops")(x), _doubled(x))
        torch.testing.assert_close(torch.compile(_writes, backend="toyloops")(y.clone()), _writes(y.clone()))
        assert counters["aot_autograd"]["autograd_cache_hit"] == 2 * hits
    assert found == [True, False] * 2
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "idle"),
    [
        ("EffectTokensWrapper.post_compile.<locals>.inner_fn", True),
        ("FunctionalizedRngRuntimeWrapper.post_compile.<locals>.wrapper", True),
        ("AOTDispatchSubclassWrapper.post_compile.<locals>.inner_fn", False),
    ],
)
def test_layers_that_do_nothing_are_looked_through(name: str, idle: bool) -> None:
    """Torch 2.11 has them around every graph, by the names of what they wrap; other torches may run these tests."""

    def graph(args: list[Any]) -> list[Any]:
        return args

    @functools.wraps(graph)
    def layer(args: list[Any]) -> Any:
        return graph(args)

    layer.__code__ = layer.__code__.replace(co_qualname=name)
    assert dynamo.inside(layer) is (graph if idle else layer)
