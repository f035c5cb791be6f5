# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small network on real digits in an Accelerate loop, which finds smddp by itself.

Nothing in this script is about smddp. In a SageMaker job of Accelerate's own launcher the variable
below is set already; elsewhere, set it:

    smddprun --cpu -x ACCELERATE_USE_SAGEMAKER=true -np 2 train.py
    python train.py                                                # one process
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits

# Accelerate calls torch 2.13 by names of older versions, which torch mentions each time.
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


def main() -> None:
    parser = argparse.ArgumentParser(description="A small network on digits, by Accelerate.")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    args = parser.parse_args()

    accelerator = Accelerator()
    backend = dist.get_backend() if dist.is_initialized() else "none"
    accelerator.print(f"{accelerator.num_processes} process(es), backend {backend}", flush=True)

    set_seed(1)
    train, test = digits.split(digits.load())
    train_set, test_set = (
        TensorDataset(torch.from_numpy(side.images), torch.from_numpy(side.labels))
        for side in (train, test)
    )
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(28 * 28, 256), nn.ReLU(), nn.Linear(256, digits.NUM_CLASSES)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model,
        optimizer,
        DataLoader(train_set, batch_size=args.batch_size, shuffle=True),
        DataLoader(test_set, batch_size=125),
    )
    for epoch in range(args.epochs):
        bar = tqdm(
            train_loader,
            desc=f"epoch {epoch + 1}",
            mininterval=1,
            disable=not accelerator.is_main_process,
        )
        for images, labels in bar:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()

        num_right = num_seen = 0
        with torch.no_grad():
            for images, labels in test_loader:
                predicted = model(images).argmax(dim=1)
                predicted, labels = accelerator.gather_for_metrics((predicted, labels))
                num_right += int((predicted == labels).sum())
                num_seen += len(labels)
        accelerator.print(
            f"epoch {epoch + 1}: test accuracy {num_right / num_seen:.1%}", flush=True
        )
    accelerator.end_training()


if __name__ == "__main__":
    main()
