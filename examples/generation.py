"""Generation with a cache of keys and values that grows by a row a token: two graphs, however long the text gets.

The cache's length is said to change (`mark_dynamic`), so that one graph serves all lengths. The other is that of the prompt,
whose attention is causal. `python generation.py [backend]`
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

backend = sys.argv[1] if len(sys.argv) > 1 else "cpp_cpu"

WORDS, WIDTH, HEADS, LAYERS, LONGEST = 64, 32, 4, 2, 128
Cache = list[tuple[Tensor, Tensor]]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.projection, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, _ = x.shape
        heads = self.projection(self.before(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind()
        if past is None:
            k, v = k.contiguous(), v.contiguous()  # as the cache will lie: a graph is for one order of memory
        else:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.after(x)), (k, v)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, places: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        x, grown = self.words(words) + self.places(places), []
        for number, layer in enumerate(self.layers):
            x, kept = layer(x, None if cache is None else cache[number])
            grown.append(kept)
        return self.head(x[:, -1]), grown


@torch.no_grad()
def generate(model: Callable[..., tuple[Tensor, Cache]], prompt: Tensor, count: int) -> Tensor:
    words, (scores, cache) = prompt, model(prompt, torch.arange(prompt.shape[1]), None)
    for place in range(prompt.shape[1], prompt.shape[1] + count):
        words = torch.cat((words, scores.argmax(-1, keepdim=True)), 1)
        for tensor in (tensor for pair in cache for tensor in pair):
            torch._dynamo.mark_dynamic(tensor, 2)
        scores, cache = model(words[:, -1:], torch.tensor([place]), cache)
    return words


torch.manual_seed(0)
model = Model().eval()
prompt = torch.randint(0, WORDS, (2, 5))
expected = generate(model, prompt, 60)
torch._dynamo.reset()
torch._dynamo.utils.counters.clear()
words = generate(torch.compile(model, backend=backend), prompt, 60)
graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]

print(f"{words.shape[1]} words, {(words == expected).float().mean():.0%} as in eager, {graphs} graphs compiled")
assert graphs == 2
assert torch.equal(words, expected)
