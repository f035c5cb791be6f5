# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A small GPT with tied weights on real English text, its blocks spread over processes.

Network and text are those of example 03, not a line of which knows of model parallelism. Each rank
saves its own part of the model and of the optimizer, and goes on from there.

    smddprun -np 2 python gpt.py --checkpoint checkpoints

Kill it, or let it end early with --stop-after, and run the same line again: it goes on where it
stopped, and every loss is the one that an uninterrupted run would have had.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# SMP: import the library
import smdistributed.modelparallel.torch as smp

# The network and the text of example 03.
sys.path.append(str(Path(__file__).resolve().parents[1] / "03_gpt"))
import text
from model import GPT, GPTConfig

VALIDATION_FRACTION = 0.1
VALIDATION_WINDOWS = 64
WARM_UP_STEPS = 20


# SMP: what a step needs of the model is inside of it; it runs once for each microbatch.
@smp.step
def train_step(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    loss = model(inputs, targets)
    model.backward(loss)
    return loss


@smp.step
def validation_step(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = model(inputs, targets)
    return loss


def windows(tokens: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (n, context) each, of the windows of ``tokens`` at ``starts`` (n,)."""
    window = tokens[starts[:, None] + torch.arange(context + 1)]
    return window[:, :-1], window[:, 1:]


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, then half a cosine down to a tenth of the peak at the last step."""
    if step < WARM_UP_STEPS:
        return float(args.lr * (step + 1) / WARM_UP_STEPS)
    done = (step - WARM_UP_STEPS) / max(args.steps - WARM_UP_STEPS, 1)
    return float(args.lr * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * done))))


def save(folder: Path, step: int, model: Any, optimizer: Any) -> None:
    """Writes a file for each rank, and then the name of the files. A collective.

    Each file is whole or absent, but one rank may have written its own when the power fails, and
    another not. So a checkpoint gets a name of its own, and counts from the moment on that `newest`
    names it.
    """
    if smp.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    smp.barrier()
    if smp.dp_rank() == 0:  # SMP: replicas hold the same
        state = {
            "step": step,
            "model": model.local_state_dict(),
            "optimizer": optimizer.local_state_dict(),
        }
        # SMP: adds the rank to the name: step_50_0, step_50_1, ...
        smp.save(state, folder / f"step_{step}", partial=True)
    smp.barrier()
    if smp.rank() == 0:
        part = folder / "newest.part"
        part.write_text(f"step_{step}\n")
        part.replace(folder / "newest")
        for old in folder.glob("step_*"):
            if not old.name.startswith(f"step_{step}_"):
                old.unlink()


def load(folder: Path | None, model: Any, optimizer: Any) -> int:
    """Goes on from the newest checkpoint, if there is one. Returns the steps that it has seen."""
    if folder is None or not (folder / "newest").exists():
        return 0
    # SMP: each rank reads its own file, and waits with it until the model is partitioned
    state = smp.load(folder / (folder / "newest").read_text().strip(), partial=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--text", type=Path, metavar="FILE", help="UTF-8 text; default as in example 03")
    add("--vocabulary", type=int, default=3000, help="tokens (3000)")
    add("--partitions", type=int, default=2, help="as many processes as this, or a multiple (2)")
    add("--microbatches", type=int, default=4, help="pieces of a batch (4)")
    add("--layers", type=int, default=6, help="transformer blocks (6)")
    add("--heads", type=int, default=4, help="attention heads in a block (4)")
    add("--width", type=int, default=96, help="size of a token's vector (96)")
    add("--context", type=int, default=64, help="tokens in a window (64)")
    add("--dropout", type=float, default=0.1, help="share of values dropped in training (0.1)")
    add("--steps", type=int, default=120, help="updates of the weights, in all (120)")
    add("--batch-size", type=int, default=16, help="windows per step and replica (16)")
    add("--lr", type=float, default=5e-3, help="learning rate at its peak (0.005)")
    add("--seed", type=int, default=1, help="of weights, windows and dropout (1)")
    add("--every", type=int, default=40, help="steps between validations and checkpoints (40)")
    add("--checkpoint", type=Path, metavar="FOLDER", help="written now and then; if there is one"
        " at the start, training goes on from it")  # fmt: skip
    add("--stop-after", type=int, metavar="STEP", help="end early, after so many steps in all")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    # SMP: more processes than partitions train replicas, hence ddp; "speed" weighs time more than
    # memory when the model is cut
    smp.init(
        {
            "partitions": args.partitions,
            "microbatches": args.microbatches,
            "optimize": "speed",
            "ddp": True,
        }
    )
    torch.cuda.set_device(smp.local_rank())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    source = text.load(args.text)
    vocabulary = text.Vocabulary.of(source.content, args.vocabulary)
    tokens = torch.tensor(vocabulary.encode(source.content))
    training, validation = tokens.tensor_split([int(len(tokens) * (1 - VALIDATION_FRACTION))])
    spread = torch.linspace(0, len(validation) - args.context - 1, VALIDATION_WINDOWS).long()
    checked_inputs, checked_targets = windows(validation, spread, args.context)

    config = GPTConfig(
        len(vocabulary), args.context, args.layers, args.heads, args.width, args.dropout
    )
    torch.manual_seed(args.seed)
    # SMP: wrap the model and the optimizer
    model = smp.DistributedModel(GPT(config))
    optimizer = smp.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    )
    first_step = load(args.checkpoint, model, optimizer)
    if smp.rank() == 0:
        print(f"text: {source.origin}, {len(tokens):,} tokens")
        if first_step:
            print(f"going on from {args.checkpoint} at step {first_step} of {args.steps}")
        sys.stdout.flush()

    last_step = args.steps if args.stop_after is None else min(args.steps, args.stop_after)
    for step in range(first_step, last_step):
        # Windows and dropout are drawn anew in each step, so there is no random state to save.
        # SMP: each replica draws its own; the leader's state seeds its whole pipeline.
        torch.manual_seed((args.seed * 1_000_003 + step) * 1_009 + smp.dp_rank())
        starts = torch.randint(len(training) - args.context, (args.batch_size,))
        inputs, targets = windows(training, starts, args.context)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        optimizer.zero_grad()
        loss = train_step(model, inputs.to(device), targets.to(device)).reduce_mean()
        optimizer.step()
        if step == first_step and smp.rank() == 0:
            # SMP: where each module is, and why
            print(model.partition_report())
            print(f"step {step + 1} of {args.steps}: loss {loss:.4f}", flush=True)

        if (step + 1) % args.every == 0 or step + 1 == last_step:
            model.eval()
            with torch.no_grad():
                checked = validation_step(
                    model, checked_inputs.to(device), checked_targets.to(device)
                )
            model.train()
            if smp.rank() == 0:
                print(
                    f"step {step + 1} of {args.steps}: loss {loss:.4f}, "
                    f"validation {checked.reduce_mean():.4f}",
                    flush=True,
                )
            if args.checkpoint is not None:
                save(args.checkpoint, step + 1, model, optimizer)

    # SMP: a collective: the whole model, by the names that it has without SMP
    whole = model.state_dict()
    if smp.rank() == 0:
        network = GPT(config)
        network.load_state_dict(whole)
        network.eval()
        with torch.no_grad():
            loss = network(checked_inputs, checked_targets)
        print(f"the whole network in one process: validation {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
