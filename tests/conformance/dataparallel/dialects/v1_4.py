# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect of 1.4.0 to 1.8.0: torch.distributed with the backend `smddp`, torch's DDP.

Kept from the documented script: `LOCAL_RANK` is passed on as the string it is in the environment.
"""

from __future__ import annotations

# The documented order: the library before torch.distributed.
# isort: skip_file
import os

import torch
import torch.optim as optim

# SMDDP: this import registers the backend
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

# SMDDP: PyTorch's own API from here on
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (as documented)
from torch.optim.lr_scheduler import StepLR

from parts import MNIST, Net, parse_args, report, test, train

# SMDDP: initialisation names the backend
dist.init_process_group(backend="smddp")


def main():
    args = parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rank = dist.get_rank()

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

    # SMDDP: wrap the network
    model = DDP(Net().to(device))

    # SMDDP: one GPU for each process
    local_rank = os.environ["LOCAL_RANK"]
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
