"""The zoo: transformers from their configurations and convolution networks, two layers of each kind at the published width,
with random weights. Nothing is downloaded.

Which prims these models use, and how much, is counted in ``vendor_sdk/prims/usage.json`` (``python -m benchmarks.usage``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

LENGTH = 64


def _tokens(vocabulary: int, length: int = LENGTH) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, vocabulary, (2, length))}


def _decoder(kind: str, **given: Any) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    """A causal language model of transformers; ``given``: arguments of its configuration."""

    def build() -> tuple[nn.Module, dict[str, Any]]:
        import transformers

        config = getattr(transformers, f"{kind}Config")(use_cache=False, **given)
        model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        ids = _tokens(config.vocab_size)["input_ids"]
        return model, {"input_ids": ids, "labels": ids}

    return build


def _of(kind: str, head: str, inputs: Callable[[Any], dict[str, Any]], **given: Any) -> Callable[[], tuple[nn.Module, Any]]:
    """Any other model of transformers."""

    def build() -> tuple[nn.Module, dict[str, Any]]:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**given)
        return getattr(transformers, f"{kind}{head}")(config), inputs(config)

    return build


def _masked(config: Any) -> dict[str, Any]:
    ids = _tokens(config.vocab_size)["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, -5:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def _seq2seq(config: Any) -> dict[str, Any]:
    ids = _tokens(config.vocab_size)["input_ids"]
    return {"input_ids": ids, "labels": ids}


def _picture(config: Any) -> dict[str, Any]:
    side = getattr(config, "image_size", 224)
    return {"pixel_values": torch.randn(1, 3, side, side), "labels": torch.tensor([1])}


def _speech(config: Any) -> dict[str, Any]:
    frames = 2 * config.max_source_positions
    return {
        "input_features": torch.randn(1, config.num_mel_bins, frames),
        "labels": _tokens(config.vocab_size, 8)["input_ids"][:1],
    }


class _Unet(nn.Module):
    """Ronneberger et al., U-Net (2015): convolutions down and up, joined across; group norm and SiLU as in diffusion models."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()

        def block(channels: int, result: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(channels, result, 3, padding=1), nn.GroupNorm(8, result), nn.SiLU())

        self.down, self.deep = block(3, width), block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Sequential(block(2 * width, width), nn.Conv2d(width, 3, 1))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        high = self.down(pixel_values)
        low = self.up(self.deep(nn.functional.max_pool2d(high, 2)))
        wide = nn.functional.interpolate(nn.functional.avg_pool2d(high, 2), scale_factor=2, mode="bilinear")
        made: torch.Tensor = self.out(torch.cat([low, high + wide], 1))
        return made.square().mean()


class _Recurrent(nn.Module):
    """A language model of LSTM cells."""

    def __init__(self, vocabulary: int = 1000, width: int = 128) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(vocabulary, width), nn.LSTMCell(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        state: tuple[torch.Tensor, torch.Tensor] | None = None
        losses = []
        for step in range(input_ids.shape[1] - 1):
            state = self.cell(self.embed(input_ids[:, step]), state)
            losses.append(nn.functional.cross_entropy(self.head(state[0]), input_ids[:, step + 1]))
        return torch.stack(losses).mean()


SMALL = {"num_hidden_layers": 2, "vocab_size": 2000}
WIDE = {**SMALL, "hidden_size": 1024, "num_attention_heads": 16}
LABELS = {"id2label": dict(enumerate("abcde")), "label2id": {letter: i for i, letter in enumerate("abcde")}}
ZOO: Mapping[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "gpt2": _decoder("GPT2", n_layer=2, vocab_size=2000),
    "llama": _decoder("Llama", intermediate_size=2816, num_key_value_heads=4, **WIDE),
    "mistral": _decoder("Mistral", intermediate_size=3584, sliding_window=32, **WIDE),
    "qwen2": _decoder("Qwen2", hidden_size=896, intermediate_size=4864, num_attention_heads=14, num_key_value_heads=2, **SMALL),
    "gemma": _decoder("Gemma", hidden_size=1024, intermediate_size=4096, num_attention_heads=4, num_key_value_heads=1, **SMALL),
    "mixtral": _decoder("Mixtral", intermediate_size=1024, num_local_experts=4, **WIDE),
    "opt": _decoder("OPT", word_embed_proj_dim=768, **SMALL),
    "phi": _decoder("Phi", intermediate_size=4096, **WIDE),
    "bert": _of("Bert", "ForMaskedLM", _masked, **SMALL),
    "roberta": _of("Roberta", "ForMaskedLM", _masked, **SMALL),
    "distilbert": _of("DistilBert", "ForMaskedLM", _masked, n_layers=2, vocab_size=2000),
    "t5": _of("T5", "ForConditionalGeneration", _seq2seq, num_layers=2, vocab_size=2000, decoder_start_token_id=0),
    "whisper": _of("Whisper", "ForConditionalGeneration", _speech, encoder_layers=2, decoder_layers=2, vocab_size=2000,
                   max_source_positions=150, decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "vit": _of("ViT", "ForImageClassification", _picture, num_hidden_layers=2, **LABELS),
    "swin": _of("Swin", "ForImageClassification", _picture, depths=[2, 2], num_heads=[3, 6], **LABELS),
    "convnext": _of("ConvNext", "ForImageClassification", _picture, depths=[1, 1, 1, 1], **LABELS),
    "resnet": _of("ResNet", "ForImageClassification", _picture, depths=[1, 1, 1, 1], **LABELS),
    "mobilenet_v2": _of("MobileNetV2", "ForImageClassification", _picture, **LABELS),
    "unet": lambda: (_Unet(), {"pixel_values": torch.randn(1, 3, 64, 64)}),
    "lstm": lambda: (_Recurrent(), _tokens(1000, 6)),
}  # fmt: skip
"""By name: makes a model and the keywords it is called with; it returns a loss, or something that has one as ``loss``."""

PROFILES: Mapping[str, frozenset[str]] = {
    "llm": frozenset(("gpt2", "llama", "mistral", "qwen2", "gemma", "mixtral", "opt", "phi")),
    "vision": frozenset(("vit", "swin", "convnext", "resnet", "mobilenet_v2", "unet")),
    "inference": frozenset(ZOO),
    "training": frozenset(ZOO),
    "full": frozenset(ZOO),
}
"""Models that a workload consists of."""

EFFORTS: Mapping[str, tuple[str, ...]] = {
    "quick": ("unet",),
    "standard": ("gpt2", "llama", "vit", "resnet", "unet"),
    "full": tuple(ZOO),
}
"""Models that are run."""
