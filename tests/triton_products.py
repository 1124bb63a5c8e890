"""Contractions in generated Triton, run through its interpreter: sizes, strides, dtypes, what is fused before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

import vendor_sdk
import vendor_sdk.aot
from reference_backends.triton_gpu import compiler, tuning

Tensor = torch.Tensor
Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
HALF = torch.bfloat16


def _draw(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randn(shape).to(dtype)


def _small(*shape: int) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def _scales(rows: int) -> Tensor:
    """Powers of two, with which products of 8-bit integers are halves."""
    return torch.exp2(torch.randint(-10, -4, (rows, 1)).float()).to(HALF)


def cases() -> Mapping[str, Case]:
    """Functions with inputs drawn afresh; each runs as one kernel."""
    nan = _draw(37, 29)
    nan[3, 5], nan[7, 11] = float("nan"), float("inf")
    return {
        "product": (torch.mm, (_draw(37, 29), _draw(29, 43))),
        "left transposed": (lambda a, b: a.t() @ b, (_draw(29, 37), _draw(29, 43))),
        "right transposed": (lambda a, b: a @ b.t(), (_draw(37, 29), _draw(43, 29))),
        "part of a larger matrix": (lambda a, b: a[3:40, 1:30] @ b, (_draw(50, 41), _draw(29, 43))),
        "float16": (lambda a, b: (a @ b).relu(), (_draw(70, 33, dtype=torch.float16), _draw(33, 20, dtype=torch.float16))),
        "float32": (lambda a, b: (a @ b).relu(), (_draw(70, 33, dtype=torch.float32), _draw(33, 20, dtype=torch.float32))),
        "halves of two kinds": (
            lambda a, b: a.float() @ b.float(),
            (_draw(20, 17), _draw(17, 30, dtype=torch.float16)),
        ),
        "a half and a float32": (lambda a, b: a.to(b.dtype) @ b, (_draw(20, 17), _draw(17, 30, dtype=torch.float32))),
        "batch": (lambda a, b: torch.bmm(a, b.transpose(1, 2)) * 0.5, (_draw(3, 37, 29), _draw(3, 43, 29))),
        "batch in two dimensions": (lambda a, b: a @ b, (_draw(2, 3, 20, 9), _draw(2, 3, 9, 33))),
        "linear and gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (_draw(37, 29), _draw(43, 29), _draw(43))),
        "residual and cast": (
            lambda x, w, b, r: (F.linear(x, w, b) + r).float(),
            (_draw(37, 29), _draw(43, 29), _draw(43), _draw(37, 43)),
        ),
        "two results": (lambda x, w: (x @ w, torch.relu(x @ w)), (_draw(37, 29), _draw(29, 43))),
        "a result stored transposed": (lambda x, w: (x @ w).t().contiguous() * 2, (_draw(37, 29), _draw(29, 43))),
        "dequantized": (lambda x, q, s: x @ (q.to(x.dtype) * s).t(), (_draw(37, 64), _small(43, 64), _scales(43))),
        "converted": (lambda x, q: x @ q.to(x.dtype).t(), (_draw(37, 64), _small(43, 64))),
        "not a number": (lambda a, b: (a @ b).exp(), (nan, _draw(29, 43))),
        "few terms": (torch.mm, (_draw(40, 1), _draw(1, 50))),
        "large tiles": (lambda a, b, r: a @ b + r, (_draw(260, 130), _draw(130, 520), _draw(260, 520))),
    }


def wrong(name: str, device: str = "cpu") -> dict[str, str]:
    """What is wrong on the backend ``name``, whose tensors are on ``device``, against float64, by case."""
    found: dict[str, str] = {}
    for what, (function, drawn) in cases().items():
        inputs = tuple(x.to(device) for x in drawn)
        compiled = vendor_sdk.compile_graph(vendor_sdk.trace(function, inputs), backend=name)
        if compiled.launches != 1:
            found[what] = f"{compiled.launches} kernels"
        results = compiled(*inputs)
        exact = function(*(x.double() if x.dtype.is_floating_point else x for x in inputs))
        for result, expected in zip(results, exact if isinstance(exact, tuple) else (exact,), strict=True):
            rough = result.dtype != torch.float32
            try:
                # Factors and results are rounded once: half a unit in the last place each.
                torch.testing.assert_close(
                    result.double(),
                    expected.double(),
                    rtol=1.2e-2 if rough else 2e-6,
                    atol=2e-2 if rough else 1e-5,
                    equal_nan=True,
                )
            except AssertionError as error:
                found[what] = str(error)
    found.update(_dynamic(name, device))
    found.update(_bare(device))
    return found


def _bare(device: str) -> dict[str, str]:
    """The product that is measured."""
    found = {}
    for turned in (False, True):
        p = tuning.Product(2, 37, 43, 29, HALF, turned)
        left, right, out = tuning.operands(p, device)
        launch = compiler.load(tuning.source(p)).launch_product_0
        launch((left, right.transpose(1, 2) if turned else right, out), (), 2, 37, (43, 29), out.numel())
        try:
            torch.testing.assert_close(out.double(), left.double() @ right.double(), rtol=1.2e-2, atol=2e-2)
        except AssertionError as error:
            found[f"bare, {turned}"] = str(error)
    return found


def _dynamic(name: str, device: str) -> dict[str, str]:
    """One kernel for all sizes."""
    graphs: list[Any] = []

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu()

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return vendor_sdk.aot.compile_dynamo(module, inputs, backend=name)

    compiled = torch.compile(function, backend=backend, dynamic=True)
    for m, k, n in ((37, 29, 43), (5, 70, 20), (64, 64, 128)):
        x, w = _draw(m, k).to(device), _draw(k, n).to(device)
        torch.testing.assert_close(compiled(x, w).double(), function(x.double(), w.double()), rtol=1.2e-2, atol=2e-2)
    return {} if len(graphs) == 1 else {"dynamic": f"{len(graphs)} graphs for three shapes"}
