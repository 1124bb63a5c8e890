"""Real models for end-to-end tests: transformers from their configs with random weights, and a residual network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    """A model with inputs for it.

    Attributes:
        build: makes the module, float32, in train mode with dropout off; a transformer of so many layers as are asked for.
        inputs: keyword arguments for a batch of the given size and length.
    """

    build: Callable[..., nn.Module]
    inputs: Callable[[int, int], dict[str, torch.Tensor]]


class BasicBlock(nn.Module):
    """He et al., Deep Residual Learning for Image Recognition (2015), section 3: two 3x3 convolutions and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels_in == channels
            else nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-10's layout, a block of each kind and size, at a quarter of its width."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        channels = width
        for index in range(4):
            out = width * 2**index
            blocks.append(BasicBlock(channels, out, 2 if index else 1))
            channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(pixel_values)))


def _tokens(batch: int, length: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 200, (batch, length))}


def _masked_tokens(batch: int, length: int) -> dict[str, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length - 3 :] = 0
    return {**_tokens(batch, length), "attention_mask": mask}


def _images(batch: int, _length: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


def _larger_images(batch: int, _length: int) -> dict[str, torch.Tensor]:
    # Large enough that the last batch norms average over 32 values: over two, their variance is ill-conditioned.
    return {"pixel_values": torch.randn(2 * batch, 3, 96, 96)}


def _gpt2(layers: int = 2) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=200, n_positions=64, n_embd=48, n_layer=layers, n_head=4, bos_token_id=1, eos_token_id=2, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def _bert(layers: int = 2) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=200, hidden_size=48, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForMaskedLM(config)


def _llama(layers: int = 2) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=200, hidden_size=48, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _vit(layers: int = 2) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=48, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=10,
    )  # fmt: skip
    return ViTForImageClassification(config)


def _t5(layers: int = 2) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=200, d_model=48, d_kv=12, d_ff=96, num_layers=layers, num_heads=4, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def _t5_inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
    return {**_masked_tokens(batch, length), "decoder_input_ids": torch.randint(3, 200, (batch, length // 2))}


MODELS: dict[str, Case] = {
    "gpt2": Case(_gpt2, _tokens),
    "bert": Case(_bert, _masked_tokens),
    "llama": Case(_llama, _masked_tokens),
    "vit": Case(_vit, _images),
    "t5": Case(_t5, _t5_inputs),
    "resnet": Case(ResNet, _larger_images),
}


def logits(output: Any) -> torch.Tensor:
    """The tensor a test compares, whatever the model returns."""
    return output if isinstance(output, torch.Tensor) else output.logits
