# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face `Trainer` script: train, evaluate, save, resume. It does not know about smddp.

train_transformers.py FOLDER PER_DEVICE_BATCH_SIZE MAX_STEPS [CHECKPOINT]
"""

import sys
from pathlib import Path
from typing import Any

import record
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    EvalPrediction,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)


class Digits(Dataset):
    def __init__(self, side: dict[str, torch.Tensor]) -> None:
        self._side = side

    def __len__(self) -> int:
        return len(self._side["labels"])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self._side["images"][index], "labels": self._side["labels"][index]}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    right = prediction.predictions.argmax(axis=-1) == prediction.label_ids
    return {"accuracy": float(right.mean()), "count": len(right)}


class RecordingTrainer(Trainer):
    """Keeps the loss of each step as it is: the log of the Trainer rounds it to four decimals."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.step_losses: list[torch.Tensor] = []

    def compute_loss(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = super().compute_loss(model, *args, **kwargs)
        if model.training:
            self.step_losses.append(result.detach())
        return result


def main() -> None:
    folder, batch_size, max_steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    checkpoint = sys.argv[4] if len(sys.argv) > 4 else None
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=8,
        max_steps=max_steps,
        lr_scheduler_type="linear",
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=max_steps,
        save_steps=max_steps // 2,
        seed=record.SEED,
        report_to="none",
        dataloader_pin_memory=False,
    )
    set_seed(record.SEED)
    config = ViTConfig(
        image_size=28,
        patch_size=14,
        num_channels=1,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.05,
        num_labels=10,
    )
    train, test = record.digits()
    model = ViTForImageClassification(config)
    trainer = RecordingTrainer(
        model,
        arguments,
        train_dataset=Digits(train),
        eval_dataset=Digits(test),
        compute_metrics=accuracy,
        # The Trainer's own SGD has no momentum. Why SGD: runs.RELATIVE_TOLERANCE.
        optimizers=(
            torch.optim.SGD(model.parameters(), lr=record.LEARNING_RATE, momentum=record.MOMENTUM),
            None,
        ),
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    figures = trainer.evaluate()
    trainer.save_model(str(folder / "saved"))

    # The gradients of the ranks are averaged, so the loss that is trained on is the losses' mean.
    losses = torch.stack(trainer.step_losses)
    losses = trainer.accelerator.gather(losses).view(-1, len(losses)).mean(dim=0)
    record.write(
        folder,
        losses.tolist(),
        trainer.model.state_dict(),
        logged_losses=[e["loss"] for e in trainer.state.log_history if "loss" in e],
        parallel_mode=arguments.parallel_mode.value,
        device=str(arguments.device),
        wrapped_in=type(trainer.model_wrapped).__name__,
        eval_accuracy=figures["eval_accuracy"],
        eval_count=figures["eval_count"],
    )


if __name__ == "__main__":
    main()
