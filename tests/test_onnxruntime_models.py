"""Models through the ONNX Runtime backend: outputs and gradients as accurate as eager's; what runs on the host is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vendor_sdk import Kind
from vendor_sdk.pipeline import recording

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

NAME = "onnxruntime"
Inputs = dict[str, torch.Tensor]


def _tokens(*shape: int, high: int = 67) -> torch.Tensor:
    return torch.randint(2, high, shape)


def _gpt2() -> tuple[nn.Module, Inputs]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=1, n_embd=24, n_head=2, vocab_size=67, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config), {"input_ids": _tokens(2, 9)}


def _bert() -> tuple[nn.Module, Inputs]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=67, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=40,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[0, 6:] = 0
    return BertForSequenceClassification(config), {"input_ids": _tokens(2, 9), "attention_mask": mask}


def _llama() -> tuple[nn.Module, Inputs]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=67, hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=16, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), {"input_ids": _tokens(2, 9)}


def _mixtral() -> tuple[nn.Module, Inputs]:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=67, hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=3, num_experts_per_tok=2, max_position_embeddings=16, use_cache=False,
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    model.set_experts_implementation("batched_mm")  # the default takes no float64
    return model, {"input_ids": _tokens(2, 9)}


def _t5() -> tuple[nn.Module, Inputs]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=67, d_model=24, d_kv=12, d_ff=40, num_layers=1, num_heads=2, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config), {"input_ids": _tokens(2, 9), "decoder_input_ids": _tokens(2, 7)}


def _vit() -> tuple[nn.Module, Inputs]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=40, image_size=16, patch_size=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def _whisper() -> tuple[nn.Module, Inputs]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=67, num_mel_bins=8, d_model=24, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=40, decoder_ffn_dim=40, max_source_positions=16, max_target_positions=16,
        dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, pad_token_id=0, bos_token_id=0, eos_token_id=0,
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(2, 8, 32),
        "decoder_input_ids": _tokens(2, 7),
    }


def _clip_text() -> tuple[nn.Module, Inputs]:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=67, hidden_size=24, intermediate_size=40, projection_dim=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, attention_dropout=0.0, pad_token_id=1, bos_token_id=0, eos_token_id=66,
    )  # fmt: skip
    return CLIPTextModelWithProjection(config), {"input_ids": _tokens(2, 9)}


class _Residual(nn.Module):
    """He et al., Deep Residual Learning for Image Recognition, 2015, in small: stem, pooling, two blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.first = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))
        self.down = nn.Conv2d(16, 24, 1, 2)
        self.head = nn.Linear(24, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        x = torch.relu(self.second(self.first(x)) + x)
        logits: torch.Tensor = self.head(F.adaptive_avg_pool2d(self.down(x), 1).flatten(1))
        return logits


def _resnet() -> tuple[nn.Module, Inputs]:
    return _Residual(), {"images": torch.randn(3, 3, 21, 19)}


MODELS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "GPT-2": _gpt2,
    "BERT": _bert,
    "Llama": _llama,
    "Mixtral": _mixtral,
    "T5": _t5,
    "ViT": _vit,
    "Whisper": _whisper,
    "CLIP text": _clip_text,
    "ResNet": _resnet,
}

ON_THE_HOST: dict[str, set[str]] = {}
"""Prims of these models that no rule translates, by model."""


def _logits(outputs: Any) -> torch.Tensor:
    for name in ("logits", "text_embeds"):
        if hasattr(outputs, name):
            return getattr(outputs, name)  # type: ignore[no-any-return]
    assert isinstance(outputs, torch.Tensor)
    return outputs


def _results(module: nn.Module, call: Callable[..., Any], inputs: Inputs, dtype: torch.dtype) -> list[torch.Tensor]:
    """Inference and training: logits twice, then the gradients of all parameters."""
    given = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    with torch.no_grad():
        found = [_logits(call(**given))]
    logits = _logits(call(**given))
    (logits.float() if dtype == torch.float16 else logits).square().mean().backward()
    return [*found, logits.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


def _error(values: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest relative error, in the 2-norm, of one of the tensors that are not all but zero."""
    largest = max(float(want.norm()) for want in exact)
    return max(
        float((value.double() - want).norm() / want.norm())
        for value, want in zip(values, exact, strict=True)
        if want.norm() > 1e-6 * largest
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_are_as_accurate_as_eagers(name: str) -> None:
    if name != "ResNet":
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = MODELS[name]()
    model.eval()
    wide, eager, ours = copy.deepcopy(model).double(), copy.deepcopy(model), copy.deepcopy(model)
    exact = _results(wide, wide, inputs, torch.float64)
    by_eager = _results(eager, eager, inputs, torch.float32)
    graphs: list[Any] = []
    with recording(graphs.append):
        found = _results(ours, torch.compile(ours, backend=NAME), inputs, torch.float32)
    assert _error(found, exact) <= 2 * _error(by_eager, exact)
    host = {each.prim for graph in graphs for each in graph.placements if each.placement.kind is Kind.HOST}
    assert host == ON_THE_HOST.get(name, set())
