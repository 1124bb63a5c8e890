"""Models on this machine's GPU: ``triton_gpu`` launched one by one and recorded, beside eager and Inductor.

    python -m benchmarks.gpu_models [--only 'gpt2*'] [--peers eager,inductor] [--rounds 21] [--cold] [--profile] [--json FILE]

Models from transformers' configurations with random weights, twelve layers (ResNet: its 50), and a U-Net of diffusion models
(``diffusion.py``), bfloat16, all contestants in one process. A figure is the median over rounds of seconds from the call to
the end of its work on the device: what a user waits for. Rounds, each of all contestants in random order, go on for
``LASTING`` seconds at least. Contestants are ``eager``; ``inductor`` and ``triton_gpu``, each also with ``/recorded``
(``mode="reduce-overhead"``). Rows are inference at few tokens or images, where the host is the limit, and at many, and a
training step with AdamW. Losses and logits are compared with eager's in float32 first. Beside its time stands a contestant's
memory: the most that tensors ask for during a call, less what was there before the contestant, so with its copy of the model
and its optimizer's state. Recorded graphs keep memory that is not counted as allocated, and have no such figure. With
``--cold``, compilers' caches are empty, and the seconds of the first call are noted: after imports and a first compilation of
a small function, before anything recorded. With ``--profile``, what the host does in a call of ``triton_gpu`` is listed, the
most expensive function first.
"""

from __future__ import annotations

import contextlib
import copy
import cProfile
import gc
import io
import json
import os
import pstats
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

from benchmarks.diffusion import UNet
from benchmarks.gpu import chosen, environment
from benchmarks.spawn import CACHES

DEVICE = "cuda"
RECORDED = "/recorded"
CALLS = 5
"""Of a sample, which is their median: the first finds the processor's caches cold, and the pace of virtual processors changes
within tens of milliseconds, so that many short samples tell contestants apart better than a few long ones."""
LASTING = 15.0
"""Seconds that rounds take at least: the pace of a virtual processor can change for seconds, too, and calls of a millisecond
would all fall into one."""
WARM = 5
DEPTH = 120
"""Calls deep a round begins, at most: as many small frames as fill a chunk of 16 KiB, the unit in which CPython 3.11 to 3.13
takes stack from the system. A call at its end takes and gives back a chunk for each function that it calls; one depth for all
rounds would meet that always or never."""
APART = 0.05
"""Largest difference from eager in float32, in parts of the magnitude of what is compared."""


Inputs = Mapping[str, torch.Tensor]
Call = Callable[[Inputs], torch.Tensor]
IMAGE = 224
"""Pixels of a side."""
LATENTS = 4, 64, 64
"""Of an image that is made."""


@dataclass(frozen=True)
class Row:
    """A model at one size: ``batch`` times ``length`` tokens, or ``batch`` images, which a ``UNet`` makes."""

    kind: str
    batch: int
    length: int = 0
    training: bool = False

    def build(self) -> nn.Module:
        import transformers

        torch.manual_seed(0)
        given = WIDE if self.kind == "Llama" else {}
        if self.kind == "UNet":
            model: nn.Module = UNet()
        elif not self.length:
            config = getattr(transformers, f"{self.kind}Config")(num_labels=1000)
            model = getattr(transformers, f"{self.kind}ForImageClassification")(config)
        elif self.kind == "Bert":
            model = transformers.BertForMaskedLM(transformers.BertConfig())
        else:
            config = getattr(transformers, f"{self.kind}Config")(use_cache=False, **given)
            model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        for each in model.modules():
            if isinstance(each, nn.Dropout):
                each.p = 0.0  # so that results can be compared
        return model.to(DEVICE).train(self.training)

    def inputs(self, model: nn.Module) -> Inputs:
        """By name; with labels in training."""
        if self.kind == "UNet":
            latents = {name: torch.randn(self.batch, *LATENTS, device=DEVICE) for name in ("pixel_values", "labels")}
            times = torch.randint(1000, (self.batch,), device=DEVICE)
            return {**latents, "times": times} if self.training else {"pixel_values": latents["pixel_values"], "times": times}
        if self.length:
            ids = torch.randint(3, model.config.vocab_size, (self.batch, self.length), device=DEVICE)  # type: ignore[union-attr, arg-type]
            return {"input_ids": ids, **({"labels": ids} if self.training else {})}
        images = {"pixel_values": torch.randn(self.batch, 3, IMAGE, IMAGE, device=DEVICE)}
        return {**images, **({"labels": torch.randint(1000, (self.batch,), device=DEVICE)} if self.training else {})}


WIDE = {"num_hidden_layers": 12, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
        "num_key_value_heads": 4}  # fmt: skip
"""Llama's, of about a billion parameters."""


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
    "vit 64": Row("ViT", 64),
    "vit 64 training": Row("ViT", 64, training=True),
    "resnet 1": Row("ResNet", 1),
    "resnet 64": Row("ResNet", 64),
    "resnet 64 training": Row("ResNet", 64, training=True),
    "unet 1": Row("UNet", 1),
    "unet 8": Row("UNet", 8),
    "unet 8 training": Row("UNet", 8, training=True),
}


@dataclass
class Found:
    """Of a contestant.

    Attributes:
        seconds: of a call.
        peak_bytes: that tensors ask for at most during a call, with what the contestant keeps; None where that is not counted.
        first_seconds: of the first call, where that is measured.
        rounds: that the time is the median of.
        wrong: why there is nothing.
    """

    seconds: float | None = None
    peak_bytes: int | None = None
    first_seconds: float | None = None
    rounds: int = 0
    wrong: str = ""


def compiled(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as the contestant runs it."""
    backend, recorded, _ = name.partition(RECORDED)
    if backend == "eager":
        return function
    backend, _, mode = backend.partition(":")
    if backend == "inductor":
        return torch.compile(function, mode="reduce-overhead" if recorded else mode or None)
    return torch.compile(function, backend=backend, options={"mode": "reduce-overhead"} if recorded else None)


def halved(model: nn.Module) -> nn.Module:
    """A copy in bfloat16, as ``from_pretrained`` loads one: what no checkpoint has (the frequencies of rotary embeddings) keeps
    its dtype, without which late tokens would be turned to other places."""
    own = copy.deepcopy(model).to(torch.bfloat16)
    saved = own.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name not in saved:
            path, _, attribute = name.rpartition(".")
            setattr(own.get_submodule(path), attribute, buffer.clone())
    return own


def contestant(name: str, row: Row, model: nn.Module) -> Call:
    """A call that gives logits, or does one training step and gives its loss."""
    own = halved(model)
    call = compiled(name, own)
    if not row.training:

        def infer(inputs: Inputs) -> torch.Tensor:
            with torch.no_grad():
                logits: torch.Tensor = call(**inputs).logits
            return logits

        return infer
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-5, fused=True)

    def step(inputs: Inputs) -> torch.Tensor:
        loss: torch.Tensor = call(**inputs).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def truth(row: Row, model: nn.Module, inputs: Inputs) -> torch.Tensor:
    """Eager's logits or loss, in float32."""
    with torch.no_grad():
        made = model(**inputs)
    return (made.loss if row.training else made.logits).clone()  # type: ignore[no-any-return]


def sample(call: Call, inputs: Inputs, depth: int = 0) -> float:
    """Seconds of a call that begins so many calls deep."""
    if depth:
        return sample(call, inputs, depth - 1)
    found = []
    for _ in range(CALLS):
        torch.accelerator.synchronize()
        start = time.perf_counter()
        call(inputs)
        torch.accelerator.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def requested(when: str) -> int:
    """Bytes that tensors ask for. What the allocator gives them is more, by up to a MiB each, as free blocks are just there."""
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{when}"])


def entered(
    name: str, row: Row, model: nn.Module, inputs: Inputs, wanted: torch.Tensor, cold: bool
) -> tuple[Found, Call | None]:
    """A contestant that gave what is wanted and is warm, or why there is none."""
    torch._dynamo.reset()
    gc.collect()
    # The workspaces of cuBLAS, which Inductor's recordings give back, are nobody's: they are there before everyone.
    square = torch.ones(64, 64, device=DEVICE, dtype=torch.bfloat16)
    torch.addmm(square[0], square, square)
    torch.mm(square, square)
    torch.bmm(square[None], square[None])
    before = requested("current")
    found = Found()
    try:
        if cold:
            compiled(name, lambda x: x + 1)(torch.zeros(64, device=DEVICE))
        call = contestant(name, row, model)
        torch.accelerator.synchronize()
        start = time.perf_counter()
        made = call(inputs)
        torch.accelerator.synchronize()
        if cold and not name.endswith(RECORDED) and name != "eager":
            found.first_seconds = time.perf_counter() - start
        off = float((made.float() - wanted).norm() / wanted.norm())
        if not off < APART:
            found.wrong = f"off by {off:.3g}"
            return found, None
        for _ in range(WARM):
            call(inputs)
        if not name.endswith(RECORDED):
            del made
            gc.collect()  # of what compilation left
            torch.cuda.reset_peak_memory_stats()
            call(inputs)
            found.peak_bytes = requested("peak") - before
    except Exception as error:
        found.wrong = f"{type(error).__name__}: {error}"[:500]
        return found, None
    return found, call


def contest(row: Row, names: list[str], rounds: int, cold: bool) -> tuple[dict[str, Found], dict[str, Call], Inputs]:
    """What was found by contestant; the calls; what they are called with."""
    model = row.build()
    inputs = row.inputs(model)
    wanted = truth(row, model, inputs)
    inputs = {name: given.to(torch.bfloat16) if given.is_floating_point() else given for name, given in inputs.items()}
    result: dict[str, Found] = {}
    calls: dict[str, Call] = {}
    for name in names:
        result[name], call = entered(name, row, model, inputs, wanted, cold)
        if call is not None:
            calls[name] = call
    samples: dict[str, list[float]] = {name: [] for name in calls}
    start, done = time.perf_counter(), 0
    while calls and (done < rounds or time.perf_counter() - start < LASTING):
        done += 1
        depth = random.randrange(DEPTH)
        for name in random.sample(list(calls), len(calls)):
            samples[name].append(sample(calls[name], inputs, depth))
    for name, seconds in samples.items():
        result[name].seconds, result[name].rounds = statistics.median(seconds), done
    return result, calls, inputs


def line(found: Found) -> str:
    """For people."""
    if found.seconds is None:
        return f"wrong: {found.wrong[:90]}"
    peak = "" if found.peak_bytes is None else f" {found.peak_bytes >> 20} MiB"
    first = "" if found.first_seconds is None else f" first {found.first_seconds:.1f} s"
    return f"{1e3 * found.seconds:.2f} ms{peak}{first}"


def host_profile(call: Call, inputs: Inputs) -> Iterator[str]:
    """Lines about what the host does in a call."""
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(20):
        call(inputs)
    profiler.disable()
    torch.cuda.synchronize()
    out = io.StringIO()
    pstats.Stats(profiler, stream=out).sort_stats("tottime").print_stats(25)
    yield from (text[:128] for text in out.getvalue().splitlines()[6:])


@click.command()
@click.option("--backend", default="triton_gpu", help="The backend to time.")
@click.option("--only", default=["*"], multiple=True, help="Names or globs.")
@click.option(
    "--peers", default="eager,inductor,inductor/recorded", help="eager, and inductor, with :MODE or /recorded where wanted."
)
@click.option("--rounds", default=21)
@click.option("--cold", is_flag=True, help="Start with empty caches and time first calls.")
@click.option("--profile", is_flag=True, help="List what the host does in a call of the backend.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result there.")
def main(
    backend: str, only: tuple[str, ...], peers: str, rounds: int, cold: bool, profile: bool, json_path: Path | None
) -> None:
    """Time models on this machine's GPU."""
    rows = chosen(ROWS, only)
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA device: this benchmark times models on one")
    names = [*(p for p in peers.split(",") if p), backend, f"{backend}{RECORDED}"]
    table: dict[str, Any] = {}
    machine = {**environment(), "transformers": version("transformers")}
    with tempfile.TemporaryDirectory() if cold else contextlib.nullcontext() as folder:
        if folder:
            os.environ.update({variable: f"{folder}/{name}" for variable, name in CACHES.items()})
        for name, row in rows.items():
            found, calls, inputs = contest(row, names, rounds, cold)
            table[name] = {each: asdict(figures) for each, figures in found.items()}
            if json_path:  # after each row: there are many
                json_path.write_text(json.dumps({**machine, "contestants": names, "rows": table}, indent=1) + "\n")
            print(f"{name:22} {'  '.join(f'{each} {line(figures)}' for each, figures in found.items())}", flush=True)
            if profile and backend in calls:
                print("\n".join(host_profile(calls[backend], inputs)), flush=True)
            del calls
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
