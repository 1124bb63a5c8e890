"""Real models, forward, backward and three AdamW steps: as accurate as eager, judged by a float64 run."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from tests.chips import use_chip
from tests.models import MODELS, logits
from vendor_sdk.pipeline import recording

BACKENDS = ("cpp_cpu", "mychip")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns about its own configs and deprecations


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    torch._dynamo.reset()
    use_chip(request.param)
    return str(request.param)


def error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative error in the Euclidean norm."""
    scale = exact.double().norm().item()
    return (value.double() - exact.double()).norm().item() / (scale or 1.0)


def train(model: nn.Module, batches: list[dict[str, torch.Tensor]], run: nn.Module) -> dict[str, torch.Tensor]:
    """Outputs, gradients and parameters of training steps on ``batches``, by name."""
    found: dict[str, torch.Tensor] = {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        out = logits(run(**batch))
        classes = torch.arange(out[..., 0].numel()) * 7 % out.shape[-1]
        nn.functional.cross_entropy(out.flatten(0, -2), classes).backward()
        if step == 0:
            found["output"] = out.detach().clone()
            found |= {f"gradient {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    return found | {f"parameter {name}": p.detach().clone() for name, p in model.named_parameters()}


def widen(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}


@functools.cache
def runs(name: str) -> tuple[nn.Module, list[dict[str, torch.Tensor]], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The model, its batches, and what float64 and eager float32 make of them."""
    torch.manual_seed(0)
    case = MODELS[name]
    model = case.build().train()
    batches = [case.inputs(2, 12) for _ in range(3)]
    exact_model, eager_model = copy.deepcopy(model).double(), copy.deepcopy(model)
    exact = train(exact_model, [widen(batch) for batch in batches], exact_model)
    return model, batches, exact, train(eager_model, batches, eager_model)


@pytest.mark.parametrize("name", MODELS)
def test_training_is_as_accurate_as_eager(name: str, backend: str) -> None:
    original, batches, exact, eager = runs(name)
    model = copy.deepcopy(original)
    ours = train(model, batches, torch.compile(model, backend=backend))
    assert ours.keys() == exact.keys()

    def group(kind: str, found: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([value.flatten().double() for key, value in found.items() if key.startswith(kind)])

    for kind in ("output", "gradient", "parameter"):
        reference = group(kind, exact)
        assert error(group(kind, ours), reference) <= 2 * error(group(kind, eager), reference), kind
    # AdamW divides by the gradient's size, so a parameter whose exact gradient is zero moves by rounding alone, in eager too.
    for key, reference in exact.items():
        if key.startswith("gradient"):
            allowed = 2 * error(eager[key], reference) + 1e-6
            total = group("gradient", exact).norm().item()
            negligible = reference.norm().item() < 1e-6 * total
            assert negligible or error(ours[key], reference) <= max(allowed, 4e-6), key


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_dynamic_batch_and_length(name: str, backend: str) -> None:
    torch.manual_seed(0)
    case = MODELS[name]
    model = case.build(layers=1).eval()  # sizes are what is new here
    compiled = torch.compile(model, backend=backend, dynamic=True)
    graphs: list[object] = []
    with recording(graphs.append), torch.no_grad():
        counts = []
        for batch, length in ((2, 9), (3, 16), (5, 23), (4, 31)):
            inputs = case.inputs(batch, length)
            expected = logits(model(**inputs))
            torch.testing.assert_close(logits(compiled(**inputs)), expected, rtol=1e-4, atol=1e-5)
            counts.append(len(graphs))
    assert counts[1:] == counts[:1] * 3, "a new size recompiled"
