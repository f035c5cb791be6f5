# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The training of these scripts without trainer, launcher or processes: a loop in plain torch."""

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
import record


def train_plainly() -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train on the joined batches; returns the losses per step and the final weights."""
    data, _ = record.digits()
    model = record.initial_net()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=record.LEARNING_RATE, momentum=record.MOMENTUM
    )
    losses = []
    for start in range(0, len(data["labels"]), record.JOINED_BATCH_SIZE):
        batch = slice(start, start + record.JOINED_BATCH_SIZE)
        loss = cross_entropy(model(data["images"][batch]), data["labels"][batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()
