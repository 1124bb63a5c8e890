"""FlexAttention on this machine's GPU: ``triton_gpu`` beside Inductor, which has a kernel of its own for it, in one process.

    python -m benchmarks.gpu_flex [--only 'alibi*'] [--backend triton_gpu] [--peers inductor] [--rounds 5] [--json FILE]

In bfloat16: milliseconds of a call, and of one with its gradients; and MiB that it takes beyond its operands and results at its
worst. Both get the tables of blocks that go with a mask. Results, and gradients by the queries, of two heads of a sequence are
first compared with what the definition gives in float64. A short table ends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.gpu import compiled, environment
from benchmarks.gpu_products import measure, own_code

Tensor = torch.Tensor
Score = Callable[..., Tensor]
SHOWN = 2
"""Heads that are compared with float64: all scores of one are in memory then."""
CAP = 30.0


@dataclass(frozen=True)
class Kind:
    """One call: of ``batch`` sequences, ``heads`` heads, ``rows`` queries and keys of ``width`` numbers.

    Attributes:
        score: what becomes of a score, by (score, batch, head, query, key, slopes, documents); None: nothing.
        seen: whether it counts, likewise without the score.
    """

    batch: int = 4
    heads: int = 16
    rows: int = 4096
    width: int = 64
    score: Score | None = None
    seen: Score | None = None


def _alibi(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor, slopes: Tensor, _: Tensor) -> Tensor:
    return score + slopes[head] * (key - query)


def _capped(score: Tensor, *_: Tensor) -> Tensor:
    return CAP * torch.tanh(score / CAP)


def _causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *_: Tensor) -> Tensor:
    return query >= key


def _window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *_: Tensor) -> Tensor:
    return (query >= key) & (query - key < 256)


def _documents(batch: Tensor, head: Tensor, query: Tensor, key: Tensor, _: Tensor, documents: Tensor) -> Tensor:
    return documents[batch, query] == documents[batch, key]


KINDS = {
    "plain": Kind(),
    "causal": Kind(seen=_causal),
    "window of 256": Kind(seen=_window),
    "documents": Kind(seen=_documents),
    "alibi": Kind(score=_alibi),
    "alibi, causal": Kind(score=_alibi, seen=_causal),
    "alibi, causal, d 128": Kind(batch=2, width=128, score=_alibi, seen=_causal),
    "alibi, causal, 16384 rows": Kind(batch=1, rows=16384, score=_alibi, seen=_causal),
    "window of 256, 16384 rows": Kind(batch=1, rows=16384, seen=_window),
    "capped": Kind(score=_capped),
}


def contest(kind: Kind, names: list[str], rounds: int) -> dict[str, dict[str, float | str]]:
    """By contestant: milliseconds forward and with gradients, MiB, or what went wrong."""
    shape = kind.batch, kind.heads, kind.rows, kind.width
    operands = [torch.randn(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(3)]
    direction = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    slopes = torch.exp2(-8 / kind.heads * torch.arange(1, kind.heads + 1, device="cuda"))
    documents = torch.randint(0, 6, (kind.batch, kind.rows), device="cuda").sort(1).values

    # torch counts their parameters.
    def score(value: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert kind.score is not None
        return kind.score(value, batch, head, query, key, slopes, documents)

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert kind.seen is not None
        return kind.seen(batch, head, query, key, slopes, documents)

    table = create_block_mask(seen, kind.batch, None, kind.rows, kind.rows, device="cuda") if kind.seen else None

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, score_mod=score if kind.score else None, block_mask=table)

    exact = _defined(kind, slopes, documents, operands, direction)
    found: dict[str, dict[str, float | str]] = {}
    forward: dict[str, Callable[[], Any]] = {}
    training: dict[str, Callable[[], Any]] = {}
    for name in names:
        run = compiled(name, own_code(attention))

        def once(run: Callable[..., Any] = run) -> Tensor:
            with torch.no_grad():
                return run(*operands)  # type: ignore[no-any-return]

        def step(run: Callable[..., Any] = run) -> tuple[Tensor, ...]:
            result = run(*operands)
            return result, *torch.autograd.grad(result, operands, direction)

        try:
            fault = _missed(exact, once(), *step()[:2])
            if fault:
                raise ValueError(fault)
            found[name] = {"MiB": _extra(once), "MiB with gradients": _extra(step)}
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
            continue
        forward[name], training[name] = once, step
    for label, calls in (("ms", forward), ("ms with gradients", training)):
        for name, time in measure(calls, rounds).items():
            found[name][label] = 1e3 * time
    return found


def _defined(kind: Kind, slopes: Tensor, documents: Tensor, operands: list[Tensor], direction: Tensor) -> tuple[Tensor, Tensor]:
    """What some heads of the first sequence give in float64, and the gradient by their queries."""
    query, key, value = (each[:1, :SHOWN].detach().double() for each in operands)
    query.requires_grad_()
    places = torch.arange(kind.rows, device="cuda")
    zero = torch.zeros((), dtype=torch.int64, device="cuda")
    results = []
    for head in range(SHOWN):
        given = zero, zero + head, places[:, None], places[None, :]
        scores = query[0, head] @ key[0, head].mT / kind.width**0.5
        if kind.score is not None:
            scores = kind.score(scores, *given, slopes, documents)
        if kind.seen is not None:
            scores = torch.where(kind.seen(*given, slopes, documents), scores, -torch.inf)
        results.append(scores.softmax(-1) @ value[0, head])
    result = torch.stack(results)[None]
    (gradient,) = torch.autograd.grad(result, query, direction[:1, :SHOWN].double())
    return result.detach(), gradient


def _missed(exact: tuple[Tensor, Tensor], *results: Tensor) -> str:
    """What is wrong with results, of inference and of training, and a gradient, judged by the largest of the exact ones."""
    for found, wanted in zip(results, (exact[0], *exact), strict=True):
        error = (found[:1, :SHOWN].double() - wanted).abs().max() / wanted.abs().max()
        if not error < 2e-2:
            return f"wrong: {error:.3g} of the largest"
    return ""


def _extra(call: Callable[[], Any]) -> float:
    """MiB that a call takes at its worst beyond what it returns."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = call()
    torch.cuda.synchronize()
    returned = torch.cuda.memory_allocated() - before
    del results
    return (torch.cuda.max_memory_allocated() - before - returned) / 2**20


@click.command()
@click.option("--only", default=["*"], multiple=True, help="Names or globs.")
@click.option("--backend", default="triton_gpu", help="The backend to time.")
@click.option("--peers", default="inductor")
@click.option("--rounds", default=5)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result there.")
def main(only: tuple[str, ...], backend: str, peers: str, rounds: int, json_path: Path | None) -> None:
    """Time FlexAttention on this machine's GPU."""
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA device: this benchmark times attention on one")
    names = [*(p for p in peers.split(",") if p), backend]
    table = {}
    for name, kind in KINDS.items():
        if any(fnmatch(name, pattern) for pattern in only):
            table[name] = contest(kind, names, rounds)
            print(name, json.dumps(table[name]), flush=True)
            torch.cuda.empty_cache()
    for name, row in table.items():
        cells = [f"{n} {r['ms']:.2f} {r['ms with gradients']:.2f} ({r['MiB']:.0f} MiB)" for n, r in row.items() if "ms" in r]
        print(f"{name:28} {'   '.join(cells)}")
    if json_path:
        json_path.write_text(
            json.dumps({**environment(), "rounds": rounds, "contestants": names, "rows": table}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
