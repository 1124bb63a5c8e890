"""Transformers on this machine's GPU: ``triton_gpu`` launched one by one and recorded, beside eager and Inductor.

    python -m benchmarks.gpu_models [--only 'gpt2*'] [--peers eager,inductor] [--rounds 7] [--profile] [--json FILE]

Models from their configurations with random weights, twelve layers, bfloat16, all contestants in one process. A figure is the
median over rounds of seconds from the call to the end of its work on the device: what a user waits for. Contestants are
``eager``; ``inductor`` and ``triton_gpu``, each also with ``/recorded`` (``mode="reduce-overhead"``). Rows are inference at few
tokens, where the host is the limit, and at many, and a training step with AdamW. Losses and logits are compared with eager's in
float32 first. With ``--profile``, what the host does in a call of ``triton_gpu`` is listed, the most expensive function first.
"""

from __future__ import annotations

import copy
import cProfile
import datetime
import fnmatch
import io
import json
import pstats
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

from benchmarks.gpu import driver

DEVICE = "cuda"
RECORDED = "/recorded"
CALLS = 10
"""Of a sample, which is their median."""
WARM = 5
APART = 0.05
"""Largest difference from eager in float32, in parts of the magnitude of what is compared."""


@dataclass(frozen=True)
class Row:
    """A model at one size: ``batch`` times ``length`` tokens."""

    kind: str
    batch: int
    length: int
    training: bool = False

    def build(self) -> nn.Module:
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, f"{self.kind}Config")
        if self.kind == "Bert":
            model: nn.Module = transformers.BertForMaskedLM(config())
        else:
            given = {} if self.kind == "GPT2" else {"num_hidden_layers": 12, "hidden_size": 2048, "intermediate_size": 5632,
                                                    "num_attention_heads": 16, "num_key_value_heads": 4}  # fmt: skip
            model = transformers.AutoModelForCausalLM.from_config(config(use_cache=False, **given))  # type: ignore[no-untyped-call]
        for each in model.modules():
            if isinstance(each, nn.Dropout):
                each.p = 0.0  # so that results can be compared
        return model.to(DEVICE).train(self.training)

    def tokens(self, model: nn.Module) -> torch.Tensor:
        return torch.randint(3, model.config.vocab_size, (self.batch, self.length), device=DEVICE)  # type: ignore[union-attr, arg-type]


ROWS: Mapping[str, Row] = {
    "gpt2 1x128": Row("GPT2", 1, 128),
    "gpt2 8x1024": Row("GPT2", 8, 1024),
    "gpt2 1x128 training": Row("GPT2", 1, 128, training=True),
    "gpt2 8x1024 training": Row("GPT2", 8, 1024, training=True),
    "bert 1x128": Row("Bert", 1, 128),
    "bert 32x512": Row("Bert", 32, 512),
    "bert 32x512 training": Row("Bert", 32, 512, training=True),
    "llama 1x128": Row("Llama", 1, 128),
    "llama 4x2048": Row("Llama", 4, 2048),
    "llama 4x2048 training": Row("Llama", 4, 2048, training=True),
}


def contestant(name: str, row: Row, model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """A call that gives logits, or does one training step and gives its loss."""
    backend, recorded, _ = name.partition(RECORDED)
    own = copy.deepcopy(model).to(torch.bfloat16)
    call: Callable[..., Any] = own
    if backend == "inductor":
        call = torch.compile(own, mode="reduce-overhead" if recorded else None)
    elif backend != "eager":
        call = torch.compile(own, backend=backend, options={"mode": "reduce-overhead"} if recorded else None)
    if not row.training:

        def infer(ids: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                logits: torch.Tensor = call(input_ids=ids).logits
            return logits

        return infer
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-5, fused=True)

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = call(input_ids=ids, labels=ids).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def truth(row: Row, model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Eager's logits or loss, in float32."""
    with torch.no_grad():
        made = model(input_ids=ids, labels=ids)
    return (made.loss if row.training else made.logits).clone()  # type: ignore[no-any-return]


def sample(call: Callable[[torch.Tensor], Any], ids: torch.Tensor) -> float:
    found = []
    for _ in range(CALLS):
        torch.accelerator.synchronize()
        start = time.perf_counter()
        call(ids)
        torch.accelerator.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def contest(
    row: Row, names: list[str], rounds: int
) -> tuple[dict[str, Any], dict[str, Callable[[torch.Tensor], Any]], torch.Tensor]:
    """Seconds by contestant, or what was wrong; the calls; what they are called with."""
    model = row.build()
    ids = row.tokens(model)
    wanted = truth(row, model, ids)
    result: dict[str, Any] = {}
    calls: dict[str, Callable[[torch.Tensor], Any]] = {}
    for name in names:
        torch._dynamo.reset()
        try:
            call = contestant(name, row, model)
            off = float((call(ids).float() - wanted).norm() / wanted.norm())
            if not off < APART:
                result[name] = f"wrong: off by {off:.3g}"
                continue
            for _ in range(WARM):
                call(ids)
            calls[name] = call
        except Exception as error:
            result[name] = f"{type(error).__name__}: {error}"[:500]
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            samples[name].append(sample(calls[name], ids))
    result.update({name: statistics.median(found) for name, found in samples.items()})
    return result, calls, ids


def host_profile(call: Callable[[torch.Tensor], Any], ids: torch.Tensor) -> Iterator[str]:
    """Lines about what the host does in a call."""
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(20):
        call(ids)
    profiler.disable()
    torch.cuda.synchronize()
    out = io.StringIO()
    pstats.Stats(profiler, stream=out).sort_stats("tottime").print_stats(25)
    yield from (line[:128] for line in out.getvalue().splitlines()[6:])


@click.command()
@click.option("--backend", default="triton_gpu", help="The backend to time.")
@click.option("--only", default=["*"], multiple=True, help="Names or globs.")
@click.option("--peers", default="eager,inductor,inductor/recorded")
@click.option("--rounds", default=7)
@click.option("--profile", is_flag=True, help="List what the host does in a call of the backend.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result there.")
def main(backend: str, only: tuple[str, ...], peers: str, rounds: int, profile: bool, json_path: Path | None) -> None:
    """Time transformers on this machine's GPU."""
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA device: this benchmark times models on one")
    names = [*(p for p in peers.split(",") if p), backend, f"{backend}{RECORDED}"]
    table: dict[str, Any] = {}
    for name, row in ROWS.items():
        if not any(fnmatch.fnmatchcase(name, glob) for glob in only):
            continue
        found, calls, ids = contest(row, names, rounds)
        table[name] = found
        cells = (f"{n} {1e3 * found[n]:.2f} ms" if isinstance(found[n], float) else f"{n} {found[n][:90]}" for n in names)
        print(f"{name:22} {'  '.join(cells)}", flush=True)
        if profile and backend in calls:
            print("\n".join(host_profile(calls[backend], ids)), flush=True)
        del calls
        torch.cuda.empty_cache()
    if json_path:
        machine = {"device": torch.cuda.get_device_name(), "driver": driver(), "torch": torch.__version__}
        machine |= {"triton": version("triton"), "date": f"{datetime.date.today()}", "transformers": version("transformers")}
        json_path.write_text(json.dumps({**machine, "rounds": rounds, "contestants": names, "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
