"""Matrix products and attention of ``triton_gpu`` on this machine's GPU, beside the libraries and Inductor, in one process.

    python -m benchmarks.gpu_products [--only 'attention*'] [--peers eager,inductor] [--rounds 5] [--tiles] [--json FILE]

Products: TFLOP/s of the product alone, whatever is fused with it, so that figures of one row compare: ``cublas`` is the bare
product, ``eager`` has its epilogue after it, ``fused`` is ``triton_gpu`` made to fuse, ``triton_gpu`` chooses. Attention:
TFLOP/s counting half of the scores of a causal mask, and all of other masks; ``generated``, ``cudnn``, ``flash`` and
``efficient`` are called alone, ``sdpa`` is torch's choice and ``dispatch`` this backend's. Attention with dropout: milliseconds
of torch's function, in eager and compiled, forward and with its gradients. With ``--tiles``, every size of tiles of all is also
timed: what the constants of ``products.py`` and ``flash_launch.py`` stand for. Results are first compared with eager ones in
float32, with dropout with the operator's definition. Short tables end it.
"""

from __future__ import annotations

import functools
import json
import random
import statistics
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click
import torch
import torch.nn.functional as F

from benchmarks import gpu
from benchmarks.gpu import CALLS, chosen, covers_for, environment, seconds

Tensor = torch.Tensor
HALF = torch.bfloat16


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    """Normal numbers on the device."""
    return (torch.randn(shape, device="cuda") * scale).to(HALF)


@dataclass(frozen=True)
class Product:
    """A function of tensors around one product of (rows, terms) by (terms, columns), ``times`` such ones in all."""

    function: Callable[..., Tensor]
    rows: int
    terms: int
    columns: int
    more: Callable[[], tuple[Tensor, ...]] = lambda: ()
    times: int = 1

    def inputs(self) -> tuple[Tensor, ...]:
        return draw(self.rows, self.terms), draw(self.columns, self.terms, scale=self.terms**-0.5), *self.more()

    @property
    def flops(self) -> int:
        return 2 * self.times * self.rows * self.terms * self.columns


def _bias_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def _bias_tanh(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def _residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return r + F.linear(x, w, b)


def _swiglu(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(x @ w.t()) * (x @ v.t())


def _gelu_backward(g: Tensor, w: Tensor, h: Tensor) -> Tensor:
    grad: Tensor = torch.ops.aten.gelu_backward(g @ w.t(), h)
    return grad


def _dequantized(x: Tensor, w: Tensor, q: Tensor, s: Tensor) -> Tensor:
    return x @ (q.to(x.dtype) * s).t()


def _eight_bits(rows: int, columns: int) -> tuple[Tensor, ...]:
    return torch.randint(-127, 128, (rows, columns), device="cuda", dtype=torch.int8), draw(rows, 1, scale=0.01)


T = 8192
PRODUCTS: Mapping[str, Product] = {
    "product": Product(lambda x, w: x @ w.t(), T, T, T),
    "relu, 8192 terms": Product(lambda x, w: (x @ w.t()).relu(), T, T, T),
    "bias + gelu, GPT-2": Product(_bias_gelu, T, 768, 3072, lambda: (draw(3072),)),
    "bias + gelu (tanh), GPT-2": Product(_bias_tanh, T, 768, 3072, lambda: (draw(3072),)),
    "bias + residual, GPT-2": Product(_residual, T, 3072, 768, lambda: (draw(768), draw(T, 768))),
    "bias + residual, 768 terms": Product(_residual, T, 768, 768, lambda: (draw(768), draw(T, 768))),
    "gelu backward, GPT-2": Product(_gelu_backward, T, 768, 3072, lambda: (draw(T, 3072),)),
    "swiglu, 2048 terms": Product(_swiglu, 4096, 2048, 5632, lambda: (draw(5632, 2048, scale=0.02),), 2),
    "bias + gelu, 2048 terms": Product(_bias_gelu, 4096, 2048, 8192, lambda: (draw(8192),)),
    "bias + gelu, 4096 terms": Product(_bias_gelu, 4096, 4096, 4096, lambda: (draw(4096),)),
    "bias + gelu, 64 rows": Product(_bias_gelu, 64, 4096, 4096, lambda: (draw(4096),)),
    "int8 weights": Product(_dequantized, 4096, 4096, 4096, lambda: _eight_bits(4096, 4096)),
    "int8 weights, 16 rows": Product(_dequantized, 16, 4096, 4096, lambda: _eight_bits(4096, 4096)),
}


WINDOW = 256
DOCUMENTS = 6


@dataclass(frozen=True)
class Attention:
    """Shapes of one attention."""

    batch: int
    heads: int
    rows: int
    width: int
    causal: bool = True
    shared: int = 0
    mask: str = ""
    dropout: float = 0.0

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        shared = self.shared or self.heads
        mask = None
        if self.mask == "padding":
            mask = torch.arange(self.rows, device="cuda") < torch.randint(1, self.rows, (self.batch, 1, 1, 1), device="cuda")
        elif self.mask == "window":
            back = torch.arange(self.rows, device="cuda")[:, None] - torch.arange(self.rows, device="cuda")
            mask = ((back >= 0) & (back < WINDOW))[None, None]
        elif self.mask == "documents":
            of = torch.randint(DOCUMENTS, (self.batch, 1, self.rows), device="cuda").sort(2).values
            mask = of[..., :, None] == of[..., None, :]
        elif self.mask:
            mask = draw(self.batch, 1, self.rows, self.rows)
        return (
            draw(self.batch, self.heads, self.rows, self.width),
            draw(self.batch, shared, self.rows, self.width),
            draw(self.batch, shared, self.rows, self.width),
            mask,
        )

    @property
    def flops(self) -> float:
        return 4.0 * self.batch * self.heads * self.rows**2 * self.width / (2 if self.causal else 1)


ATTENTION: Mapping[str, Attention] = {
    "causal, d 128": Attention(4, 32, 4096, 128),
    "causal, d 64": Attention(4, 32, 4096, 64),
    "d 128": Attention(4, 32, 4096, 128, False),
    "d 64": Attention(4, 32, 4096, 64, False),
    "causal, d 64, 1024 rows": Attention(8, 12, 1024, 64),
    "causal, d 128, 16384 rows": Attention(1, 16, 16384, 128),
    "padding, d 64, 512 rows": Attention(32, 12, 512, 64, False, mask="padding"),
    "padding, d 128, 1024 rows": Attention(8, 16, 1024, 128, False, mask="padding"),
    "numbers added, d 64": Attention(4, 16, 2048, 64, False, mask="numbers"),
    "numbers added, d 128": Attention(4, 16, 2048, 128, False, mask="numbers"),
    "window of 256, d 64": Attention(4, 16, 4096, 64, False, mask="window"),
    "documents, d 128": Attention(2, 16, 4096, 128, False, mask="documents"),
    "causal, d 128, 8 heads of keys": Attention(4, 32, 4096, 128, shared=8),
}

DROPOUT: Mapping[str, Attention] = {
    "d 64, 1024 rows": Attention(8, 12, 1024, 64, False, dropout=0.1),
    "causal, d 64, 1024 rows": Attention(8, 12, 1024, 64, dropout=0.1),
    "d 128, 2048 rows": Attention(4, 16, 2048, 128, False, dropout=0.1),
    "padding, d 64, 512 rows": Attention(32, 12, 512, 64, False, mask="padding", dropout=0.1),
}

DROPOUT_BLOCKS: Mapping[str, tuple[tuple[int, int, int, int], ...]] = {
    "forward": ((128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3), (128, 128, 8, 2)),
    "query": ((128, 64, 8, 2), (128, 32, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2), (128, 128, 8, 2), (128, 64, 8, 1)),
    "key": ((32, 128, 8, 2), (64, 128, 8, 2), (64, 128, 8, 1), (32, 64, 4, 2), (64, 64, 4, 1), (32, 128, 8, 1)),
}
"""Rows, keys, warps and stages of the functions of attention with dropout, by how ``flash_launch`` names them."""


def measure(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of each call: medians of rounds in which all run, in random order."""
    filler = torch.empty(1 << 26, device="cuda")
    target = torch.empty_like(filler)

    def cover() -> None:
        target.copy_(filler)

    covers = {name: covers_for(call, cover) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            samples[name].append(statistics.median(seconds(calls[name], cover, covers[name]) for _ in range(CALLS)))
    return {name: statistics.median(each) for name, each in samples.items()}


def wrong(result: Any, exact: Any) -> str:
    """What is wrong with a result, judged by the largest of the exact one."""
    for one, other in zip(result if isinstance(result, tuple) else (result,), exact, strict=False):
        error = ((one.float() - other.float()).abs().max() / other.float().abs().max().clamp_min(1e-6)).item()
        if not error < 2e-2:
            return f"wrong: {error:.3g} of the largest"
    return ""


def kept(calls: Mapping[str, Callable[[], Any]], exact: Any, row: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """The calls whose results are right; the others' faults are noted."""
    found = {}
    for name, call in calls.items():
        try:
            fault = wrong(call(), exact)
            torch.cuda.synchronize()
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"[:300]
        if fault:
            row[name] = fault
        else:
            found[name] = call
    return found


@contextmanager
def fusing() -> Iterator[None]:
    """Every product that can be fused is."""
    from vendor_sdk import Supported

    with mock.patch("reference_backends.triton_gpu.products.takes_over", return_value=Supported()):
        yield


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function: compiled code belongs to a function's code and to the backend's name."""
    return types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


def compiled(function: Callable[..., Any], name: str, inputs: Sequence[Tensor]) -> Callable[[], Any]:
    again = gpu.compiled(name, own_code(function))
    again(*inputs)
    return lambda: again(*inputs)


def product(p: Product, peers: Sequence[str], rounds: int, tiles: bool) -> dict[str, Any]:
    """TFLOP/s by contestant."""
    inputs = p.inputs()
    x, w = inputs[:2]
    turned = w.t()
    exact = (p.function(*(t.float() if t.is_floating_point() else t for t in inputs)),)
    row: dict[str, Any] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for name in (*peers, "triton_gpu"):
        try:
            calls[name] = (lambda: p.function(*inputs)) if name == "eager" else compiled(p.function, name, inputs)
        except Exception as error:
            row[name] = f"{type(error).__name__}: {error}"[:300]
    with fusing():
        calls["fused"] = compiled(p.function, "triton_gpu", inputs)
    if tiles:
        calls.update(_tilings(p, inputs))
    calls = kept(calls, exact, row)
    del exact
    calls["cublas"] = lambda: torch.mm(x, turned)
    for name, time in measure(calls, rounds).items():
        row[name] = p.flops / (p.times if name == "cublas" else 1) / time / 1e12
    return row


def _tilings(p: Product, inputs: Sequence[Tensor]) -> dict[str, Callable[[], Any]]:
    """The fused function with each size of tiles."""
    from reference_backends.triton_gpu import compiler, products
    from reference_backends.triton_gpu.machine import machine

    found = {}
    for t in products.candidates(1, p.rows, p.columns, p.terms, "halves", machine()):
        for stages in {t.stages, t.stages + 1, max(t.stages - 1, 2)}:
            sized = products.Tiles(t.x, t.y, t.k, t.warps, stages, t.rate)
            if sized.shared(2) > machine().shared or 8 * t.x * t.y < min(p.rows, 128) * 128:
                continue
            compiler.load.cache_clear()  # launchers keep their plans
            with fusing(), mock.patch.object(products, "candidates", return_value=[sized]):
                found[f"{t.x}x{t.y}x{t.k} {t.warps}w {stages}s"] = compiled(p.function, "triton_gpu", inputs)
    compiler.load.cache_clear()
    return found


def attend(a: Attention, rounds: int, tiles: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """TFLOP/s by contestant, forward and backward."""
    from reference_backends.triton_gpu import attention as own
    from reference_backends.triton_gpu import flash_launch

    query, key, value, mask = a.inputs()
    grouped = {"enable_gqa": True} if a.shared else {}
    given = {"attn_mask": mask, "is_causal": a.causal, **grouped}
    wide = [t.float() for t in (query, key, value)]
    exact = (F.scaled_dot_product_attention(*wide, **{**given, "attn_mask": mask if a.mask != "numbers" else mask.float()}),)  # type: ignore[arg-type, union-attr]
    row: dict[str, Any] = {}
    back: dict[str, Any] = {}
    kwargs = {"attn_mask": mask}
    calls: dict[str, Callable[[], Any]] = {
        "generated": lambda: flash_launch.forward(query, key, value, a.causal, mask, None),
        "sdpa": lambda: F.scaled_dot_product_attention(query, key, value, **given),  # type: ignore[arg-type]
        "dispatch": lambda: own.KERNELS[own.FORWARD].call(query, key, value, 0.0, a.causal, **kwargs),
    }
    ways = own.ways(own.problem(query, key, value, a.causal, mask, None, backward=False), own.capability())
    for way in set(ways) & {"cudnn", "flash", "efficient"}:
        calls[way] = functools.partial(_alone, own, way, own.FORWARD, (query, key, value, 0.0, a.causal), kwargs)
    if tiles:
        for keys, warps, stages in (
            (32, 4, 3),
            (64, 4, 2),
            (64, 4, 3),
            (64, 4, 4),
            (64, 8, 2),
            (64, 8, 3),
            (128, 8, 2),
            (128, 8, 3),
        ):
            for rows in (64, 128):
                calls[f"{rows}x{keys} {warps}w {stages}s"] = _blocked((rows, keys, warps, stages), a, (query, key, value, mask))
    calls = kept(calls, exact, row)
    del exact, wide
    for name, time in measure(calls, rounds).items():
        row[name] = a.flops / time / 1e12
    leaves = [t.detach().requires_grad_() for t in (query, key, value)]
    out = F.scaled_dot_product_attention(*leaves, **given)  # type: ignore[arg-type]
    grad = torch.randn_like(out)
    result, saved = own.KERNELS[own.FORWARD].call(query, key, value, 0.0, a.causal, **kwargs)
    arguments = (grad, query, key, value, result, saved, 0.0, a.causal)
    expected = torch.autograd.grad(out, leaves, grad, retain_graph=True)
    backward: dict[str, Callable[[], Any]] = {
        "sdpa": lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True),
        "generated": lambda: flash_launch.backward(*arguments[:6], a.causal, mask, None),
        "dispatch": lambda: own.KERNELS[own.BACKWARD].call(*arguments, **kwargs),
    }
    ways = own.ways(own.problem(query, key, value, a.causal, mask, None, backward=True), own.capability())
    for way in set(ways) & {"cudnn", "flash", "efficient"}:
        backward[way] = functools.partial(_alone, own, way, own.BACKWARD, arguments, kwargs)
    for name, time in measure(kept(backward, expected, back), rounds).items():
        back[name] = 2.5 * a.flops / time / 1e12
    return row, back


def _alone(own: Any, way: str, composite: str, arguments: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One way, which may refuse."""
    with mock.patch.object(own, "ways", return_value=(way,)):
        return own.KERNELS[composite].call(*arguments, **kwargs)


def _blocked(blocks: tuple[int, int, int, int], a: Attention, given: Sequence[Any]) -> Callable[[], Any]:
    from reference_backends.triton_gpu import flash, flash_launch

    query, key, value, mask = given
    form = flash_launch.form_of(query, key, value, a.causal, mask, None, None)
    made = flash_launch.FlashLauncher(flash.forward, form, lambda *_: blocks, 0)

    def call() -> Any:
        with mock.patch.object(flash_launch, "forward_launcher", return_value=made):
            return flash_launch.forward(query, key, value, a.causal, mask, None)

    return call


def dropped(a: Attention, peers: Sequence[str], rounds: int, tiles: bool) -> dict[str, dict[str, Any]]:
    """Milliseconds by contestant, by direction; with ``tiles``, of each function with blocks of each size."""
    from reference_backends.triton_gpu import flash_launch

    # As projections leave them: rows outside of heads.
    *operands, mask = a.inputs()
    leaves = [t.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in operands if t is not None]
    grad = torch.randn_like(leaves[0])

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p=a.dropout, is_causal=a.causal)

    fault = _definition_missed(a, [t.detach() for t in leaves], mask)
    found: dict[str, dict[str, Any]] = {"forward": {}, "with gradients": {}}
    forward: dict[str, Callable[[], Any]] = {}
    both: dict[str, Callable[[], Any]] = {}
    for name in (*peers, "triton_gpu"):
        if name == "triton_gpu" and fault:
            found["forward"][name] = found["with gradients"][name] = fault
            continue
        forward[name] = (lambda: attend(*leaves)) if name == "eager" else compiled(attend, name, leaves)
        both[name] = functools.partial(lambda call: torch.autograd.grad(call(), leaves, grad), forward[name])
    for direction, calls in (("forward", forward), ("with gradients", both)):
        found[direction] |= {name: 1e3 * time for name, time in measure(calls, rounds).items()}
    if tiles:
        query, key, value = (t.detach() for t in leaves)
        seed = torch.full((1,), 5, device="cuda")
        rest = a.causal, mask, None, flash_launch.Dropout(seed, a.dropout)
        out, saved = flash_launch.forward(query, key, value, *rest)
        for at, (name, candidates) in enumerate(DROPOUT_BLOCKS.items()):
            functions: dict[str, Callable[[], Any]] = {}
            for blocks in candidates:
                own_launchers = flash_launch.forward_launcher, flash_launch.backward_launchers
                for each in own_launchers:
                    each.cache_clear()
                with mock.patch.object(flash_launch, f"{name}_blocks", lambda *_, blocks=blocks: blocks):
                    calls_ = flash_launch.forward_calls(query, key, value, *rest)[1]
                    calls_ += flash_launch.backward_calls(grad, query, key, value, out, saved, *rest)[1]
                    calls_[at].launch()
                functions[f"{blocks[0]}x{blocks[1]} {blocks[2]}w {blocks[3]}s"] = calls_[at].launch
            for each in own_launchers:
                each.cache_clear()
            found[f"{name} alone"] = {what: 1e3 * time for what, time in measure(functions, rounds).items()}
    return found


def _definition_missed(a: Attention, operands: Sequence[Tensor], mask: Tensor | None) -> str:
    """What is wrong with the operator's results and gradients by its definition; the empty string when nothing is."""
    from reference_backends.triton_gpu import attention as own

    seed = torch.full((1,), 5, device="cuda")
    few = [t[:1] for t in operands]
    own_mask = mask[:1] if mask is not None else None
    rest = seed, a.dropout, a.causal, own_mask
    grad = torch.randn_like(few[0])
    found = own.KERNELS[own.GENERAL_FORWARD].call(*few, *rest)
    found += own.KERNELS[own.GENERAL_BACKWARD].call(grad, *few, *found, *rest)
    with mock.patch.object(own, "ways", return_value=("scores",)):
        exact = own.KERNELS[own.GENERAL_FORWARD].call(*(t.float() for t in few), *rest)
        exact += own.KERNELS[own.GENERAL_BACKWARD].call(grad.float(), *(t.float() for t in few), *exact, *rest)
    return wrong(found, exact)


def table(title: str, rows: Mapping[str, Mapping[str, Any]], first: Sequence[str], digits: int = 0) -> list[str]:
    """Lines of a table of TFLOP/s, or of what has so many digits behind the point."""
    lines = [f"{title:34} " + " ".join(f"{name[:12]:>12}" for name in first)]
    for what, row in rows.items():
        cells = (
            f"{v:.{digits}f}" if isinstance(v := row.get(name), float) else str(v or "-").split(":")[0][:12] for name in first
        )
        lines.append(f"{what:34} " + " ".join(f"{cell:>12}" for cell in cells))
    return lines


def ratios(rows: Mapping[str, Mapping[str, Any]], name: str, others: Sequence[str]) -> str:
    """The geometric mean and the least of a contestant's speed over the best of others."""
    found = []
    for row in rows.values():
        known = [row[o] for o in others if isinstance(row.get(o), float)]
        if known and isinstance(row.get(name), float):
            found.append(row[name] / max(known))
    if not found:
        return f"{name}: nothing measured"
    return (
        f"{name} / best of {', '.join(others)}: geometric mean {statistics.geometric_mean(found):.3f}, least {min(found):.2f}"
    )


@click.command()
@click.option(
    "--only", default=["*"], multiple=True, help="Names or globs: 'product: NAME', 'attention: NAME', 'dropout: NAME'."
)
@click.option("--peers", default="eager,inductor", help="eager, and compilers as NAME or NAME:MODE.")
@click.option("--rounds", default=5)
@click.option("--tiles", is_flag=True, help="Time every size of tiles too.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result there.")
def main(only: tuple[str, ...], peers: str, rounds: int, tiles: bool, json_path: Path | None) -> None:
    """Time matrix products and attention on this machine's GPU."""
    kinds = {"product": PRODUCTS, "attention": ATTENTION, "dropout": DROPOUT}
    wanted = chosen({f"{kind}: {what}": what for kind, rows in kinds.items() for what in rows}, only)
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA device: this benchmark times kernels on one")
    others = [p for p in peers.split(",") if p]
    results: dict[str, dict[str, dict[str, Any]]] = {"products": {}, "forward": {}, "backward": {}, "dropout": {}}

    def tell(kind: str, what: str) -> None:
        row = results[kind][what]
        cells = (f"{n} {v:.{3 * (kind == 'dropout')}f}" if isinstance(v, float) else f"{n} {v}" for n, v in row.items())
        print(f"{kind} {what}: {'  '.join(cells)}", flush=True)

    with torch.no_grad():
        for what, p in PRODUCTS.items():
            if f"product: {what}" in wanted:
                results["products"][what] = product(p, others, rounds, tiles)
                tell("products", what)
                torch.cuda.empty_cache()
    for what, a in ATTENTION.items():
        if f"attention: {what}" in wanted:
            results["forward"][what], results["backward"][what] = attend(a, rounds, tiles)
            tell("forward", what)
            tell("backward", what)
            torch.cuda.empty_cache()
    for what, a in DROPOUT.items():
        if f"dropout: {what}" in wanted:
            for direction, row in dropped(a, others, rounds, tiles).items():
                results["dropout"][f"{what}, {direction}"] = row
                tell("dropout", f"{what}, {direction}")
            torch.cuda.empty_cache()
    if json_path:
        json_path.write_text(json.dumps({**environment(), "rounds": rounds, **results}, indent=1) + "\n")
    libraries = ("sdpa", "cudnn", "flash", "efficient")
    lines = table("products, TFLOP/s", results["products"], ("cublas", *others, "fused", "triton_gpu"))
    lines += table("attention forward, TFLOP/s", results["forward"], (*libraries, "generated", "dispatch"))
    lines += table("attention backward, TFLOP/s", results["backward"], (*libraries, "generated", "dispatch"))
    alone = {what: row for what, row in results["dropout"].items() if not what.endswith("alone")}
    lines += table("attention with dropout, ms", alone, (*others, "triton_gpu"), 3)
    lines += [
        ratios(results["products"], "triton_gpu", others),
        ratios(results["products"], "triton_gpu", ("cublas",)),
        ratios(results["forward"], "generated", libraries),
        ratios(results["forward"], "dispatch", (*libraries, "generated")),
        ratios(results["backward"], "dispatch", libraries),
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
