"""What a backend makes of torch's own operator database: results and gradients beside eager's, against float64.

    python -m benchmarks.operators [--backend cpp_cpu] [--device cpu] [--only 'nn.functional.*'] [--samples 3] [--dynamic]
                                   [--dtypes float32,int64,bool] [--json FILE]

Each operator is called through ``torch.compile`` with some of its samples of each dtype, and is "ok" if results and gradients
have eager's shapes, dtypes and infinities, and are at most ``TIMES`` as far from float64 as eager's are (equal, where they are
no floats). Where eager's overflow on the way, as halves do, they may be what float64's round to. Where torch's own
``aot_eager`` is wrong or fails in the same way, it is "torch's". Samples that eager refuses are left out; of random operators,
and where numbers of few values tie, only shapes and dtypes are compared. With ``--json``, results are written as they come, and
operators that stand there are not run again.
"""

from __future__ import annotations

import fnmatch
import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from torch.utils import _pytree as pytree

from benchmarks.apart import Outcome, run
from vendor_sdk import closure, torch_private

Tensor = torch.Tensor
Results = Sequence[Tensor | None]

DTYPES = "float32", "int64", "bool"
TIMES = 8
"""How many times as far from float64 as eager's a result may be."""
NOISE = 4e-6
"""Eager's distance is taken to be this at least, relative to the largest element of a result; of halves, what rounding does."""
HALVES = torch.bfloat16, torch.float16
TIES = frozenset(("kthvalue", "mode", "topk"))
"""Operators that leave open which of equal elements they take: samples of integers, bools and halves have many."""
UNSTABLE = frozenset(("msort",))
"""Operators whose results are open only in which of equal elements a gradient goes to: samples of halves have many."""
SECONDS = 300
"""An operator that takes longer has failed."""


class Call:
    """A sample of an operator as a function of its tensors.

    Args:
        entry: of the operator database.
        sample: of it.
        device: where the tensors are.
    """

    def __init__(self, entry: Any, sample: Any, device: str) -> None:
        self._op = entry.op
        self._leaves, self._spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self._positions = [place for place, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        self._inputs = [self._leaves[place].detach().to(device) for place in self._positions]
        self._learned = [self._leaves[place].requires_grad for place in self._positions]
        self._leaves = [device if leaf == "cpu" or isinstance(leaf, torch.device) else leaf for leaf in self._leaves]

    def function(self, *tensors: Tensor) -> list[Tensor]:
        values = list(self._leaves)
        for place, value in zip(self._positions, tensors, strict=True):
            values[place] = value
        first, args, kwargs = pytree.tree_unflatten(values, self._spec)
        result = self._op(first, *args, **kwargs)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]

    def run(self, function: Callable[..., list[Tensor]], *, wide: bool = False) -> Results:
        """Results, and the gradients of a sum with weights of all of them."""
        torch.manual_seed(0)
        given = [each.double() if wide and each.dtype.is_floating_point else each.clone() for each in self._inputs]
        given = [each.requires_grad_(learned) for each, learned in zip(given, self._learned, strict=True)]
        outputs = function(*given)
        roots = [output for output in outputs if output.requires_grad]
        if roots:
            weights = [torch.arange(1, root.numel() + 1).double().cos().reshape(root.shape) for root in roots]
            torch.autograd.backward(roots, [w.to(root.device, root.dtype) for w, root in zip(weights, roots, strict=True)])
        gradients = [each.grad for each, learned in zip(given, self._learned, strict=True) if learned]
        return [None if each is None else _dense(each.detach()) for each in (*outputs, *gradients)]


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def difference(found: Results, eager: Results, exact: Results, *, values: bool) -> str:
    """What is wrong in ``found``, in words; "" where nothing is.

    Args:
        exact: in float64.
        values: whether they are compared.
    """
    if len(found) != len(eager):
        return f"{len(found)} results, not {len(eager)}"
    for place, (own, its, true) in enumerate(zip(found, eager, exact, strict=True)):
        if own is None or its is None:
            if own is not its and bool((own if its is None else its).any()):  # type: ignore[union-attr]
                return f"result {place} is missing on one side"
            continue
        if own.shape != its.shape or own.dtype != its.dtype:
            return f"result {place} is {own.dtype}{list(own.shape)}, not {its.dtype}{list(its.shape)}"
        if values and (worst := _distance(own, its, true)) > TIMES:
            return f"result {place} is {worst:.3g} times as far from float64 as eager's"
    return ""


def _distance(own: Tensor, its: Tensor, true: Tensor | None) -> float:
    """In units of eager's."""
    if not its.numel():
        return 0.0
    if not its.dtype.is_floating_point and not its.dtype.is_complex:
        return 0.0 if torch.equal(own, its) else math.inf
    own, its = (torch.view_as_real(x.resolve_conj()) if x.dtype.is_complex else x for x in (own, its))
    if true is not None and true.dtype.is_complex:
        true = torch.view_as_real(true.resolve_conj())
    dtype, noise = its.dtype, max(NOISE, torch.finfo(its.dtype).eps if its.dtype in HALVES else 0)
    own, its = own.double(), its.double()
    if true is None or true.shape != its.shape or true.dtype != torch.float64:
        true = its
    rounded = true.to(dtype).double()
    alike = (own == its) | (own == rounded) | (own.isnan() & (its.isnan() | rounded.isnan()))
    if not bool((alike | own.isfinite() & (its.isfinite() | rounded.isfinite())).all()):
        return math.inf
    known = true.isfinite()
    off, allowed = (own - true)[known & own.isfinite()].abs(), (its - true)[known & its.isfinite()].abs()
    if not off.numel():
        return 0.0
    size = max(float(true[known].abs().max()), 1e-30)
    return float(off.max()) / max(float(allowed.max()) if allowed.numel() else 0.0, noise * size)


def judge(
    name: str,
    backend: str | Callable[..., Any],
    device: str,
    samples: int,
    dynamic: bool | None = None,
    dtypes: Sequence[str] = DTYPES,
) -> Outcome:
    """Runs all entries of this name, in full float32."""
    start, found, count = time.perf_counter(), Outcome(name, "ok"), 0
    torch.set_num_threads(1)
    with torch.backends.cudnn.flags(allow_tf32=False):
        for entry in closure.entries():
            if entry.full_name != name:
                continue
            for dtype in (getattr(torch, each) for each in dtypes):
                if dtype not in (entry.dtypes if device == "cpu" else entry.dtypesIfCUDA):
                    continue
                many = dtype.is_floating_point and dtype not in HALVES
                values = name not in closure.UNCOMPARED and (many or name not in TIES)
                values &= not (name in UNSTABLE and dtype in HALVES)
                for label, call in _calls(entry, dtype, device, samples):
                    try:
                        eager = call.run(call.function)
                    except Exception:  # in as many ways as there are operators
                        continue
                    count += 1
                    state, why = _judged(call, eager, backend, dynamic, values=values)
                    if STATES.index(state) > STATES.index(found.state):
                        found.state, found.why = state, f"{label}: {why}"
    if not count:
        found.state, found.why = "not built", "no sample that eager takes"
    found.seconds = time.perf_counter() - start
    return found


STATES = ("ok", "torch's", "wrong", "failed")
"""From the best to the worst."""


def _calls(entry: Any, dtype: torch.dtype, device: str, most: int) -> list[tuple[str, Call]]:
    """Samples that lie evenly in the list of all."""
    try:
        every = list(torch_private.samples(entry, dtype, dtype.is_floating_point and entry.supports_autograd))
    except Exception:  # torch's own samplers want packages, or devices, that are not here
        return []
    short = str(dtype).removeprefix("torch.")
    places = sorted({round(part * (len(every) - 1) / max(most - 1, 1)) for part in range(min(most, len(every)))})
    return [(f"{short} sample {place}", Call(entry, every[place], device)) for place in places]


def _judged(
    call: Call, eager: Results, backend: str | Callable[..., Any], dynamic: bool | None, *, values: bool
) -> tuple[str, str]:
    """State and reason of a sample of which ``eager`` are eager's results."""
    try:
        exact = call.run(call.function, wide=True)
    except Exception:
        exact = eager
    if len(exact) != len(eager):
        exact = eager

    def tried(name: str | Callable[..., Any], whole: bool) -> tuple[str, str]:
        torch.compiler.reset()
        try:
            found = call.run(torch.compile(call.function, backend=name, fullgraph=whole, dynamic=dynamic))
        except Exception as error:
            return "failed", f"{type(error).__name__}: {error}".strip()[:600]
        wrong = difference(found, eager, exact, values=values)
        return ("wrong", wrong) if wrong else ("ok", "")

    # Of parts, where torch cannot capture the whole. Otherwise Dynamo would leave to eager what a backend fails to compile.
    whole = tried(backend, True)[0] != "failed" or tried("aot_eager", True)[0] != "failed"
    state, why = tried(backend, whole)
    if state != "ok" and tried("aot_eager", whole)[0] == state:
        state = "torch's"
    return state, why


def names() -> list[str]:
    """Of all operators of the database, each once."""
    return list(dict.fromkeys(entry.full_name for entry in closure.entries()))


@click.command(help=(__doc__ or "").partition("\n\n")[0])
@click.option("--backend", default="cpp_cpu", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--only", default="*", help="Patterns of names, separated by commas.")
@click.option("--samples", default=3, show_default=True, help="Of each dtype, at most.")
@click.option("--dynamic", is_flag=True, help="Sizes are symbols, as torch.compile(dynamic=True) has them.")
@click.option("--dtypes", default=",".join(DTYPES), show_default=True, help="Of the samples, separated by commas.")
@click.option(
    "--json", "path", type=click.Path(path_type=Path), help="Write the results there, one a line; go on with what stands there."
)
def main(backend: str, device: str, only: str, samples: int, dynamic: bool, dtypes: str, path: Path | None) -> None:
    """Runs them."""
    chosen = dtypes.split(",")
    if unknown := [each for each in chosen if not isinstance(getattr(torch, each, None), torch.dtype)]:
        raise click.BadParameter(f"no dtype of torch: {', '.join(unknown)}", param_hint="--dtypes")
    wanted = [name for name in names() if any(fnmatch.fnmatch(name, pattern) for pattern in only.split(","))]
    judged = functools.partial(judge, backend=backend, device=device, samples=samples, dynamic=dynamic or None, dtypes=chosen)
    raise SystemExit(not run("operators", wanted, judged, SECONDS, path))


if __name__ == "__main__":
    main()
