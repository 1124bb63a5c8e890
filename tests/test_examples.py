"""The examples, run as they stand; each checks what it shows, and says it."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vendor_sdk.contract import loader

ROOT = Path(__file__).resolve().parents[1]
SAYS = {
    "five_lines": "largest difference from eager: ",
    "mixed_precision": "gradients are {torch.float32}",
    "generation": "65 words, 100% as in eager, 2 graphs compiled",
    "int8_weights": "657664 bytes of weights became 168448",
    "export_onnx": "model.onnx: input ['batch', 3, 32, 32]",
    "explain_and_profile": "_linalg_eigh",
    "choosing_a_backend": "no backend named 'mychp' is installed",
    "gpu_elsewhere": "registers, 0 stack bytes, ",
    "parallel_chip": "two long sums: [('k0_sum_0', 256), ('k0_sum_1', 2)]",
    "attention_chip": "native: {'scaled_dot_product_attention'}",
}
NEEDS: dict[str, tuple[str, ...]] = {
    "export_onnx": ("onnxruntime",),
    "gpu_elsewhere": ("triton_gpu",),
    "parallel_chip": (),
    "attention_chip": (),
}
"""Backends of those that do not use cpp_cpu."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    for name in ("attentionchip", "parallelchip"):
        if loader.known(name):
            loader.unregister(name)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.needs(*NEEDS.get(name, ("cpp_cpu",)))) for name in SAYS])
def test_an_example_does_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "export_onnx":
        pytest.importorskip("onnxruntime")
    if name == "gpu_elsewhere":
        pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out


def test_every_example_is_run_and_linked() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SAYS)
    linked = re.findall(r"\(\.\./examples/(\w+)\.py\)", (ROOT / "docs" / "examples.md").read_text())
    assert sorted(linked) == sorted(SAYS)
