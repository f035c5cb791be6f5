# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small vision transformer on real digits with the Hugging Face `Trainer`.

Nothing in this script is about smddp, or about several processes. `Trainer` finds out by itself:

    smddprun --cpu -np 2 train.py
    python train.py                                                # one process
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import (
    EvalPrediction,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)

sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits

# Trainer calls torch 2.13 by names of older versions, which torch mentions each time.
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


class DigitImages(Dataset):
    """Digits under the names that the model expects."""

    def __init__(self, side: digits.Digits) -> None:
        self._images, self._labels = map(torch.from_numpy, side)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self._images[index], "labels": self._labels[index]}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    right = prediction.predictions.argmax(axis=-1) == prediction.label_ids
    return {"accuracy": float(right.mean())}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A vision transformer on digits, by Trainer.")
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--output", default="digits-vit", help="folder for checkpoints and model")
    parser.add_argument("--resume", metavar="CHECKPOINT", help="go on from this checkpoint")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    training_args = TrainingArguments(
        output_dir=args.output,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=125,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_ratio=0.1,
        logging_strategy="epoch",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        seed=1,
        report_to="none",
        dataloader_pin_memory=False,  # memory is pinned for GPUs
    )
    set_seed(training_args.seed)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=28,
            patch_size=7,
            num_channels=1,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=digits.NUM_CLASSES,
        )
    )
    train, test = digits.split(digits.load())
    trainer = Trainer(
        model,
        training_args,
        train_dataset=DigitImages(train),
        eval_dataset=DigitImages(test),
        compute_metrics=accuracy,
    )
    if trainer.is_world_process_zero():
        backend = dist.get_backend() if dist.is_initialized() else "none"
        print(
            f"{training_args.parallel_mode.value}: {training_args.world_size} process(es), "
            f"backend {backend}, device {training_args.device}",
            flush=True,
        )
    trainer.train(resume_from_checkpoint=args.resume)
    figures = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        print(f"test accuracy {figures['eval_accuracy']:.1%}; model in {args.output}", flush=True)


if __name__ == "__main__":
    main()
