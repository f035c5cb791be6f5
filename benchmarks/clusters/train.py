# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A training whose rate is measured: `train.py SECONDS`, of each rank.

It says so many steps a second, and what the weights add up to after a fixed number of them.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (the name every PyTorch script gives it)

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (imported for its effect)

WARM_UP_STEPS = 20
STEPS_OF_A_LINE = 10


def main() -> None:
    seconds = float(sys.argv[-1])
    dist.init_process_group("smddp")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.rand(64, 512, generator=torch.Generator().manual_seed(rank))
    steps = 0

    def train(count: int) -> None:
        nonlocal steps
        for _ in range(count):
            loss = F.mse_loss(model(data), data)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % STEPS_OF_A_LINE == 0 and rank == 0:
                print(f"step {steps} loss {loss.item():.9f}", flush=True)

    train(WARM_UP_STEPS)
    weights = sum(each.double().sum().item() for each in model.parameters())
    dist.barrier()
    began = time.perf_counter()
    is_over = torch.zeros(1)
    counted = 0
    while not is_over.item():  # all ranks hear from the first one when it is over
        train(STEPS_OF_A_LINE)
        counted += STEPS_OF_A_LINE
        is_over.fill_(time.perf_counter() - began >= seconds)
        dist.broadcast(is_over, 0)
    rate = counted / (time.perf_counter() - began)
    if rank == 0:
        print(f"weights {weights:.9f}", flush=True)
        print(f"rate {rate:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
