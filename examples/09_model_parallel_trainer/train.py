# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small GPT-2 on real text with the Hugging Face `Trainer`, its layers on two processes.

In the shape of the scripts that train language models with `Trainer`, and like them without a word
about model parallelism: `Trainer` finds out by itself.

    smddprun --cpu -np 2 -x SM_HP_MP_PARAMETERS='{"partitions": 2, "microbatches": 4}' train.py
    python train.py                                                # one process
"""

from __future__ import annotations

import dataclasses
import math
import sys
import warnings
from pathlib import Path

import torch
from torch.utils.data import Dataset, DistributedSampler
from transformers import (
    EvalPrediction,
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

sys.path.append(str(Path(__file__).resolve().parents[1] / "03_gpt"))
import text

# Trainer calls torch 2.13 by names of older versions, which torch mentions each time.
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")

DEFAULTS = {
    "output_dir": "gpt-trainer",
    "max_steps": 150,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 16,
    "dataloader_drop_last": True,  # batches that divide into microbatches, also the last one
    "learning_rate": 2e-3,
    "warmup_steps": 20,
    "lr_scheduler_type": "cosine",
    "logging_steps": 25,
    "eval_strategy": "steps",
    "eval_steps": 50,
    "save_steps": 50,
    "save_total_limit": 2,
    "report_to": "none",
    "dataloader_pin_memory": False,  # memory is pinned for GPUs
}


@dataclasses.dataclass
class ModelArguments:
    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 64
    vocabulary: int = dataclasses.field(default=2048, metadata={"help": "tokens"})


@dataclasses.dataclass
class DataArguments:
    train_file: str | None = dataclasses.field(
        default=None, metadata={"help": "a text; default: the best one at hand"}
    )
    validation_pieces: int = 64


class Pieces(Dataset):
    """A text, cut into pieces of equal length."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


class ReplicaTrainer(Trainer):
    """Gives each of several replicas (`"ddp": true`) its share of the training data.

    On its model parallel branch `Trainer` itself gives the same to all.
    """

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> DistributedSampler:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        replicas, replica = self.args.world_size, self.args.process_index
        return DistributedSampler(dataset, replicas, replica, seed=self.args.seed)


def most_likely(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What is kept of the logits, which would be large."""
    return logits.argmax(dim=-1)


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    right = prediction.predictions[:, :-1] == prediction.label_ids[:, 1:]
    return {"accuracy": float(right.mean())}


def main() -> None:
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    parser.set_defaults(**DEFAULTS)
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    content, origin = text.load(data_args.train_file and Path(data_args.train_file))
    content = content[:1_000_000]
    vocabulary = text.Vocabulary.of(content, model_args.vocabulary)
    tokens = torch.tensor(vocabulary.encode(content))
    num_pieces = len(tokens) // model_args.context
    pieces = tokens[: num_pieces * model_args.context].view(num_pieces, -1)

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(vocabulary),
            n_positions=model_args.context,
            n_embd=model_args.width,
            n_layer=model_args.layers,
            n_head=model_args.heads,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    trainer = ReplicaTrainer(
        model,
        training_args,
        train_dataset=Pieces(pieces[data_args.validation_pieces :]),
        eval_dataset=Pieces(pieces[: data_args.validation_pieces]),
        preprocess_logits_for_metrics=most_likely,
        compute_metrics=accuracy,
    )
    if trainer.is_world_process_zero():
        print(
            f"{training_args.parallel_mode.value}: {training_args.world_size} replica(s) of"
            f" {model.num_parameters():,} parameters; {origin}",
            flush=True,
        )
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    figures = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        print(
            f"perplexity {math.exp(figures['eval_loss']):.1f},"
            f" accuracy {figures['eval_accuracy']:.1%}; model in {training_args.output_dir}",
            flush=True,
        )


if __name__ == "__main__":
    main()
