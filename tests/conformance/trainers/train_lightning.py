# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A Lightning script; how it is told about smddp is an argument.

train_lightning.py FOLDER none       one process: no strategy at all
train_lightning.py FOLDER strategy   `DDPStrategy(process_group_backend="smddp")`
train_lightning.py FOLDER sample     as the documented sample: `LightningEnvironment` with
                                     functions that read the environment, and nodes counted
                                     from SM_NUM_GPUS
"""

import os
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import record
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (imported for its effect)


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = record.initial_net()
        self.step_losses: list[torch.Tensor] = []
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.step_losses.append(loss.detach())
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, labels = batch
        self.accuracy(self.net(images), labels)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=record.LEARNING_RATE, momentum=record.MOMENTUM)


def trainer_options(how: str) -> dict[str, Any]:
    if how == "none":
        return {"devices": 1}
    if how == "strategy":
        return {
            "devices": int(os.environ["LOCAL_WORLD_SIZE"]),
            "strategy": DDPStrategy(process_group_backend="smddp"),
        }
    os.environ["PL_TORCH_DISTRIBUTED_BACKEND"] = "smddp"  # Lightning 1 read it
    # Lightning's own environment counts devices and nodes; the sample makes it read the launcher's.
    env = LightningEnvironment()
    env.world_size = lambda: int(os.environ["WORLD_SIZE"])  # type: ignore[method-assign]
    env.global_rank = lambda: int(os.environ["RANK"])  # type: ignore[method-assign]
    num_devices = int(os.environ["SM_NUM_GPUS"])
    return {
        "devices": num_devices,
        "num_nodes": int(os.environ["WORLD_SIZE"]) // num_devices,
        "strategy": DDPStrategy(cluster_environment=env, process_group_backend="smddp"),
    }


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    train, test = record.digits()
    num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    share = record.JOINED_BATCH_SIZE // num_processes
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        default_root_dir=folder,
        logger=False,
        use_distributed_sampler=False,
        **trainer_options(how),
    )
    # Rank r takes the samples r, r + n, r + 2n, ..: n shares together are a batch of one process.
    rank = int(os.environ.get("RANK", "0"))
    train_loader, test_loader = (
        DataLoader(
            TensorDataset(side["images"][rank::num_processes], side["labels"][rank::num_processes]),
            batch_size=share,
        )
        for side in (train, test)
    )
    model = Classifier()
    trainer.fit(model, train_loader, test_loader)
    losses = trainer.strategy.reduce(torch.stack(model.step_losses), reduce_op="mean")
    record.write(
        folder,
        losses.tolist(),
        model.net.state_dict(),
        strategy=type(trainer.strategy).__name__,
        environment=type(getattr(trainer.strategy, "cluster_environment", None)).__name__,
        accuracy=trainer.callback_metrics["accuracy"].item(),
        train_loss=trainer.callback_metrics["train_loss"].item(),
        global_rank=trainer.global_rank,
    )


if __name__ == "__main__":
    main()
