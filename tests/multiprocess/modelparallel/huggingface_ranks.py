# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_huggingface_trainer.py do: one Hugging Face Trainer after the other.

The functions are the same with model parallelism and without: `transformers` finds out from the
environment of the rank. Dropout is off, so what is trained depends on the batches alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from accelerate.state import PartialState
from torch import Tensor, nn
from torch.utils.data import Dataset, DistributedSampler
from transformers import (
    EvalPrediction,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

SEED = 3
CONTEXT = 16
EVERY_STEPS = 2  # of evaluating and saving
RESUMED_FROM = 4


class Text(Dataset):
    """Pieces of a page of Python's reference, in ASCII."""

    def __init__(self, first: int, number: int) -> None:
        from pydoc_data.topics import topics

        text = topics["assignment"].encode("ascii", "replace")
        tokens = torch.tensor(list(text[first * CONTEXT : (first + number) * CONTEXT]))
        self._pieces = tokens.view(number, CONTEXT)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        labels = self._pieces[index].clone()
        # Never predicted; but without model parallelism Trainer counts it when it takes the mean.
        labels[0] = -100
        return {"input_ids": self._pieces[index], "labels": labels}


class RecordingTrainer(Trainer):
    """Gives each replica its share of the batches, and keeps the losses, which the log rounds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.losses: list[float] = []

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> DistributedSampler:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        replicas, replica = self.args.world_size, self.args.process_index
        return DistributedSampler(dataset, replicas, replica, seed=self.args.seed)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        self.losses.append(loss.item())
        return loss


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    right = prediction.predictions[:, :-1].argmax(axis=-1) == prediction.label_ids[:, 1:]
    return {"accuracy": float(right.mean()), "count": len(right)}


def run(folder: Path, *, resume: Path | None = None, **options: Any) -> dict[str, Any]:
    """Trains, evaluates and predicts; what came out."""
    set_seed(SEED)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=128,
            n_positions=CONTEXT,
            n_embd=16,
            n_layer=4,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    arguments = TrainingArguments(
        **{
            "output_dir": str(folder),
            "max_steps": 8,
            "per_device_eval_batch_size": 8,
            "learning_rate": 1e-2,
            "weight_decay": 0.1,
            "warmup_steps": 2,
            "logging_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": EVERY_STEPS,
            "save_steps": EVERY_STEPS,
            "seed": SEED,
            "report_to": "none",
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **options,
        }
    )
    trainer = RecordingTrainer(
        model,
        arguments,
        train_dataset=Text(0, 96),
        eval_dataset=Text(96, 20),  # the last batch is a smaller one
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    figures = trainer.evaluate()
    predicted = trainer.predict(Text(96, 20))
    trainer.save_model(str(folder / "saved"))
    history = trainer.state.log_history
    return {
        "losses": trainer.losses,
        "weights": {k: v.clone() for k, v in trainer.model_wrapped.state_dict().items()},
        "norms": [float(entry["grad_norm"]) for entry in history if "grad_norm" in entry],
        "rates": [entry["learning_rate"] for entry in history if "learning_rate" in entry],
        "evaluations": [
            (entry["eval_loss"], entry["eval_accuracy"], entry["eval_count"])
            for entry in [*history, figures]
            if "eval_loss" in entry
        ],
        "predictions": torch.from_numpy(predicted.predictions),
        "best": trainer.state.best_model_checkpoint,
        "mode": arguments.parallel_mode.value,
        "wrapped_in": type(trainer.model_wrapped).__name__,
        "states": len(trainer.optimizer.state),
    }


def model_parallel(rank: int, world_size: int, folder: Path, batch_size: int) -> dict[str, Any]:
    """Under Trainer's own model parallel branch."""
    import smdistributed.modelparallel.torch as smp

    assert smp.is_initialized(), "transformers did it when it was imported"
    per_device = {"per_device_train_batch_size": batch_size // smp.dp_size()}
    found: dict[str, Any] = {"accelerate": accelerate_on_gpus()}
    found["whole"] = run(folder / "whole", **per_device)
    checkpoint = folder / "whole" / f"checkpoint-{RESUMED_FROM}"
    found["resumed"] = run(folder / "resumed", resume=checkpoint, **per_device)
    if smp.dp_size() == 1:
        found["accumulated"] = accumulated(folder, batch_size)
        found["best"] = run(
            folder / "best",
            max_steps=4,
            load_best_model_at_end=True,
            metric_for_best_model="loss",
            greater_is_better=True,  # the worst, which is not the last
            save_safetensors=False,
            **per_device,
        )
        parameters = json.loads(os.environ["SM_HP_MP_PARAMETERS"])
        os.environ["SM_HP_MP_PARAMETERS"] = json.dumps({**parameters, "fp16": True})
        smp.reset()
        smp.init()
        found["half"] = run(folder / "half", **per_device)
        checkpoint = folder / "half" / f"checkpoint-{RESUMED_FROM}"
        found["half resumed"] = run(folder / "half_resumed", resume=checkpoint, **per_device)
    return found


def plain(rank: int, world_size: int, folder: Path, saved: Path, batch_size: int) -> dict[str, Any]:
    """In one process, without; and what it reads of what the others have written."""
    return {
        "whole": run(folder / "whole", per_device_train_batch_size=batch_size),
        "accumulated": accumulated(folder, batch_size),
        "saved": weights_in(saved / "whole" / "saved"),
        "best": weights_in(saved / "best" / f"checkpoint-{EVERY_STEPS}"),
    }


def accumulated(folder: Path, batch_size: int) -> dict[str, Any]:
    return run(
        folder / "accumulated",
        max_steps=4,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=batch_size // 2,
        max_grad_norm=0.1,  # less than any
    )


def weights_in(folder: Path) -> dict[str, Tensor]:
    """As a user of the trained model reads it."""
    model, report = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert isinstance(model, nn.Module)
    return dict(model.state_dict())


def accelerate_on_gpus() -> str:
    """How Accelerate would divide the data, if this machine had GPUs."""
    assert "LOCAL_RANK" not in os.environ
    with mock.patch("torch.cuda.is_available", return_value=True):
        _, kind = PartialState._prepare_backend(object.__new__(PartialState))
    return str(kind.value)
