"""The models: written here, or from transformers' configurations with random weights. Sizes suit two cores.

Every model is a module of positional tensors that returns one tensor of logits; ``Trained`` adds the loss.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.program import Mode, Program

Tensor = torch.Tensor


@dataclass(frozen=True)
class Network:
    """A model with inputs of one size.

    Attributes:
        name: of the row.
        build: the module, float32.
        inputs: its inputs.
        classes: targets are below this, one for each row of logits.
        quick: sections whose quick mode has it.
        discontinuous: modes in which a step lies in the computation, see ``Program``.
        for_reference: see ``Program``.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    classes: int
    quick: frozenset[str] = frozenset()
    discontinuous: frozenset[Mode] = frozenset()
    for_reference: Callable[[nn.Module], None] | None = None

    def inference(self) -> Program:
        """Logits, in evaluation mode."""
        torch.manual_seed(0)
        return self._program(self.build().eval(), self.inputs(), Mode.INFERENCE)

    def gradients(self) -> Program:
        """Loss and gradients of all parameters."""
        return self._program(*self._trained(), Mode.GRADIENT)

    def training(self, *, compiled_optimizer: bool) -> Program:
        """A step with AdamW."""
        return replace(self._program(*self._trained(), Mode.STEP), compiled_optimizer=compiled_optimizer)

    def _trained(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        torch.manual_seed(0)
        model, inputs = self.build().train(), self.inputs()
        with torch.no_grad():
            rows = copy.deepcopy(model)(*inputs).numel() // self.classes
        return Trained(model), (torch.randint(self.classes, (rows,)), *inputs)

    def _program(self, module: nn.Module, inputs: tuple[Tensor, ...], mode: Mode) -> Program:
        buffers = mode is not Mode.INFERENCE and any(isinstance(each, nn.BatchNorm2d) for each in module.modules())
        return Program(
            module, inputs, mode, mutates=buffers, discontinuous=mode in self.discontinuous, for_reference=self.for_reference
        )


class Trained(nn.Module):
    """A model with its cross-entropy loss: ``(targets, *inputs)`` to a scalar."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, targets: Tensor, *inputs: Tensor) -> Tensor:
        return F.cross_entropy(self.model(*inputs).flatten(0, -2), targets)


class Logits(nn.Module):
    """A model of transformers, whose inputs have names and whose output is a record."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(**dict(zip(self.names, inputs, strict=True))).logits
        return logits


class BasicBlock(nn.Module):
    """He et al., Deep Residual Learning for Image Recognition (2015), section 3: two 3x3 convolutions and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """The 18-layer network of the same paper, table 1."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        blocks = [BasicBlock(before, after, after // before) for before, after in itertools.pairwise(widths)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(images)))
        return logits


class Recurrent(nn.Module):
    """Hochreiter and Schmidhuber's cell (1997) with a forget gate, unrolled; a classifier of the last state."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 4 * width)
        self.head = nn.Linear(width, classes)
        self.width = width

    def forward(self, sequence: Tensor) -> Tensor:
        hidden = cell = sequence.new_zeros(sequence.shape[0], self.width)
        for step in sequence.unbind(1):
            write, forget, read, value = self.gates(torch.cat((step, hidden), -1)).chunk(4, -1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(write) * torch.tanh(value)
            hidden = torch.sigmoid(read) * torch.tanh(cell)
        logits: Tensor = self.head(hidden)
        return logits


def _mlp() -> nn.Module:
    hidden = [layer for _ in range(3) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    return nn.Sequential(*hidden, nn.Linear(1024, 128))


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return Logits(GPT2LMHeadModel(config), "input_ids")


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(num_hidden_layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config.num_labels = 16
    return Logits(BertForSequenceClassification(config), "input_ids", "attention_mask")


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    return Logits(LlamaForCausalLM(config), "input_ids")


def _mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=8000, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, use_cache=False,
    )  # fmt: skip
    return Logits(MixtralForCausalLM(config), "input_ids")


def _ungrouped(module: nn.Module) -> None:
    """The grouped matrix product that the experts use by default takes no float64."""
    for each in module.modules():
        if isinstance(each, Logits):
            each.model.set_experts_implementation("batched_mm")  # type: ignore[operator]


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    config.num_labels = 128
    return Logits(ViTForImageClassification(config), "pixel_values")


def _tokens(high: int, batch: int, length: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randint(high, (batch, length)),)


def _masked_tokens(batch: int, length: int) -> Callable[[], tuple[Tensor, ...]]:
    """The first text is shorter than the others, as in every real batch."""

    def make() -> tuple[Tensor, ...]:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, length - length // 8 :] = 0
        return torch.randint(30000, (batch, length)), mask

    return make


def _normal(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(shape),)


TRAINING = frozenset((Mode.GRADIENT, Mode.STEP))


def _named(networks: list[Network]) -> dict[str, Network]:
    return {network.name: network for network in networks}


NETWORKS = _named(
    [
        Network("MLP, batch 1", _mlp, _normal(1, 1024), 128),
        Network("MLP, batch 64", _mlp, _normal(64, 1024), 128, frozenset(("models", "training", "compile", "memory"))),
        Network("ResNet-18, 4 images", lambda: ResNet18(1000), _normal(4, 3, 224, 224), 1000, discontinuous=TRAINING),
        Network("GPT-2, 2 layers, 2x256", _gpt2, _tokens(50257, 2, 256), 50257, frozenset(("models",))),
        Network("BERT, 4 layers, 4x128", _bert, _masked_tokens(4, 128), 16),
        Network("Llama, 4 layers, 2x128", _llama, _tokens(32000, 2, 128), 32000),
        Network("ViT, 4 layers, 4 images", _vit, _normal(4, 3, 224, 224), 128),
        Network(
            "Mixtral, 2 layers, 2x64",
            _mixtral,
            _tokens(8000, 2, 64),
            8000,
            discontinuous=frozenset(Mode),
            for_reference=_ungrouped,
        ),
        Network("LSTM, 32 steps, batch 16", lambda: Recurrent(256, 128), _normal(16, 32, 256), 128),
    ]
)
