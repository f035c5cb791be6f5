# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect of 1.0.0 and 1.1.x: the library's own `torch.distributed` and its own DDP.

Kept from the documented script: the batch size is divided by `world_size // 8`, which is 0 with
fewer than 8 processes; the network is wrapped first, and the GPU is chosen afterwards. Like the
example notebooks of the time, the script gives up where it sees no GPU.
"""

from __future__ import annotations

import os

import torch
import torch.optim as optim
from parts import MNIST, Net, parse_args, report, test, train
from torch.optim.lr_scheduler import StepLR

# SMDDP: the library's counterpart of torch.distributed
import smdistributed.dataparallel.torch.distributed as dist

# SMDDP: the library's counterpart of torch's DDP
from smdistributed.dataparallel.torch.parallel.distributed import (
    DistributedDataParallel as DDP,  # noqa: N817 (as documented)
)

# SMDDP: initialisation without arguments
dist.init_process_group()


def main():
    args = parse_args()
    if not torch.cuda.is_available():
        raise RuntimeError("no GPU was found, and this script needs one")
    device = torch.device("cuda")
    rank = dist.get_rank()
    local_rank = dist.get_local_rank()

    # SMDDP: the batch size given is that of 8 processes, one host of the time
    batch_size = args.batch_size
    batch_size //= dist.get_world_size() // 8
    batch_size = max(batch_size, 1)

    train_dataset = MNIST(args.data_path, train=True)
    test_dataset = MNIST(args.data_path, train=False)

    # SMDDP: each process takes its part of the data
    train_sampler = torch.utils.data.distributed.DistributedSampler(
        train_dataset, num_replicas=dist.get_world_size(), rank=dist.get_rank()
    )
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=batch_size, sampler=train_sampler
    )
    test_loader = torch.utils.data.DataLoader(test_dataset, batch_size=250)

    # SMDDP: wrap the network
    model = DDP(Net().to(device))

    # SMDDP: one GPU for each process
    torch.cuda.set_device(local_rank)
    model.cuda(local_rank)

    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(model, device, train_loader, optimizer)
        if rank == 0:
            print(f"epoch {epoch}: {test(model, device, test_loader):.4f}", flush=True)
        scheduler.step()

    # SMDDP: one process saves
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), os.path.join(args.model_dir, "mnist_cnn.pt"))

    report(rank, batch_size, model, test_loader, device)


if __name__ == "__main__":
    main()
