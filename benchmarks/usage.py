"""Counts which prims models use, and how much: ``python -m benchmarks.usage`` writes ``vendor_sdk/prims/usage.json``.

The models are those of ``conformance.zoo``: one forward pass, and one forward and backward pass.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vendor_sdk
from conformance.zoo import ZOO
from vendor_sdk.advice import Counter

TARGET = Path(vendor_sdk.__file__).parent / "prims" / "usage.json"


class _Everything(Counter):
    """A backend that has nothing: all runs on the host, and is counted."""

    @vendor_sdk.hookimpl
    def backend(self) -> vendor_sdk.Backend:
        return vendor_sdk.Backend(name="counter", version="0", dtypes=frozenset(vendor_sdk.ALL))


def count(build: Callable[[], tuple[nn.Module, dict[str, Any]]]) -> dict[str, dict[str, list[Any]]]:
    """Uses by prim, of a forward pass and of a training step. The second of two runs counts: caches are warm then."""
    torch.manual_seed(0)
    model, inputs = build()
    answer = {}
    for which in ("forward", "training"):
        torch._dynamo.reset()
        plugin = _Everything()
        vendor_sdk.register(plugin)
        try:
            call = torch.compile(model.train(which == "training"), backend="counter", dynamic=False)
            for _ in range(2):
                plugin.uses.clear()
                with torch.set_grad_enabled(which == "training"):
                    result = call(**inputs)
                    loss = result if isinstance(result, torch.Tensor) else result.loss
                    if which == "training":
                        loss.backward()
                        model.zero_grad()
            answer[which] = {prim: use.to_json() for prim, use in sorted(plugin.uses.items())}
        finally:
            vendor_sdk.unregister("counter")
    return answer


def text(models: Mapping[str, Any]) -> str:
    """The file: a line for each model and pass."""
    lines = []
    for name, passes in models.items():
        inner = ",\n   ".join(f"{json.dumps(which)}: {json.dumps(uses)}" for which, uses in passes.items())
        lines.append(f"  {json.dumps(name)}: {{\n   {inner}}}")
    what = "prim: [calls, bytes of operands and results, seconds of torch on the host, dtypes]; see benchmarks/usage.py"
    head = f'{{"opset": {vendor_sdk.OPSET_VERSION}, "torch": {json.dumps(torch.__version__)}, "what": {json.dumps(what)},'
    return f'{head}\n "models": {{\n' + ",\n".join(lines) + "\n }}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="count these anew, keep the others")
    chosen = parser.parse_args().models or list(ZOO)
    before = json.loads(TARGET.read_text())["models"] if TARGET.is_file() else {}
    counted = {name: before[name] for name in ZOO if name in before}
    for name in chosen:
        counted[name] = count(ZOO[name])
        print(f"{name}: {', '.join(f'{len(uses)} prims in {which}' for which, uses in counted[name].items())}", flush=True)
        TARGET.write_text(text({model: counted[model] for model in ZOO if model in counted}))


if __name__ == "__main__":
    main()
