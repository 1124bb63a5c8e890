"""Programs of several processes: what torch.distributed does in a compiled graph, and models that it wraps or shards."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

RANKS = 2
WIDTH = 64
Tensor = torch.Tensor


def group() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def gathered_and_scattered(x: Tensor) -> Tensor:
    y = functional.all_gather_tensor(x.sin().t(), 1, group())
    return functional.reduce_scatter_tensor(y * 2, "sum", 1, group()) + functional.broadcast(x.t() + 1, 0, group())


def several_at_once(x: Tensor) -> Tensor:
    a, b = functional.all_reduce_coalesced([x.sin(), x.cos()[:2]], "max", group())
    c, d = functional.reduce_scatter_tensor_coalesced([x.exp(), x.cos()[:2]], "sum", [0, 0], group())
    return a.sum(0) * b.sum(0) + c.sum(0) - d.sum(0)


def uneven_parts(x: Tensor) -> Tensor:
    rank, rows = dist.get_rank(), x.shape[0]
    sent, received = ([1, rows - 1], [1, 2]) if rank == 0 else ([2, rows - 2], [rows - 1, rows - 2])
    return functional.all_to_all_single(x.exp(), received, sent, group()) * 2


def in_place(x: Tensor) -> Tensor:
    y = x.exp()
    dist.all_reduce(y)
    z = y * 2
    dist.broadcast(z, 1)
    parts = [torch.empty_like(z) for _ in range(RANKS)]
    dist.all_gather(parts, z + x)
    return parts[0] - parts[1] + y


def under_way(x: Tensor) -> Tensor:
    """Much is computed between the beginning and the end of collectives: their operands' memory must not serve it."""
    parts = [functional.all_gather_tensor((x * i).sin(), 0, group()) for i in range(4)]
    y = x
    for _ in range(8):
        y = torch.softmax(y.sin() @ y.t(), 1) @ y
    return torch.stack([part.sum(0) for part in parts]).sum(0) + y


FUNCTIONS = (gathered_and_scattered, several_at_once, uneven_parts, in_place, under_way)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def replicated(compiled: Callable[..., nn.Module]) -> nn.Module:
    return compiled(nn.parallel.DistributedDataParallel(layers(), gradient_as_bucket_view=True))


def sharded(compiled: Callable[..., nn.Module]) -> nn.Module:
    model, mesh = layers(), init_device_mesh("cpu", (RANKS,))
    for index in (1, 3):
        fully_shard(model[index], mesh=mesh)
    return compiled(fully_shard(model, mesh=mesh))


def sharded_in_bfloat16(compiled: Callable[..., nn.Module]) -> nn.Module:
    model, mesh = layers(), init_device_mesh("cpu", (RANKS,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return compiled(fully_shard(model, mesh=mesh, mp_policy=policy))


def split_by_columns(compiled: Callable[..., nn.Module]) -> nn.Module:
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Replicate()),
    }
    return compiled(parallelize_module(layers(), init_device_mesh("cpu", (RANKS,)), plan))


MODELS = (replicated, sharded, sharded_in_bfloat16, split_by_columns)


def losses(model: nn.Module, seed: int) -> Tensor:
    """Of three steps of training; batches have 6, 8 and 10 rows."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = []
    for rows in (6, 8, 10):
        loss = (model(torch.randn(rows, WIDTH)).float() - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return torch.stack(found)


def compare(name: str, found: Tensor, expected: Tensor, **close: float) -> None:
    torch.testing.assert_close(found, expected, **close, msg=lambda text: f"{name}: {text}")


def program(rank: int, store: str, backend: str) -> None:
    logging.disable(logging.WARNING)  # of Dynamo, that it leaves out what the profiler is told
    warnings.simplefilter("ignore")  # torch 2.13 has new names for collectives, 2.11 only these
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    try:
        for function in FUNCTIONS:
            torch.manual_seed(rank)
            compiled = torch.compile(function, backend=backend)
            for rows in (8, 8, 256):
                x = torch.randn(rows, 256)
                compare(function.__name__, compiled(x), function(x), rtol=1e-4, atol=1e-4)
        for build in MODELS:
            torch._dynamo.reset()
            seed = 1 if build is split_by_columns else rank + 1  # all its ranks have one batch
            found = [losses(build(wrap), seed) for wrap in (lambda model: model, partial(torch.compile, backend=backend))]
            close = {"rtol": 2e-2, "atol": 1e-2} if build is sharded_in_bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
            compare(build.__name__, found[1], found[0], **close)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_several_processes(backend: str, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(program, (str(tmp_path / "store"), backend), nprocs=RANKS)
