# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An Accelerate training loop.

train_accelerate.py FOLDER detected    `Accelerator()`: it finds out about smddp by itself
train_accelerate.py FOLDER cpu         the process group first, then `Accelerator(cpu=True)`
"""

import sys
from pathlib import Path

import record
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    if how == "cpu":
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (registers smddp)

        dist.init_process_group("smddp")
    accelerator = Accelerator(cpu=how == "cpu")

    train, test = record.digits()
    model = record.initial_net()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=record.LEARNING_RATE, momentum=record.MOMENTUM
    )
    share = record.JOINED_BATCH_SIZE // accelerator.num_processes
    loader = DataLoader(TensorDataset(train["images"], train["labels"]), batch_size=share)
    test_loader = DataLoader(TensorDataset(test["images"], test["labels"]), batch_size=share)
    model, optimizer, loader, test_loader = accelerator.prepare(
        model, optimizer, loader, test_loader
    )
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), reduction="mean").item())

    num_right = num_seen = 0
    with torch.no_grad():
        for images, labels in test_loader:
            predicted, labels = accelerator.gather_for_metrics(
                (model(images).argmax(dim=1), labels)
            )
            num_right += int((predicted == labels).sum())
            num_seen += len(labels)

    record.write(
        folder,
        losses,
        accelerator.unwrap_model(model).state_dict(),
        device=str(accelerator.device),
        distributed_type=accelerator.distributed_type.value,
        wrapped_in=type(model).__name__,
        num_right=num_right,
        num_seen=num_seen,
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
