# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the documented MNIST script leaves open: the data, the network, training, test and options.

Nothing here knows of the library. The scripts beside this file hold what the documentation does
show. The images are real: the test that starts the scripts prepares them as one file, and passes it
where a training job of the time found its input, `SM_CHANNEL_TRAIN`.
"""

from __future__ import annotations

import argparse
import hashlib
import os

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name every PyTorch script gives it)
from torch import nn

SEED = 1


class Net(nn.Module):
    """A convolution and two linear layers, no buffers; dropout, as the original example has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(SEED)  # the library broadcasts rank 0's weights; the runs compare as well
        self.conv = nn.Conv2d(1, 8, kernel_size=5, padding=2)
        self.fc1 = nn.Linear(8 * 7 * 7, 64)
        self.fc2 = nn.Linear(64, 10)
        self.dropout = nn.Dropout(0.1)

    def forward(self, images):
        """Images (n, 1, 28, 28) to logarithms of class probabilities (n, 10)."""
        x = F.max_pool2d(F.relu(self.conv(images)), 4)
        x = self.dropout(F.relu(self.fc1(x.flatten(1))))
        return F.log_softmax(self.fc2(x), dim=1)


class MNIST(torch.utils.data.Dataset):
    """Stands where `torchvision.datasets.MNIST` does: (image (1, 28, 28), label) by index."""

    def __init__(self, folder, train):
        side = "train" if train else "test"
        with np.load(os.path.join(folder, "digits.npz")) as arrays:
            self.images = torch.from_numpy(arrays[f"{side}_images"])
            self.labels = torch.from_numpy(arrays[f"{side}_labels"])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--data-path", default=os.environ.get("SM_CHANNEL_TRAIN", "."))
    parser.add_argument("--model-dir", default=os.environ.get("SM_MODEL_DIR", "."))
    return parser.parse_args()


def train(model, device, train_loader, optimizer):
    model.train()
    for images, labels in train_loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        F.nll_loss(model(images), labels).backward()
        optimizer.step()


def test(model, device, test_loader):
    """Share of images recognised, 0 to 1."""
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in test_loader:
            predicted = model(images.to(device)).argmax(dim=1)
            correct += (predicted == labels.to(device)).sum().item()
    return correct / len(test_loader.dataset)


def report(rank: int, batch_size: int, model: nn.Module, test_loader, device) -> None:
    """Each rank prints, in one line: its final accuracy, and the SHA-256 of its weights.

    Not part of any documented script: it is what the test reads.
    """
    accuracy = test(model.module, device, test_loader)
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    line = f"rank {rank} batch {batch_size} accuracy {accuracy:.4f} weights {digest.hexdigest()}\n"
    os.write(1, line.encode())  # in one piece: lines of several processes must not mix
