# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Training on N ranks is training on one process with the joined batch, whatever wraps the network.

The network learns real digits. In every step each of N ranks takes its share of the same 24 images,
and the loss, averaged over the ranks, and at the end the weights must be those of one process that
takes all 24. Between ranks there is no tolerance: bits must agree.

Tolerance: 1e-6 relative per step (specification, section 12, point 2). Both sides add the same
float32 products in another order: one process in one sum over 24 images, N ranks in N sums, then
the mean of those. Each addition rounds by at most 6e-8 of its result, and of several in a row most
errors cancel: a step differs by a few 1e-7. The next step starts from weights that differ that
much, so after `k` steps `k` times 1e-6 is allowed, for the loss relative to the loss, for a tensor
of weights relative to its norm (an element near zero has no relative accuracy of its own). The
optimizer is SGD with momentum, which passes differences on as they are; Adam divides by the size of
the gradient, so where that is near zero a difference in the last bit becomes one in the first.

Source: specification, section 12, point 2; sections 4.4 (torch's DDP, FSDP) and 5.2 (legacy DDP).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (the name every PyTorch script gives it)
from harness import run_ranks
from torch import Tensor, nn

UPDATES = 12  # of the weights
MAX_ACCUMULATE = 3  # batches to one update
JOINED_BATCH = 24  # divides by 2, 3 and 8
TOLERANCE_PER_STEP = 1e-6
DEADLINE_S = 240.0

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)


class Network(nn.Module):
    """Convolutions, normalisation and linear layers; sizes that do not divide evenly by 2, 3 or 8.

    No dropout, and no batch normalisation: both would see another batch on N ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv1 = nn.Conv2d(1, 5, kernel_size=5, padding=2)
        self.conv2 = nn.Conv2d(5, 7, kernel_size=3, padding=1)
        self.norm = nn.LayerNorm(7 * 7 * 7)
        self.hidden = nn.Linear(7 * 7 * 7, 33)
        self.output = nn.Linear(33, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.gelu(self.conv1(images)), 2)
        x = F.max_pool2d(F.gelu(self.conv2(x)), 2)
        x = F.gelu(self.hidden(self.norm(x.flatten(1))))
        scores: Tensor = self.output(x)
        return scores


# What a wrapper makes of a network: the module to call, and how to leave gradients unreduced.
Wrapped = tuple[nn.Module, Callable[[], contextlib.AbstractContextManager[None]]]


def torch_ddp(network: nn.Module, **options: Any) -> Wrapped:
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(network, **options)
    return ddp, ddp.no_sync


def legacy_ddp(network: nn.Module, **options: Any) -> Wrapped:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(network, **options)
    # With gradient_accumulation_steps the class counts by itself.
    counts = "gradient_accumulation_steps" in options
    return ddp, contextlib.nullcontext if counts else ddp.no_sync


def fsdp2(network: Network, **options: Any) -> Wrapped:
    from torch.distributed.fsdp import fully_shard

    for layer in (network.conv2, network.hidden):
        fully_shard(layer, **options)
    fully_shard(network, **options)

    @contextlib.contextmanager
    def no_sync() -> Any:
        network.set_requires_gradient_sync(False)  # type: ignore[operator]
        yield
        network.set_requires_gradient_sync(True)  # type: ignore[operator]

    return network, no_sync


WRAPPERS = {function.__name__: function for function in (torch_ddp, legacy_ddp, fsdp2)}


@functools.cache
def _digits() -> tuple[Tensor, Tensor]:
    """Images and labels, enough for all batches."""
    path = Path(__file__).parents[3] / "examples" / "01_mnist" / "digits.py"
    spec = importlib.util.spec_from_file_location("digits_of_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    train, _ = module.split(module.load(), per_class=120)
    count = UPDATES * MAX_ACCUMULATE * JOINED_BATCH
    return torch.from_numpy(train.images[:count]), torch.from_numpy(train.labels[:count])


def _train(
    module: nn.Module,
    no_sync: Callable[[], contextlib.AbstractContextManager[None]],
    batches: list[tuple[Tensor, Tensor]],
    accumulate: int,
) -> list[float]:
    """SGD over this process's share of each batch; `accumulate` batches to one update."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for number, (images, labels) in enumerate(batches, 1):
        is_update = number % accumulate == 0
        with contextlib.nullcontext() if is_update else no_sync():
            loss = F.cross_entropy(module(images), labels)
            (loss / accumulate).backward()
        if is_update:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()


def train_both_ways(
    rank: int, world_size: int, wrapper: str, options: dict[str, Any], accumulate: int, data: str
) -> None:
    """On every rank: train together, then alone on the joined batches, and compare."""
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (imported for its effect)

    images, labels = torch.load(data, weights_only=True)
    joined = list(zip(images.split(JOINED_BATCH), labels.split(JOINED_BATCH), strict=True))
    joined = joined[: UPDATES * accumulate]
    shares = [(i.chunk(world_size)[rank], t.chunk(world_size)[rank]) for i, t in joined]

    dist.init_process_group("smddp")
    module, no_sync = WRAPPERS[wrapper](Network(), **options)
    local_losses = torch.tensor(_train(module, no_sync, shares, accumulate), dtype=torch.float64)
    dist.all_reduce(local_losses, op=dist.ReduceOp.AVG)
    weights = {
        name.removeprefix("module."): _whole(parameter)
        for name, parameter in module.named_parameters()
    }
    for name, weight in weights.items():
        of_all = [torch.empty_like(weight) for _ in range(world_size)]
        dist.all_gather(of_all, weight.contiguous())
        for other, theirs in enumerate(of_all):
            # As integers: NaN would differ from itself, and 0.0 would equal -0.0.
            equal = torch.equal(theirs.view(torch.int32), weight.view(torch.int32))
            assert equal, f"{name} differs between rank {rank} and rank {other}"

    alone = Network()
    losses = torch.tensor(
        _train(alone, contextlib.nullcontext, joined, accumulate), dtype=torch.float64
    )
    assert losses[-3:].mean() < 0.8 * losses[0], f"nothing was learnt: {losses}"
    updates = torch.arange(len(joined)) // accumulate + 1
    error = (local_losses - losses).abs() / losses / updates
    assert error.max() < TOLERANCE_PER_STEP, f"loss: relative error per step {error}"
    expected = dict(alone.named_parameters())
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        difference = (weight - expected[name].detach()).norm() / expected[name].detach().norm()
        error_per_step = difference.item() / UPDATES
        assert error_per_step < TOLERANCE_PER_STEP, f"{name}: {error_per_step} per step"
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digits as a file: reading the original once takes longer than all the training."""
    path = tmp_path_factory.mktemp("digits") / "digits.pt"
    torch.save(_digits(), path)
    return str(path)


CASES = [
    *(
        (wrapper, {}, accumulate, n)
        for wrapper in WRAPPERS
        for accumulate in (1, 3)
        for n in (2, 3)
    ),
    ("torch_ddp", {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}, 1, 2),
    ("torch_ddp", {"static_graph": True}, 1, 2),
    ("torch_ddp", {"find_unused_parameters": True, "broadcast_buffers": False}, 1, 2),
    ("legacy_ddp", {"bucket_cap_mb": 0.015625}, 1, 2),  # 16 KiB: several buckets
    ("legacy_ddp", {"gradient_accumulation_steps": 3}, 3, 2),
    ("legacy_ddp", {"find_unused_parameters": True, "broadcast_buffers": False}, 1, 2),
    ("fsdp2", {"reshard_after_forward": False}, 1, 2),
]


@pytest.mark.parametrize(("wrapper", "options", "accumulate", "world_size"), CASES)
def test_equal_to_one_process(
    wrapper: str, options: dict[str, Any], accumulate: int, world_size: int, data: str
) -> None:
    run_ranks(
        train_both_ways, world_size, wrapper, options, accumulate, data, deadline_s=DEADLINE_S
    )


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_equal_to_one_process_on_eight_ranks(wrapper: str, data: str) -> None:
    run_ranks(train_both_ways, 8, wrapper, {}, 1, data, deadline_s=DEADLINE_S)
