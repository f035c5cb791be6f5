# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect of 1.2.x and 1.3.0: still the library's own modules, and a batch size for the job.

It guards the initialisation, uses a GPU only where there is one, takes the class from the path that
the API page names, and sums the correct answers of all ranks with the library's `all_reduce`.
"""

from __future__ import annotations

import os

import torch
import torch.optim as optim
from parts import MNIST, Net, parse_args, report, test, train
from torch.optim.lr_scheduler import StepLR

# SMDDP: the library's counterparts of torch.distributed and of torch's DDP
import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel import (
    DistributedDataParallel as DDP,  # noqa: N817 (as documented)
)

# SMDDP: initialisation
if dist.is_available() and not dist.is_initialized():
    dist.init_process_group()


def main():
    args = parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rank = dist.get_rank()
    local_rank = dist.get_local_rank()

    # SMDDP: each process takes its share of the batch
    batch_size = args.batch_size
    batch_size //= dist.get_world_size()
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

    # SMDDP: wrap the network; the option that users of the time were told to pass
    model = DDP(Net().to(device), broadcast_buffers=False)

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

    # SMDDP: an average over the ranks, with the library's own call
    accuracy = torch.tensor([test(model, device, test_loader)], device=device)
    dist.all_reduce(accuracy, op=dist.ReduceOp.AVERAGE)
    dist.barrier()

    # SMDDP: one process saves
    if dist.get_rank() == 0:
        print(f"mean accuracy {accuracy.item():.4f}", flush=True)
        torch.save(model.state_dict(), os.path.join(args.model_dir, "mnist_cnn.pt"))

    report(rank, batch_size, model, test_loader, device)


if __name__ == "__main__":
    main()
