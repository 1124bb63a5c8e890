"""The Triton backend on a GPU: a model's training steps in all modes, streams, threads, memory that runs out, other devices.

What certification does not do: it runs a prim, a graph or a model by itself. Skipped where there is no CUDA device.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

import vendor_sdk
from conformance import behaviour
from conformance.cases import HUGE, Case
from conformance.certify import certify
from conformance.outcome import finished
from conformance.subject import make
from reference_backends.triton_gpu.kernels import KERNELS
from tests import test_channels, triton_attention, triton_products
from tests import test_spelled_attention as spelled
from vendor_sdk import Kernel
from vendor_sdk.contract.placement import Kind
from vendor_sdk.pipeline import recording

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # What torch says where the first thing that its thread for gradients does is a product.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context"),
]

Tensor = torch.Tensor
BACKEND = "triton_gpu"
RECORDED = {"mode": "reduce-overhead"}
MODES = [None, RECORDED]
WORDS, LENGTH, WIDTH = 1000, 64, 128


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()
    vendor_sdk.release_memory()


class Block(torch.nn.Module):
    """A transformer block as GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention, self.join = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before(x)).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.join(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


class Transformer(torch.nn.Module):
    """GPT-2's architecture, small, with tied embeddings; its loss."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.last, self.checkpointed = torch.nn.LayerNorm(WIDTH), checkpointed

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)  # type: ignore[no-untyped-call]
        logits = self.last(x) @ self.tokens.weight.T
        return F.cross_entropy(logits[:, :-1].reshape(-1, WORDS), ids[:, 1:].reshape(-1))


def drawn(batch: int = 4, length: int = LENGTH) -> Tensor:
    return torch.randint(0, WORDS, (batch, length), device="cuda")


def learn(backend: str, options: Any, half: bool, checkpointed: bool, batches: list[Tensor]) -> tuple[list[float], Tensor]:
    """Losses of steps, and all parameters after them."""
    torch.manual_seed(1)
    model = Transformer(checkpointed).cuda()
    run = model if backend == "eager" else torch.compile(model, backend=backend, options=options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    losses = []
    for ids in batches:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = run(ids)
        losses.append(loss.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return torch.stack(losses).tolist(), torch.cat([p.detach().flatten() for p in model.parameters()])


# A model


@pytest.mark.parametrize("options", MODES, ids=["launched", "recorded"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpointed"])
def test_training_goes_as_in_eager_mode(options: Any, half: bool, checkpointed: bool) -> None:
    batches = [drawn() for _ in range(12)]
    losses, parameters = learn(BACKEND, options, half, checkpointed, batches)
    expected, exact = learn("eager", None, False, False, batches)
    eager, rough = learn("eager", None, half, False, batches)
    apart, allowed = (max(abs(a - b) / b for a, b in zip(run, expected, strict=True)) for run in (losses, eager))
    assert apart <= max(2 * allowed, 1e-4)
    assert float((parameters - exact).norm() / exact.norm()) <= max(2 * float((rough - exact).norm() / exact.norm()), 1e-4)


@pytest.mark.parametrize("options", MODES, ids=["launched", "recorded"])
def test_branches_and_loops_are_compiled(options: Any) -> None:
    def f(x: Tensor, times: Tensor) -> Any:
        def turn(n: Tensor, x: Tensor) -> tuple[Tensor, ...]:
            return n - 1, (x * 1.5 + 1).softmax(0)

        _, y = while_loop(lambda n, x: n > 0, turn, (times, x))  # type: ignore[no-untyped-call]
        return torch.cond(y.sum() > 2, lambda y: (y + 1).exp(), lambda y: y.sin() * 2, (y,))

    compiled = torch.compile(f, backend=BACKEND, options=options)
    graphs: list[Any] = []
    with recording(graphs.append):
        for shape, times in (((40, 3), 4), ((40, 1), 3), ((40, 3), 0), ((40, 3), 1)):
            x, n = torch.randn(shape, device="cuda"), torch.tensor(times, device="cuda")
            torch.testing.assert_close(compiled(x, n), f(x, n))
    on_host = {each.prim for graph in graphs for each in graph.placements if each.placement.kind is Kind.HOST}
    assert on_host == {"cond", "while_loop"}


@pytest.mark.parametrize("options", MODES, ids=["launched", "recorded"])
def test_gradients_of_branches(options: Any) -> None:
    def f(x: Tensor, y: Tensor) -> Any:
        for _ in range(2):
            x = torch.cond(x.sum() > 0, lambda x, y: (x + y).tanh() * y, lambda x, y: (x - y).softmax(0), (x, y))
        return x

    compiled = torch.compile(f, backend=BACKEND, options=options)
    for sign in (1, -1, 1, 1, -1, -1):
        x, y = ((torch.rand(60, 5, device="cuda") * sign).requires_grad_() for _ in range(2))
        given = torch.randn(60, 5, device="cuda")
        torch.testing.assert_close(*(torch.autograd.grad(g(x, y), (x, y), given) for g in (compiled, f)))


@pytest.mark.parametrize("options", MODES, ids=["launched", "recorded"])
def test_one_graph_serves_sizes_that_are_marked(options: Any) -> None:
    model = Transformer().cuda()
    with vendor_sdk.observe() as seen:
        compiled = torch.compile(model, backend=BACKEND, options=options, dynamic=True)
        for batch, length in (4, 64), (3, 33), (7, 50), (3, 33), (4, 64), (2, 9):
            ids = drawn(batch, length)
            torch.testing.assert_close(compiled(ids), model(ids), rtol=2e-3, atol=2e-3)
    assert len(seen.graphs) == 2


def test_recordings_beside_others_recordings() -> None:
    """Whoever records launches clears what torch keeps for matrix products; recordings that are made anew, too."""
    others = torch.compile(lambda x, w: (x @ w).relu() @ w, mode="reduce-overhead")
    own = torch.compile(lambda x, w: (x @ w).relu() @ w, backend=BACKEND, options=RECORDED)
    w = torch.randn(256, 256, device="cuda") / 16
    for step in range(30):
        x = torch.randn(64 if step % 3 else 128, 256, device="cuda")
        expected = (x @ w).relu() @ w
        torch.testing.assert_close(own(x, w), expected, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(others(x, w).clone(), expected, rtol=1e-2, atol=1e-2)
        if step % 7 == 6:
            torch.cuda.empty_cache()


def test_training_beside_inductors_recordings() -> None:
    batches = [drawn() for _ in range(12)]
    models = [Transformer().cuda() for _ in range(2)]
    runs = [
        torch.compile(models[0], mode="reduce-overhead"),
        torch.compile(models[1], backend=BACKEND, options=RECORDED),
    ]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    losses = []
    for ids in batches:
        for run, optimizer in zip(runs, optimizers, strict=True):
            loss = run(ids)
            losses.append(float(loss.detach()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del loss
    torch.testing.assert_close(losses[0::2], losses[1::2], rtol=1e-2, atol=1e-2)


# Streams, threads, memory


@pytest.mark.parametrize("options", MODES, ids=["launched", "recorded"])
def test_results_are_ordered_with_the_stream_of_the_user(options: Any) -> None:
    compiled = torch.compile(lambda x: (x * 2).softmax(1), backend=BACKEND, options=options)
    big, stream = torch.randn(4096, 4096, device="cuda"), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for step in range(6):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            late = big
            for _ in range(4):
                late = late @ big / 64
            x = late[:64, :64] * 0 + step
            x[:, 0] += 1
            found = compiled(x) + 0
        torch.cuda.current_stream().wait_stream(stream)
        expected = torch.full((64, 64), 2.0 * step, device="cuda")
        expected[:, 0] += 2
        torch.testing.assert_close(found, expected.softmax(1))


@pytest.mark.parametrize("options", MODES, ids=["launched", "recorded"])
def test_threads_share_a_model(options: Any) -> None:
    model = Transformer().cuda().eval()
    compiled = torch.compile(model, backend=BACKEND, options=options)
    batches = [drawn() for _ in range(4)]
    with torch.no_grad():
        expected = [float(model(ids)) for ids in batches]
        for _ in range(3):
            compiled(batches[0])
    wrong: list[Any] = []

    def work(n: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                found = float(compiled(batches[n]))
                if abs(found - expected[n]) > 2e-3:
                    wrong.append((n, found, expected[n]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("options", MODES, ids=["launched", "recorded"])
def test_memory_that_runs_out_leaves_the_model_usable(options: Any) -> None:
    compiled = torch.compile(lambda x: torch.cumsum(x.softmax(1), 1).exp(), backend=BACKEND, options=options, dynamic=True)
    small = torch.randn(64, 128, device="cuda")
    expected = torch.cumsum(small.softmax(1), 1).exp()
    for _ in range(3):
        torch.testing.assert_close(compiled(small), expected)
    torch.cuda.empty_cache()  # what earlier tests left would do for the large one
    used, whole = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((used + 2**28) / whole)  # whatever others have of it
    try:
        large = torch.zeros(2**28 // 4 // 4096 - 4096, 4096, device="cuda")
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                compiled(large)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    del large
    for _ in range(3):
        torch.testing.assert_close(compiled(small), expected)


# Random numbers, devices, libraries


@pytest.mark.parametrize("options", MODES, ids=["launched", "recorded"])
def test_dropout_that_is_computed_again_is_the_same(options: Any) -> None:
    def function(x: Tensor) -> Tensor:
        return checkpoint(lambda v: F.dropout(v.tanh(), 0.5).sin(), x, use_reentrant=False)  # type: ignore[no-untyped-call, no-any-return]

    compiled, x = torch.compile(function, backend=BACKEND, options=options), torch.ones(2000, device="cuda", requires_grad=True)
    for _ in range(4):
        out = compiled(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad != 0, out != 0)


@pytest.mark.parametrize("options", MODES, ids=["launched", "recorded"])
def test_one_seed_one_result(options: Any) -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5) + torch.randn_like(x), backend=BACKEND, options=options)
    x, found = torch.ones(1000, device="cuda"), []
    for seed in (0, 0, 1, 0, 1):
        torch.manual_seed(seed)
        found.append(compiled(x))
    assert all(torch.equal(found[0], found[i]) for i in (1, 3))
    assert torch.equal(found[2], found[4])
    assert not torch.equal(found[1], found[2])


ACROSS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "a scalar of the host": lambda a: (a * torch.tensor(2.5), a + torch.tensor(2)),
    "a constant": lambda a: (a + torch.tensor([1.0, 2, 3, 4, 5, 6, 7], device=a.device),),
    "made on the host, then moved": lambda a: (a + torch.arange(7).to(a.device),),
    "moved to the host": lambda a: ((a * 2).cpu(), (a * 2).cpu() + 1),
}


@pytest.mark.parametrize("name", ACROSS)
def test_tensors_of_several_devices(name: str) -> None:
    function, x = ACROSS[name], torch.randn(5, 7, device="cuda")
    for found, expected in zip(torch.compile(function, backend=BACKEND)(x), function(x), strict=True):
        assert found.device == expected.device
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", test_channels.MODELS)
@pytest.mark.parametrize("trained", [False, True], ids=["evaluated", "trained"])
def test_images_go_through_convolutions_as_in_float64(name: str, trained: bool) -> None:
    build, shape = test_channels.MODELS[name]
    model = build().cuda().train(trained)
    compiled, exact = torch.compile(copy.deepcopy(model), backend=BACKEND), copy.deepcopy(model).double()
    with torch.set_grad_enabled(trained), torch.backends.cudnn.flags(allow_tf32=False):
        x = torch.randn(shape, device="cuda", requires_grad=trained)
        wide = x.detach().double().requires_grad_(trained)
        for _ in range(2):
            found, expected = test_channels.made(compiled(x)), test_channels.made(exact(wide))
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)
        if trained and x.numel():
            weights = [torch.randn_like(one) for one in found]
            torch.autograd.backward(found, weights)
            torch.autograd.backward(expected, [w.double() for w in weights])
            parameters = zip(compiled.parameters(), exact.parameters(), strict=True)
            for one, other in [(x, wide), *parameters]:
                assert one.grad is not None
                assert other.grad is not None
                torch.testing.assert_close(one.grad.double(), other.grad, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_a_block_of_a_diffusion_model_trains_in_halves(half: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.GroupNorm(32, 64), torch.nn.SiLU()]
    model = torch.nn.Sequential(*layers, *copy.deepcopy(layers), torch.nn.Conv2d(64, 64, 3, padding=1)).cuda().to(half)
    exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    x = torch.randn(2, 64, 32, 32, device="cuda").to(half)
    found = []
    for each, run, image in ((exact, exact, x.double()), (eager, eager, x), (model, torch.compile(model, backend=BACKEND), x)):
        loss = run(image).square().mean()
        loss.backward()
        found.append([loss.detach().double(), *(p.grad.double() for p in each.parameters())])
    for wanted, theirs, ours in zip(*found, strict=True):
        allowed = 2 * float((theirs - wanted).norm()) + 4 * torch.finfo(half).eps * float(wanted.norm())
        assert float((ours - wanted).norm()) <= allowed


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 11])
def test_pools_of_small_images(size: int) -> None:
    """Places of their windows are numbers of a few bits, which compilers pack."""
    pool = torch.nn.AdaptiveAvgPool2d(7)
    x = torch.randn(2, 3, size, size + 1, device="cuda")
    torch.testing.assert_close(torch.compile(pool, backend=BACKEND)(x), pool(x))


@pytest.mark.parametrize("columns", [784, 520, 1040, 48])
def test_rows_that_are_reduced_and_written_over(columns: int) -> None:
    """The last elements of a row are fewer than a program's threads, several of which read the same one."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.gelu(x @ w)
        return y, y.mean(1)

    x, w = torch.randn(8192, 64, device="cuda"), torch.randn(64, columns, device="cuda")
    compiled = torch.compile(f, backend=BACKEND)
    expected = f(x, w)
    for _ in range(10):
        torch.testing.assert_close(compiled(x, w), expected)


def test_products_in_generated_triton() -> None:
    with mock.patch("reference_backends.triton_gpu.products.takes_over", return_value=vendor_sdk.Supported()):
        assert not triton_products.wrong(BACKEND, "cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("batch", "terms"), [((), 4096), ((3,), 4096), ((), 67)])
def test_what_is_added_to_products_of_halves_is_rounded_once(batch: tuple[int, ...], terms: int, dtype: torch.dtype) -> None:
    a, b, c = (torch.randn(*batch, *shape, device="cuda").to(dtype) for shape in ((64, terms), (terms, 48), (64, 48)))
    name = "baddbmm" if batch else "addmm"
    out = torch.empty_like(c)
    kernel = KERNELS[name]
    assert isinstance(kernel, Kernel)
    kernel.call(out, 16 * c, a, b, beta=0.5, alpha=2)
    exact = 8 * c.double() + 2 * (a.double() @ b.double())
    spacing = torch.finfo(dtype).eps * exact.abs().max()
    assert float((out.double() - exact).abs().max()) <= 0.51 * float(spacing)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 4096, 5), (5, 4096, 3), (24, 4095, 16), (64, 4096, 44)])
def test_a_row_added_to_products_of_odd_sizes_is_rounded_once(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, terms, n = shape
    a, b, row = (torch.randn(*size, device="cuda").to(dtype) for size in ((m, terms), (n, terms), (n,)))
    linear = torch.compile(torch.nn.functional.linear, backend=BACKEND)
    found = linear(a, b, 16 * row)
    exact = a.double() @ b.double().T + 16 * row.double()
    spacing = torch.finfo(dtype).eps * exact.abs().max()
    assert float((found.double() - exact).abs().max()) <= 0.51 * float(spacing)


def test_generated_attention() -> None:
    assert not triton_attention.wrong("cuda")


def test_generated_attention_counts_beyond_two_to_the_31() -> None:
    """Rows that lie 2**24 elements apart, as a part of many heads: the last are further from the first than 32 bits count."""
    from reference_backends.triton_gpu import flash_launch

    apart, rows, width = 1 << 24, 130, 64
    memory = torch.empty(rows * apart, dtype=torch.bfloat16, device="cuda")
    parts = [memory.as_strided((1, 1, rows, width), (0, 0, apart, 1), at * width) for at in range(4)]
    for part in parts:
        part.copy_(torch.randn(part.shape))
    query, key, value, grad = parts
    exact = [part.double().contiguous().requires_grad_() for part in parts[:3]]
    expected = F.scaled_dot_product_attention(exact[0], exact[1], exact[2])
    right = expected, *torch.autograd.grad(expected, exact, grad.double())
    out, saved = flash_launch.forward(query, key, value, False, None, None)
    found = out, *flash_launch.backward(grad, query, key, value, out, saved, False, None, None)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one.double(), other, atol=0.03, rtol=0.02)


def _under_slopes(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, documents: Tensor) -> Tensor:
    places = torch.arange(q.shape[2], device=q.device)
    bias = slopes[:, None, None] * (places - places[:, None])
    bias = torch.where(places <= places[:, None], bias, -torch.inf).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])


def _in_a_window(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, documents: Tensor) -> Tensor:
    back = torch.arange(q.shape[2], device=q.device)[:, None] - torch.arange(q.shape[2], device=q.device)
    own = documents[:, :, None] == documents[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=((back >= 0) & (back < 100) & own)[:, None])


@pytest.mark.parametrize("mode", MODES, ids=["default", "recorded"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("function", [_under_slopes, _in_a_window])
def test_attention_computes_masks_of_positions(function: Callable[..., Tensor], dtype: torch.dtype, mode: Any) -> None:
    """Of lengths that are known, and (first) that are symbols: right, with gradients, and no mask in memory."""
    heads, width = 8, 64
    bound = 2e-2 if dtype == torch.bfloat16 else 1e-4
    for dynamic, lengths in ((True, (1000, 700, 1025)), (False, (1000, 1000, 1000))):
        torch.compiler.reset()
        compiled = torch.compile(function, backend=BACKEND, **(mode or {}))
        for length in lengths:
            leaves = [torch.randn(2, heads, length, width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
            beside = torch.rand(heads, device="cuda"), torch.randint(3, (2, length), device="cuda").sort(1).values
            direction = torch.randn_like(leaves[0])
            for x, dim in (*((x, 2) for x in leaves), (beside[1], 1)) if dynamic else ():
                torch._dynamo.mark_dynamic(x, dim)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            found = compiled(*leaves, *beside)
            grads = torch.autograd.grad(found, leaves, direction)
            extra = torch.cuda.max_memory_allocated() - before
            # Results, gradients, a copy of each in its order, logarithms, lists; a mask of numbers has ``length`` for each row.
            # The forward of float32 is a library's, which reads one.
            assert extra < 12 * leaves[0].nbytes or dtype == torch.float32, f"{extra} bytes"
            wide = [x.detach().double().requires_grad_() for x in leaves]
            exact = function(*wide, beside[0].double(), beside[1])
            wanted = torch.autograd.grad(exact, wide, direction.double())
            for one, other in zip((found, *grads), (exact, *wanted), strict=True):
                assert (one.double() - other).abs().max() < bound * other.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("program", [spelled.hidden_and_joined, spelled.cast_and_added, spelled.heads_behind_rows])
def test_attention_that_a_program_spells_out(
    program: spelled.Program, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HIDDEN", "PADDED"):
        monkeypatch.setattr(spelled, name, getattr(spelled, name).cuda())
    given = [x.detach().cuda().requires_grad_() for x in spelled.operands(dtype=dtype)]
    graphs: list[Any] = []
    with recording(graphs.append):
        found = torch.compile(program, backend=BACKEND)(*given)
        grad = torch.randn_like(found)
        got = torch.autograd.grad(found, given, grad)
    prims = {placed.prim for graph in graphs for placed in graph.placements}
    assert {spelled.ATTENTION, f"{spelled.ATTENTION}_backward"} <= prims
    exact = [x.detach().double().requires_grad_() for x in given]
    expected = program(*exact)
    own = program(*given)
    rough = {torch.bfloat16: 2e-2, torch.float32: 2e-5}[dtype]
    assert found.stride() == own.stride()
    right = (expected, *torch.autograd.grad(expected, exact, grad.double()))
    for one, other in zip((found, *got), right, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=rough, atol=rough * float(other.detach().abs().max()))


def test_attention_by_whoever_takes_it() -> None:
    assert not triton_attention.wrong_ways("cuda")


def test_certification_calls_prims_on_two_streams() -> None:
    subject = make(BACKEND, ())
    streams = subject.streams()
    assert streams is not None
    assert "streams" not in subject.describe().device
    x, y = torch.randn(1 << 20, device="cuda"), torch.randn(1 << 20, device="cuda")
    compiled = torch.compile(lambda v: torch.softmax(v.view(1024, -1) * 2, 1), backend=BACKEND)
    expected = [torch.softmax(v.view(1024, -1) * 2, 1) for v in (x, y)]
    compiled(x)
    for found, wanted in zip(streams.interleaved([lambda: compiled(x), lambda: compiled(y)], 8), expected, strict=True):
        for each in found:
            torch.testing.assert_close(each, wanted)
    case = Case("exp", "float32")
    outcome = finished(certify(subject, case, effort=vendor_sdk.Effort.QUICK, seed=1, device=torch.device("cuda")))
    assert (outcome.verdict, outcome.failures) == ("pass", [])


@pytest.mark.parametrize("group", sorted(HUGE))
def test_tensors_of_more_elements_than_32_bits_count(group: str) -> None:
    subject = make(BACKEND, ())
    outcome = behaviour.certify(subject, group, effort=vendor_sdk.Effort.FULL, seed=1, device=torch.device("cuda"))
    assert (outcome.verdict, outcome.failures) == ("pass", [])


# Rows that several programs take together


def _softmax(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return F.softmax(x + y, -1)


def _masked_softmax(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    hidden = torch.arange(x.shape[-1], device=x.device) * 3 < x.shape[-1]
    return F.softmax(torch.where(hidden, -torch.inf, x), -1) + 0 * y


def _norm(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x + y, w.shape, w, w)


def _root_norm(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x * 3 + y, w.shape, w)


TOGETHER = [_softmax, _masked_softmax, _norm, _root_norm]


@pytest.mark.parametrize("function", TOGETHER)
@pytest.mark.parametrize("shape", [(1, 262144), (3, 151936), (257, 65544), (40, 1 << 20), (1500, 72000)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_several_programs(function: Callable[..., Tensor], shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, y = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    w = torch.randn(shape[1], device="cuda").to(dtype)
    compiled = torch.compile(function, backend=BACKEND)
    for _ in range(3):
        result = compiled(x, y, w)
    exact, tolerance = function(x.double(), y.double(), w.double()), 2e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=tolerance * float(exact.abs().mean()))


def test_rows_of_several_programs_on_streams_at_once() -> None:
    functions = [torch.compile(function, backend=BACKEND) for function in TOGETHER]
    x, y, w = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((64, 262144), (64, 262144), (262144,)))
    exact = [function(x.double(), y.double(), w.double()) for function in TOGETHER]
    streams = [torch.Stream("cuda") for _ in functions]
    for _ in range(20):
        results = []
        for function, stream in zip(functions, streams, strict=True):
            stream.wait_stream(torch.accelerator.current_stream())
            with stream:
                results.append(function(x, y, w))
        torch.accelerator.synchronize()
        for result, expected in zip(results, exact, strict=True):
            torch.testing.assert_close(result.double(), expected, rtol=1e-2, atol=1e-2 * float(expected.abs().mean()))
