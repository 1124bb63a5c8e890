"""The benchmark of architectures: what is right is ok, what is not is named, and a run goes on where it stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import fx

pytest.importorskip("transformers")
from benchmarks import architectures
from benchmarks.architectures import judge, main, names


def rounded(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend of torch whose results have half the digits."""

    def run(*given: Any) -> Any:
        return [r.bfloat16().float() if isinstance(r, torch.Tensor) and r.is_floating_point() else r for r in module(*given)]

    return run


def refuses(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    raise NotImplementedError("no room")


def test_what_is_right_is_ok() -> None:
    found = judge("bert", "eager", "cpu")
    assert (found.state, found.why) == ("ok", "")
    calls = "training", "another call"
    assert set(found.errors) == {"inference", *calls, *(f"gradients of {call}" for call in calls)}
    assert all(0 < own == of_eager < 1e-4 for of_eager, own in found.errors.values())


def test_what_is_not_is_named() -> None:
    wrong = judge("bert", rounded, "cpu")
    assert wrong.state == "wrong"
    assert "inference, training" in wrong.why
    failed = judge("bert", refuses, "cpu")
    assert failed.state == "failed"
    assert "no room" in failed.why
    assert judge("no such model", "eager", "cpu").state == "not built"


def test_a_jump_is_not_wrong_and_what_torch_does_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter((rounded, "eager"))
    judged = architectures._judge
    monkeypatch.setattr(
        architectures, "_judge", lambda name, backend, *given, **seed: judged(name, next(jumps), *given, **seed)
    )
    assert judge("bert", "cpp_cpu", "cpu").state == "ok"
    monkeypatch.setattr(architectures, "_judge", lambda name, backend, *given, **seed: judged(name, rounded, *given, **seed))
    assert judge("bert", "cpp_cpu", "cpu").state == "torch's"


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "found.jsonl"
    words = ["--backend", "eager", "--only", "vit,no-such-*", "--json", str(path)]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "1 ok, 0 wrong, 0 failed, 0 not built")
    monkeypatch.setattr(architectures, "judge", lambda *given, **named: pytest.fail("run again"))
    assert CliRunner().invoke(main, words).output == done.output
    other = json.loads(path.read_text()) | {"name": "bert", "state": "wrong", "why": "inference"}
    path.write_text(f"{path.read_text()}{json.dumps(other)}\n")
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "bert: wrong: inference" in done.output


@pytest.mark.parametrize("name", ["deepseek_v3", "mamba2", "glm_ocr_text"])
def test_what_does_not_fit_when_all_is_small_is_made_small_in_another_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = architectures._built(name, "cpu", 0, architectures.SMALL)
    with pytest.raises(RuntimeError) as first:
        model(**given)
    model, given = architectures.build(name, "cpu")
    assert sum(p.numel() for p in model.parameters()) <= architectures.LARGEST
    monkeypatch.setattr(architectures, "WAYS", (architectures.SMALL,))
    with pytest.raises(RuntimeError, match=re.escape(str(first.value)[:40])):
        architectures.build(name, "cpu")


def test_there_are_hundreds() -> None:
    assert {"bert", "gpt2", "llama", "vit", "t5", "whisper"} <= {*names()}
    assert len(names()) > 300
