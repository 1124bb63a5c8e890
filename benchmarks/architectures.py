"""What a backend makes of every architecture of transformers: results and gradients beside eager's, against float64.

    python -m benchmarks.architectures [--backend cpp_cpu] [--device cpu] [--only 'bert*,vit*'] [--json FILE]

Each model is built small from its configuration, with random weights; some cannot be (they want a package, sizes that fit one
another, or inputs of their own), and are counted. A model is "ok" if its results in inference and training, and the gradients
of its parameters, are at most ``TIMES`` as far from float64 as eager's are; "wrong" names what is not. Gradients jump where a
ReLU is at zero: only a model that is wrong with other weights, too, counts as wrong. Where torch's own ``aot_eager`` is wrong
in the same way, it is "torch's": what was captured is not what the model does. With ``--json``, results are written as they
come, and models that stand there are not run again.
"""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

from benchmarks.apart import Outcome, run

Tensor = torch.Tensor

SMALL: Mapping[str, int | bool] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim", "emb_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "decoder_num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "type_vocab_size": 2,
    "moe_intermediate_size": 48,
    "head_dim": 16,
    "d_kv": 16,
    "v_head_dim": 16,
    "rotary_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "state_size": 8,
    "vocab_size": 199,
    "image_size": 32,
    "patch_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "use_cache": False,
}
"""Sizes by the names that configurations have for them."""
OF_DEPTH = frozenset(key for key in SMALL if "layer" in key or key.endswith("token_id")) | {"vocab_size", "use_cache"}
WAYS: Sequence[Mapping[str, int | bool]] = (
    SMALL,
    {**SMALL, "head_dim": 8, "qk_head_dim": 16, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1},
    {**SMALL, "num_heads": 8, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16},
    *({**SMALL, "head_dim": width, "hidden_size": 4 * width, "num_attention_heads": 4} for width in (64, 128)),
    {key: value for key, value in SMALL.items() if key in OF_DEPTH},
)
"""What is made small: everything; with heads as latent attention has them; as Mamba has them; of widths that sections of
rotations add up to; depth alone. The first with which eager runs is taken."""
LARGEST = 30_000_000
"""Parameters of the largest model that is run: float64 and gradients take 30 times as many bytes."""
TIMES = 10
"""How many times as far from float64 as eager's a result may be: sums of terms that cancel depend on their order."""
NOISE = 1e-6
"""Eager's distance is taken to be this at least, relative to the largest element."""
NEGLIGIBLE = 1e-5
"""Gradients below this part of the model's largest are compared relative to that: they may be rounding alone."""
SECONDS = 600
"""A model that takes longer has failed."""


def names() -> list[str]:
    """All architectures with a model of their own."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return [name for name in MODEL_MAPPING_NAMES if name in CONFIG_MAPPING]


def build(name: str, device: str, seed: int = 0) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small model with which eager runs, and inputs for it. Raises what the first way to make it small raises."""
    problems: list[Exception] = []
    for sizes in WAYS:
        try:
            model, given = _built(name, device, seed, sizes)
            with torch.no_grad():
                model(**given)
            return model, given
        except Exception as error:
            problems.append(error)
    raise problems[0]


def _built(name: str, device: str, seed: int, sizes: Mapping[str, int | bool]) -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import CONFIG_MAPPING, AutoModel

    config = CONFIG_MAPPING[name]()
    shrink(config, sizes)
    if sizes is not SMALL:
        with torch.device("meta"):  # It may be of any size.
            _limit(AutoModel.from_config(config))  # type: ignore[no-untyped-call]
    torch.manual_seed(seed)
    model = AutoModel.from_config(config).float().eval()  # type: ignore[no-untyped-call]
    _limit(model)
    with torch.no_grad():
        for parameter in model.parameters():  # What begins at zero makes ties: a router's weights, for one.
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model.to(device), {key: value.to(device) for key, value in inputs(model).items()}


def _limit(model: nn.Module) -> None:
    if (parameters := sum(p.numel() for p in model.parameters())) > LARGEST:
        raise ValueError(f"{parameters:,} parameters, also when small")


def shrink(config: Any, sizes: Mapping[str, int | bool]) -> None:
    """Gives a configuration, and those in it, these sizes."""
    from transformers import PreTrainedConfig

    for key, value in sizes.items():
        with contextlib.suppress(Exception):  # Some cannot be set, or differ from layer to layer.
            if isinstance(getattr(config, key, None), int):
                setattr(config, key, value)
    if isinstance(kinds := getattr(config, "layer_types", None), list):
        with contextlib.suppress(Exception):
            config.layer_types = [kinds[0], kinds[-1]]
    for inner in [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]:
        shrink(inner, sizes)


def inputs(model: Any) -> dict[str, Tensor]:
    """Two sequences of which one is padded, two images, or two sounds."""
    config, name = model.config, model.main_input_name
    if name == "pixel_values":
        size = getattr(config, "image_size", 32)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return {name: torch.rand(2, getattr(config, "num_channels", 3), min(height, 64), min(width, 64))}
    if name == "input_values":
        return {name: torch.randn(2, 2000)}
    if name == "input_features":
        return {name: torch.randn(2, getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 50))}
    given = {"input_ids": torch.randint(3, 100, (2, 11)), "attention_mask": torch.ones(2, 11, dtype=torch.long)}
    given["attention_mask"][1, 8:] = 0
    if config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(3, 100, (2, 7))
    return given


def floats(found: Any) -> list[Tensor]:
    """The floating tensors of a result, in order."""
    if isinstance(found, Tensor):
        return [found] if found.is_floating_point() else []
    parts = found.values() if isinstance(found, Mapping) else found if isinstance(found, list | tuple) else ()
    return [tensor for part in parts for tensor in floats(part)]


def trained(model: nn.Module, call: Callable[..., Any], given: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Results, and the gradients of parameters of a sum with weights of all of them."""
    model.zero_grad()
    results = floats(call(**given))
    terms = [r.double().flatten() @ torch.arange(r.numel(), device=r.device).double().cos() for r in results if r.requires_grad]
    if terms:
        torch.autograd.backward(torch.stack(terms).sum())
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return [result.detach() for result in results], gradients


def distance(found: Sequence[Tensor], exact: Sequence[Tensor], least: float = 0.0) -> float:
    """The largest difference relative to the largest element, or to ``least`` where that is more; infinite where shapes differ,
    or what is finite."""
    if [x.shape for x in found] != [x.shape for x in exact]:
        return float("inf")
    worst = 0.0
    for one, other in zip(found, exact, strict=True):
        finite = other.isfinite()
        if not torch.equal(finite, one.isfinite()):
            return float("inf")
        if finite.any():
            size = max(float(other[finite].abs().max()), least, 1e-300)
            worst = max(worst, float((one.double() - other.double())[finite].abs().max()) / size)
    return worst


def judge(name: str, backend: str | Callable[..., Any], device: str) -> Outcome:
    """Runs one model, in full float32."""
    start = time.perf_counter()
    with torch.backends.cudnn.flags(allow_tf32=False):
        found = _judge(name, backend, device)
        if found.state == "wrong":
            found = _judge(name, backend, device, seed=1)
        if found.state == "wrong" and _judge(name, "aot_eager", device, seed=1).why == found.why:
            found.state = "torch's"
    found.seconds = time.perf_counter() - start
    return found


def _judge(name: str, backend: str | Callable[..., Any], device: str, seed: int = 0) -> Outcome:
    try:
        model, given = build(name, device, seed)
        results, gradients = trained(model, model, given)
        wide = copy.deepcopy(model).double()
        _without_grouped_products(wide.config)
        exact, slopes = trained(wide, wide, {k: v.double() if v.is_floating_point() else v for k, v in given.items()})
    except Exception as error:
        return Outcome(name, "not built", f"{type(error).__name__}: {error}"[:200])
    largest = max((float(g.abs().max()) for g in slopes.values() if g.numel()), default=0.0)

    def of_gradients(found: Mapping[str, Tensor]) -> float:
        order = sorted(slopes)
        return distance(
            [found.get(key, slopes[key].new_empty(0)) for key in order], [slopes[key] for key in order], NEGLIGIBLE * largest
        )

    eager = distance(results, exact), of_gradients(gradients)
    errors: dict[str, tuple[float, float]] = {}
    try:
        torch.compiler.reset()
        compiled = torch.compile(model, backend=backend)
        with torch.no_grad():
            errors["inference"] = eager[0], distance(floats(compiled(**given)), exact)
        for call in ("training", "another call"):
            found, grown = trained(model, compiled, given)
            errors[call], errors[f"gradients of {call}"] = (eager[0], distance(found, exact)), (eager[1], of_gradients(grown))
    except Exception as error:
        return Outcome(name, "failed", f"{type(error).__name__}: {error}"[:1000], errors)
    wrong = [what for what, (of_eager, own) in errors.items() if not own <= TIMES * max(of_eager, NOISE)]
    return Outcome(name, "wrong" if wrong else "ok", ", ".join(wrong), errors)


def _without_grouped_products(config: Any) -> None:
    """Experts one by one: torch's grouped product has no float64."""
    config._experts_implementation = "eager"
    for inner in list(vars(config).values()):
        if hasattr(inner, "_experts_implementation"):
            _without_grouped_products(inner)


@click.command(help=(__doc__ or "").partition("\n\n")[0])
@click.option("--backend", default="cpp_cpu", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--only", default="*", help="Patterns of names, separated by commas.")
@click.option(
    "--json", "path", type=click.Path(path_type=Path), help="Write the results there, one a line; go on with what stands there."
)
def main(backend: str, device: str, only: str, path: Path | None) -> None:
    """Runs them."""
    wanted = [name for name in names() if any(fnmatch.fnmatch(name, pattern) for pattern in only.split(","))]
    raise SystemExit(not run("models", wanted, functools.partial(judge, backend=backend, device=device), SECONDS, path))


if __name__ == "__main__":
    main()
