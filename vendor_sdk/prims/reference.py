"""References: what a prim's results must be, evaluated in float64 from the row, with the shape and dtype torch gives them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vendor_sdk import torch_private
from vendor_sdk.prims.samples import Sample
from vendor_sdk.torch_private import pytree

if TYPE_CHECKING:
    from vendor_sdk.prims.row import Row


@dataclass(frozen=True, eq=False)
class Expected:
    """One result of a call.

    Attributes:
        value: float64 or complex128 where the result is floating or complex, exact elsewhere; a Python number for a symbolic
            prim; ``None`` where no value can be expected (random prims, an undefined result).
        shape, dtype: what torch gives the result; ``None`` for results that are no tensors.
    """

    value: Any
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None


@dataclass(frozen=True)
class OwnDtype:
    """Marks a row's reference as defined on the sample's own dtypes: no upcast (``nextafter``, ``view.dtype``)."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def reference(row: Row, sample: Sample, device: str = "cpu", target: Callable[..., Any] | None = None) -> tuple[Expected, ...]:
    """The results that ``row`` must give for ``sample`` on a device of the type ``device``, one entry a result.

    The row's reference (or its torch operator) runs on the CPU with floating tensors upcast to float64, which is exact for
    every dtype of the opset; shapes and dtypes are those of ``target`` (the operator) at the sample's own dtypes. What a
    composite saves in another shape on ``device`` than on the CPU has no value.
    """
    from vendor_sdk.prims.bounds import Distribution

    target, whole = target or row.target, hasattr(row, "targets")
    outline = flat(_faked(target, sample, device) if whole else outlined(target, sample, device))
    if isinstance(row.bound, Distribution) or sample.undefined:
        return tuple(Expected(None, _shape(item), _dtype(item)) for item in outline)
    values = flat(evaluate(row, sample.args, sample.kwargs))
    return tuple(
        Expected(None if whole and _shape(value) != _shape(item) else value, _shape(item), _dtype(item))
        for value, item in zip(values, outline, strict=True)
    )


def evaluate(row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The row's reference at ``args`` and ``kwargs``, upcast to float64; same structure as the prim's result."""
    function = getattr(row, "reference", None) or target_of(row)
    if isinstance(function, OwnDtype):
        return function(*args, **kwargs)
    with float64_by_default():
        return function(*upcast(args), **upcast(dict(kwargs)))


def target_of(row: Row) -> Callable[..., Any]:
    """What a row's samples are called with: the prim's target, the overload of a composite that its claimants receive."""
    function: Callable[..., Any] = row.target
    return function


_WIDE = {
    torch.float8_e4m3fn: torch.float64,
    torch.float8_e5m2: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


def upcast(value: Any) -> Any:
    """``value`` with every floating tensor and floating dtype in it widened to float64 (complex to complex128)."""
    if isinstance(value, torch.Tensor):
        return value.to(_WIDE[value.dtype]) if value.dtype in _WIDE else value
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    return _mapped(upcast, value)


def outlined(target: Callable[..., Any], sample: Sample, device: str = "cpu") -> Any:
    """The results of a call as tensors without data: torch's meta kernel, or, where torch has none, the call itself.

    ``device`` is the type of the device that the tensors of a program are on: torch announces other shapes for some.
    """
    schema = getattr(target, "_schema", None)
    if device == "cpu" and schema is not None and schema.name in _SHAPED_BY_DEVICE:
        return _faked(target, sample)
    if schema is None or schema.name in _META_DIFFERS:  # no schema: higher-order and Python operators
        return target(*sample.args, **sample.kwargs)
    kwargs = _on_meta(sample.kwargs)
    if any(argument.name == "device" for argument in schema.arguments):
        kwargs["device"] = torch.device("meta")
    try:
        return target(*_on_meta(sample.args), **kwargs)
    except NotImplementedError:
        return target(*sample.args, **sample.kwargs)


_META_DIFFERS = frozenset(("aten::_local_scalar_dense",))
"""Operators whose meta kernel has no value to read."""
_SHAPED_BY_DEVICE = frozenset(("aten::_embedding_bag",))
"""Operators whose results that only feed torch's own backward have other shapes on the CPU than on any other device, which the
meta kernel is for. A compiled graph counts on what torch announces; its CPU kernel does not always keep to that."""


def _faked(target: Callable[..., Any], sample: Sample, device: str = "cpu") -> Any:
    """As ``outlined``, but as on ``device``: the statistics that normalizations save have other dtypes and sizes on the CPU
    than elsewhere."""
    with torch_private.new_fake_mode() as mode:

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            return mode.from_tensor(tensor, static_shapes=True).to(device)

        args, kwargs = pytree.tree_map_only(torch.Tensor, fake, (sample.args, sample.kwargs))
        return target(*args, **kwargs)


def flat(result: Any) -> list[Any]:
    """The results of a call in order: tensors, numbers or ``None``."""
    if isinstance(result, list | tuple):
        return [item for part in result for item in flat(part)]
    return [result]


def _on_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else _mapped(_on_meta, value)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: function(item) for key, item in value.items()}
    if isinstance(value, list):
        return [function(item) for item in value]
    return tuple(function(item) for item in value) if type(value) is tuple else value


def _shape(item: Any) -> tuple[int, ...] | None:
    return tuple(item.shape) if isinstance(item, torch.Tensor) else None


def _dtype(item: Any) -> torch.dtype | None:
    return item.dtype if isinstance(item, torch.Tensor) else None


_default_dtype_lock = threading.RLock()


@contextmanager
def float64_by_default() -> Iterator[None]:
    """Integers that become floating become float64. The default dtype is global to the process, hence the lock."""
    with _default_dtype_lock:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
