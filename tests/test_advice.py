"""What to implement next: the order of the steps, the counted models, a user's own program."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vendor_sdk import advice
from vendor_sdk.advice import Use, advise
from vendor_sdk.cli import main
from vendor_sdk.errors import OptionError
from vendor_sdk.prims.opset import OPSET

CHIP = """
import torch, vendor_sdk
from vendor_sdk import hookimpl

@hookimpl
def backend():
    print("plugins may print")
    return vendor_sdk.Backend(name="small", version="1", dtypes=frozenset({torch.float32}))

@hookimpl
def kernels():
    return {"add": torch.add, "mul": torch.mul}
"""

MODEL = """
import sys, torch
print("models may print", sys.argv[1:])
torch.compile(lambda x: (x.exp() + x.exp().tanh() * 2).sum(), backend="small")(torch.randn(3, 5))
"""


def use(seconds: float = 1.0, *dtypes: str) -> Use:
    return Use(1, 100, seconds, set(dtypes) or {"float32"})


def test_what_unlocks_most_models_comes_first() -> None:
    models = {
        "a": {"exp": use(), "mm": use()},
        "b": {"exp": use()},
        "c": {"exp": use(), "sort": use(9.0)},
        "d": {"mm": use()},
        "e": {"sort": use(9.0), "fft": use(2.0), "add": use(1.0, "int64")},
    }
    found = advise(models, {"exp": "no kernel", "sort": "no kernel", "fft": "never"}, {"float32"})
    assert found.ready == ("d",)
    assert [step.prim for step in found.steps] == ["exp", "sort", "fft", "add"]
    assert [step.unlocks for step in found.steps] == [("a", "b"), ("c",), (), ("e",)]
    assert found.steps[0].models == ("a", "b", "c")
    assert found.steps[0].bytes == 300
    assert sum(step.share for step in found.steps) == pytest.approx(1)
    assert found.steps[3].reason == "used in int64, not among the backend's dtypes"
    assert advise({}, {}, ()).steps == ()


def test_counted_models_name_prims_of_the_opset() -> None:
    for which in advice.PASSES:
        models = advice.known_models(which)
        assert len(models) >= 12
        for name, uses in models.items():
            assert uses, name
            assert set(uses) <= set(OPSET)
            assert all(each.calls > 0 and each.dtypes for each in uses.values())
    with pytest.raises(OptionError, match="did you mean 'gpt2'"):
        advice.chosen_models(["gtp2"])


def test_next_on_the_command_line(install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = install("small", {"small": "small"}, modules={"small": CHIP})
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setattr(advice, "waiting", functools.cache(advice.waiting))  # asked of one backend, it answers once
    found = CliRunner().invoke(main, ["next", "--backend", "small", "--models", "gpt2,bert", "--json"])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["models"] == ["gpt2", "bert"]
    prims = [step["prim"] for step in answer["steps"]]
    assert len(prims) == len(set(prims))
    assert "mul" not in [step["prim"] for step in answer["steps"] if "dtypes" not in step["reason"]]
    assert sorted(model for step in answer["steps"] for model in step["unlocks"]) == ["bert", "gpt2"]
    script = tmp_path / "model.py"
    script.write_text(MODEL)
    own = CliRunner().invoke(main, ["next", "--backend", "small", "--script", str(script), "--json"])
    assert own.exit_code == 0, own.output
    steps = {step["prim"]: step for step in json.loads(own.stdout)["steps"]}
    assert {"exp", "tanh", "sum"} == set(steps)
    assert steps["exp"]["calls"] in (1, 2)
    assert steps["tanh"]["bytes"] == 2 * 15 * 4
    assert all(step["reason"] for step in steps.values())
    script.write_text("print('nothing')")
    nothing = CliRunner().invoke(main, ["next", "--backend", "small", "--script", str(script)])
    assert nothing.exit_code == 1
    assert "compiled no graph for 'small'" in nothing.stderr
    script.write_text("import torch\n1 / 0")
    broken = CliRunner().invoke(main, ["next", "--backend", "small", "--script", str(script)])
    assert broken.exit_code == 1
    assert f"{script} ended with ZeroDivisionError\n  where: {script}:2 in <module>\n  why: division by zero" in broken.stderr
    script.write_text("import os\nos._exit(9)")
    gone = CliRunner().invoke(main, ["next", "--backend", "small", "--script", str(script)])
    assert f"{script} ended with exit status 9" in gone.stderr
