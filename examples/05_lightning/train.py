# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Train a convolutional network on real digits with Lightning, data-parallel, over smddp.

What it takes to go from Lightning in one process to this is marked "smddp:".

    smddprun -np 2 train.py
    torchrun --nproc-per-node 2 train.py
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

# smddp: import the library; this registers the backend
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (imported for its effect)

sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits

# Lightning walks over batches in a way that torch 2.13 calls outdated.
warnings.filterwarnings("ignore", message=".*LeafSpec.*deprecated")


class DigitReader(pl.LightningModule):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 128),
            nn.ReLU(),
            nn.Linear(128, digits.NUM_CLASSES),
        )
        # A metric object adds up over the ranks by itself.
        self.accuracy = MulticlassAccuracy(digits.NUM_CLASSES, average="micro")

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, labels = batch
        self.accuracy(self.net(images), labels)
        self.log("accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description="A convolutional network on digits, by Lightning.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--output", default="digits-lightning", help="folder for checkpoints")
    args = parser.parse_args()

    pl.seed_everything(1)
    train, test = digits.split(digits.load())
    train_set, test_set = (
        TensorDataset(torch.from_numpy(side.images), torch.from_numpy(side.labels))
        for side in (train, test)
    )
    # smddp: the launcher has started the processes; tell Lightning how many are on this host
    num_local = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = pl.Trainer(
        accelerator="auto",
        devices=num_local,
        num_nodes=int(os.environ["WORLD_SIZE"]) // num_local,
        # smddp: name the backend
        strategy=DDPStrategy(process_group_backend="smddp"),
        max_epochs=args.epochs,
        default_root_dir=args.output,
        logger=False,
        enable_model_summary=False,
        callbacks=[TQDMProgressBar(refresh_rate=21)],  # 63 steps per epoch
    )
    model = DigitReader()
    trainer.fit(
        model,
        DataLoader(train_set, batch_size=args.batch_size, shuffle=True),
        DataLoader(test_set, batch_size=125),
    )
    if trainer.is_global_zero:
        accuracy = trainer.callback_metrics["accuracy"].item()
        print(
            f"backend {dist.get_backend()}, {dist.get_world_size()} processes: "
            f"test accuracy {accuracy:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
