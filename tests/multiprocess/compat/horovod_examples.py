# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Scripts with the calls of Horovod's PyTorch examples, in their order.

`mnist` is like its MNIST example, without what differs from run to run, which is dropout, and with
images that need not be loaded. `synthetic` is like its synthetic benchmark, with a small model.
"""

from __future__ import annotations

import argparse
import timeit
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 -- as scripts write it
import torch.utils.data.distributed
from torch import Tensor, nn, optim

BATCH = 16
IMAGES = 480


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.view(-1, 320)))
        return F.log_softmax(self.fc2(x), dim=1)


def _dataset() -> torch.utils.data.TensorDataset:
    """Images in place of MNIST's: of each class a pattern, and noise."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(10, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (IMAGES,), generator=generator)
    images = patterns[labels] + torch.randn(IMAGES, 1, 28, 28, generator=generator) / 3
    return torch.utils.data.TensorDataset(images, labels)


def _weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def mnist(rank: int, world_size: int) -> tuple[list[Tensor], float]:
    """Weights after an epoch, and the accuracy averaged over the ranks."""
    import smdistributed.compat.horovod.torch as hvd

    args = argparse.Namespace(batch_size=BATCH, lr=0.05, momentum=0.5, seed=42)
    args.fp16_allreduce = args.use_adasum = False

    def metric_average(val: Any, name: str) -> float:
        tensor = torch.tensor(val)
        avg_tensor = hvd.allreduce(tensor, name=name)
        return float(avg_tensor.item())

    hvd.init()
    torch.manual_seed(args.seed + hvd.rank())  # so that the broadcast has something to do
    torch.set_num_threads(1)
    dataset = _dataset()
    sampler: Any = torch.utils.data.distributed.DistributedSampler(
        dataset, num_replicas=hvd.size(), rank=hvd.rank()
    )
    loader = torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = Net()
    lr_scaler = hvd.size() if not args.use_adasum else 1
    optimizer: Any = optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=1.0,
    )
    model.train()
    sampler.set_epoch(1)
    for data, target in loader:
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0.0
    for data, target in loader:
        pred = model(data).data.max(1, keepdim=True)[1]
        right += pred.eq(target.data.view_as(pred)).cpu().float().sum().item()
    return _weights(model), metric_average(right / len(sampler), "avg_accuracy")


def mnist_alone(world_size: int) -> list[Tensor]:
    """The same by one process that has all ranks' batches in each step."""
    torch.manual_seed(42)
    dataset = _dataset()
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.05 * world_size, momentum=0.5)
    loaders = []
    for rank in range(world_size):
        sampler: Any = torch.utils.data.distributed.DistributedSampler(
            dataset, num_replicas=world_size, rank=rank
        )
        sampler.set_epoch(1)
        loaders.append(torch.utils.data.DataLoader(dataset, batch_size=BATCH, sampler=sampler))
    for batches in zip(*loaders, strict=True):
        optimizer.zero_grad()
        data = torch.cat([data for data, _ in batches])
        F.nll_loss(model(data), torch.cat([target for _, target in batches])).backward()
        optimizer.step()
    return _weights(model)


def synthetic(rank: int, world_size: int) -> list[Tensor]:
    """Weights after some steps; every rank has random data of its own."""
    import smdistributed.compat.horovod.torch as hvd

    hvd.init()
    torch.manual_seed(rank)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=4),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    optimizer: Any = optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
        op=hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    data = torch.randn(4, 3, 32, 32)
    target = torch.LongTensor(4).random_() % 10

    def benchmark_step() -> None:
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()

    timeit.timeit(benchmark_step, number=5)
    return _weights(model)
