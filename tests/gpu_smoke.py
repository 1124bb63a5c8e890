"""The Triton backend on a real GPU, by hand: every claimed prim, a model's training step, tensors on several devices.

    python -m tests.gpu_smoke [--dtypes float32,bfloat16,int64,bool | all] [--prims GLOB ...] [--workers 8] [--seconds 480]

Needs a CUDA device and triton; the package need not be installed. Prints each failure as it comes and a short table last; exits
with 0 only when all is right. Measures nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

import vendor_sdk
import vendor_sdk.aot
import vendor_sdk.pipeline
from conformance import cases, program
from conformance.cases import Case
from conformance.judge import expected_result, judge
from tests import triton_attention, triton_products
from vendor_sdk import Effort, Kind

ROOT = Path(__file__).resolve().parent.parent
BACKEND = "triton_gpu"
CUDA = torch.device("cuda", 0)
USUAL = "float32,bfloat16,int64,bool"


def offer() -> None:
    """Registers the plugin where its distribution is not installed."""
    try:
        vendor_sdk.load(BACKEND)
    except vendor_sdk.BackendNotFoundError:
        from reference_backends.triton_gpu import plugin

        vendor_sdk.register(plugin)
        vendor_sdk.load(BACKEND)


# Prims


def certify(case: Case) -> tuple[str, str]:
    """What came of a case, in one word, and why."""
    row = case.row
    samples = cases.draw(case, Effort.QUICK, 0)
    if not samples:
        return "no samples", ""
    expectations = [expected_result(row, s) for s in samples]
    built = program.build(row.target, samples, [e.outline for e in expectations], CUDA)
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(built.module, built.inputs), backend=BACKEND)
    own = [p.placement for p in compiled.placements if p.prim == row.name]
    results = built.split(compiled(*built.inputs))
    torch.cuda.synchronize()
    for sample, expectation, result in zip(samples, expectations, results, strict=True):
        stray = [str(t.device) for t in result if t.device != CUDA]
        if stray:
            return "FAILED", f"{sample.label}: a result is on {stray[0]}"
        judgement = judge(row, sample, expectation, [t.cpu() for t in result])
        if judgement.problem:
            return "FAILED", f"{sample.label}: {judgement.problem}"
    kinds = {str(p.kind) for p in own}
    native = next((str(p.route) for p in own if p.kind is Kind.NATIVE), None)
    return native or next(iter(kinds), "rewritten"), next((p.reason for p in own if p.reason), "")


def work(names: Sequence[str]) -> None:
    """A worker: certifies cases and prints a line for each. Ends when an error of the device has made it useless."""
    offer()
    for name in names:
        prim, dtype = name.split("[")
        try:
            what, why = certify(Case(prim, dtype.rstrip("]")))
        except Exception as error:
            print("".join(traceback.format_exception(error)[-6:]), file=sys.stderr, flush=True)
            what, why = "FAILED", f"{type(error).__name__}: {error}"
        print(json.dumps([name, what, why]), flush=True)
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return


def certify_all(names: list[str], workers: int, seconds: float) -> dict[str, tuple[str, str]]:
    """Runs cases in worker processes; one that ends early is replaced, and the case it was at has failed."""
    outcome: dict[str, tuple[str, str]] = {}
    deadline = time.monotonic() + seconds

    def worker(share: list[str]) -> None:
        while share and time.monotonic() < deadline:
            command = [sys.executable, "-m", "tests.gpu_smoke", "--worker", *share]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
                timer = threading.Timer(max(deadline - time.monotonic(), 0), process.kill)
                timer.start()
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith('["'):
                        name, what, why = json.loads(line)
                        outcome[name] = (what, why)
                        share.remove(name)
                        if what == "FAILED":
                            print(f"{name}: {why}"[:400], flush=True)
                timer.cancel()
            if share and process.returncode and time.monotonic() < deadline:
                outcome[share[0]] = ("FAILED", f"the process ended with {process.returncode}")
                print(f"{share[0]}: {outcome[share.pop(0)][1]}", flush=True)

    threads = [threading.Thread(target=worker, args=(names[n::workers],)) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


# A model


class Block(torch.nn.Module):
    """A transformer block as GPT-2 has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention, self.join = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.join(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


class GPT2(torch.nn.Module):
    """GPT-2's architecture, small: 4 layers of width 128, 4 heads, 1,000 tokens, tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(1000, 128), torch.nn.Embedding(64, 128)
        self.blocks = torch.nn.ModuleList(Block(128, 4) for _ in range(4))
        self.last = torch.nn.LayerNorm(128)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.last(x) @ self.tokens.weight.T
        return F.cross_entropy(logits[:, :-1].reshape(-1, 1000), ids[:, 1:].reshape(-1))


compile_here = functools.partial(torch.compile, backend=functools.partial(vendor_sdk.aot.compile_dynamo, backend=BACKEND))


def train(model: torch.nn.Module, ids: torch.Tensor, run: Callable[..., Any]) -> list[torch.Tensor]:
    """Loss and gradients of one step, in float64 on the CPU."""
    model.zero_grad()
    loss = run(ids)
    loss.backward()
    return [t.detach().double().cpu() for t in (loss, *(p.grad for p in model.parameters() if p.grad is not None))]


def distance(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Largest error of a tensor, relative to its largest element."""
    return max(float((f - e).abs().max() / e.abs().max().clamp(min=1e-30)) for f, e in zip(found, exact, strict=True))


def gpt2(half: bool, dynamic: bool = False) -> str:
    """Forward and backward: the error against a float64 run, beside eager's own."""
    torch.manual_seed(0)
    model = GPT2().to(CUDA)
    compiled = compile_here(model, dynamic=dynamic)
    worst = [0.0, 0.0]
    graphs: list[Any] = []
    with vendor_sdk.pipeline.recording(graphs.append):
        for shape in ((4, 64), (3, 33)) if dynamic else ((4, 64),):
            ids = torch.randint(0, 1000, shape, device=CUDA)
            exact = train(double := GPT2().to(CUDA).double(), ids, _loaded(double, model))
            for n, run in enumerate((compiled, model)):
                with torch.autocast("cuda", torch.bfloat16, enabled=half):
                    worst[n] = max(worst[n], distance(train(model, ids, run), exact))
    kinds = Counter(str(p.placement.kind) for g in graphs for p in g.placements)
    text = (
        f"error {worst[0]:.1e}, eager's {worst[1]:.1e}; {len(graphs)} graphs: {', '.join(f'{n} {k}' for k, n in kinds.items())}"
    )
    return text if worst[0] <= 2 * worst[1] else f"FAILED {text}"


def _loaded(double: torch.nn.Module, model: torch.nn.Module) -> torch.nn.Module:
    double.load_state_dict(model.state_dict())
    return double


# Devices and random numbers


def same(function: Callable[..., Any], *inputs: Any) -> str:
    """Whether a function gives what it gives in eager mode, on the same devices."""
    for found, expected in zip(compile_here(function)(*inputs), function(*inputs), strict=True):
        if found.device != expected.device:
            return f"FAILED: a result is on {found.device}, eager's on {expected.device}"
        torch.testing.assert_close(found, expected)
    return "right"


def seeds() -> str:
    """One seed, one result; another seed, another."""
    compiled = compile_here(lambda x: F.dropout(x, 0.5) + torch.randn_like(x))
    x, found = torch.ones(1000, device=CUDA), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(compiled(x))
    return "right" if torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2]) else "FAILED"


def products_fused() -> str:
    """Matrix products, all of them in generated Triton."""
    with mock.patch("reference_backends.triton_gpu.products.takes_over", return_value=vendor_sdk.Supported()):
        found = triton_products.wrong(BACKEND, "cuda")
    return f"FAILED {found}" if found else "right"


def attention_by_all() -> str:
    """Attention in generated Triton and by every library that takes it, forward and backward."""
    found = {**triton_attention.wrong("cuda"), **triton_attention.wrong_ways("cuda")}
    return f"FAILED {found}" if found else "right"


def checks() -> dict[str, Callable[[], str]]:
    x = torch.randn(5, 7, device=CUDA)
    return {
        "GPT-2 float32": lambda: gpt2(False),
        "GPT-2 autocast bfloat16": lambda: gpt2(True),
        "GPT-2 dynamic": lambda: gpt2(False, dynamic=True),
        "seeds": seeds,
        "a scalar tensor on the CPU": lambda: same(lambda a, s: (a * s, a + s), x, torch.tensor(2.5)),
        "a constant": lambda: same(lambda a: (a + torch.tensor([1.0, 2, 3, 4, 5, 6, 7], device=a.device),), x),
        "made on the CPU, then moved": lambda: same(lambda a: (a + torch.arange(7).to(a.device),), x),
        "moved to the CPU": lambda: same(lambda a: ((a * 2).cpu(), (a * 2).cpu() + 1), x),
        "matrix products, fused": products_fused,
        "attention": attention_by_all,
        "another stream": lambda: _on_a_stream(x),
    }


def _on_a_stream(x: torch.Tensor) -> str:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        return same(lambda a: (a.softmax(1).cumsum(0),), x.clone())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--dtypes", default=USUAL)
    parser.add_argument("--prims", nargs="*", default=())
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=480, help="for the prims; what is not reached is counted as that")
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return 0
    offer()
    table: list[tuple[str, str]] = []
    for name, check in checks().items():
        torch.compiler.reset()
        try:
            table.append((name, check()))
        except Exception as error:
            traceback.print_exc()
            table.append((name, f"FAILED {type(error).__name__}: {error}".splitlines()[0][:200]))
    dtypes = () if options.dtypes == "all" else options.dtypes.split(",")
    names = [case.id for case in cases.select(options.prims, dtypes)]
    outcome = certify_all(names, options.workers, options.seconds)
    counts = Counter(what for what, _ in outcome.values())
    emitted = {name.split("[")[0] for name, (what, _) in outcome.items() if what in ("emitter", "kernel")}
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    for name, result in table:
        print(f"  {name:28} {result}")
    print(f"  {'prims':28} {len(emitted)} native in some dtype")
    came = ", ".join(f"{n} {what}" for what, n in counts.most_common())
    print(f"  {'cases':28} {came}, {len(names) - len(outcome)} not reached")
    failed = counts["FAILED"] + sum(result.startswith("FAILED") for _, result in table)
    print(f"  {'failures':28} {failed}")
    return 1 if failed or len(outcome) < len(names) else 0


if __name__ == "__main__":
    sys.exit(main())
