# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect of 2.x: the backend `smddp`, the environment for everything else, a device by number.

The device is chosen before the network is built, `device_ids` names it, and the process group is
taken down at the end.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.optim as optim
from parts import MNIST, Net, parse_args, report, test, train
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (as documented)
from torch.optim.lr_scheduler import StepLR

# SMDDP: this import registers the backend
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401


def main():
    args = parse_args()

    # SMDDP: initialisation names the backend; the launcher's variables say the rest
    dist.init_process_group(backend="smddp")
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    assert (rank, world_size) == (dist.get_rank(), dist.get_world_size())

    # SMDDP: one GPU for each process
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)

    # SMDDP: each process takes its share of the batch
    batch_size = max(args.batch_size // world_size, 1)

    train_dataset = MNIST(args.data_path, train=True)
    test_dataset = MNIST(args.data_path, train=False)

    # SMDDP: each process takes its part of the data, in another order each epoch
    train_sampler = torch.utils.data.distributed.DistributedSampler(
        train_dataset, num_replicas=world_size, rank=rank
    )
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=batch_size, sampler=train_sampler
    )
    test_loader = torch.utils.data.DataLoader(test_dataset, batch_size=250)

    # SMDDP: wrap the network
    model = DDP(Net().to(device), device_ids=[local_rank])

    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train_sampler.set_epoch(epoch)
        train(model, device, train_loader, optimizer)
        if rank == 0:
            print(f"epoch {epoch}: {test(model.module, device, test_loader):.4f}", flush=True)
        dist.barrier()
        scheduler.step()

    # SMDDP: one process saves
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(args.model_dir, "mnist_cnn.pt"))

    report(rank, batch_size, model, test_loader, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
