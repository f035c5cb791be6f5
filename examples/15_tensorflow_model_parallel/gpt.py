# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A small GPT on real English text by Keras' `fit`, its layers spread over processes.

Keras has the loop; what is there for the library is marked "SMP:". It runs with Keras 3 and, with
TF_USE_LEGACY_KERAS=1, with tf-keras.

    smddprun -np 2 python gpt.py --checkpoint checkpoints
    smddprun -np 4 python gpt.py                # two replicas of the two processes
    python gpt.py --partitions 1                # one process

End it early with --stop-after, or kill it, and run the same line again: it goes on where it was
saved last, with the losses that an uninterrupted run would have had. So do another number of
processes, but for the last digits.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# SMP: import the library
import smdistributed.modelparallel.tensorflow as smp

# The text and its vocabulary are those of example 03.
sys.path.append(str(Path(__file__).resolve().parents[1] / "03_gpt"))
import text

VALIDATION_FRACTION = 0.1
VALIDATION_WINDOWS = 64
WARM_UP_STEPS = 20

layers = tf.keras.layers


class Block(layers.Layer):
    """Attention to the tokens before, then two dense layers; both add to what came in."""

    def __init__(self, width: int, heads: int, **of_layer: Any) -> None:
        super().__init__(**of_layer)
        self.attention_norm = layers.LayerNormalization(epsilon=1e-5)
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.dense_norm = layers.LayerNormalization(epsilon=1e-5)
        self.up = layers.Dense(4 * width, activation="gelu")
        self.down = layers.Dense(width)

    def call(self, x: Any) -> Any:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, use_causal_mask=True)
        return x + self.down(self.up(self.dense_norm(x)))


# SMP: instead of tf.keras.Model
class GPT(smp.DistributedModel):
    """From tokens (batch, context) to scores of what comes next (batch, context, vocabulary)."""

    def __init__(self, vocabulary: int, context: int, blocks: int, heads: int, width: int) -> None:
        super().__init__()
        self.context, self.num_blocks = context, blocks
        self.tokens = layers.Embedding(vocabulary, width)
        self.positions = layers.Embedding(context, width)
        for number in range(blocks):  # not in a list: Keras 3 would not find names for their files
            setattr(self, f"block_{number}", Block(width, heads))
        self.norm = layers.LayerNormalization(epsilon=1e-5)
        self.head = layers.Dense(vocabulary)

    def call(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.positions(tf.range(self.context))
        for number in range(self.num_blocks):
            x = getattr(self, f"block_{number}")(x)
        return self.head(self.norm(x))


class Save(tf.keras.callbacks.Callback):
    """Saves at the end of each epoch."""

    def __init__(self, manager: smp.CheckpointManager) -> None:
        super().__init__()
        self.manager = manager

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # SMP: on all ranks; rank 0 writes one file that has what all of them hold
        path = self.manager.save()
        say(f"saved {path}")


def say(what: str) -> None:
    # SMP: one rank speaks
    if smp.rank() == 0:
        print(what, flush=True)


def windows(tokens: np.ndarray, starts: Any, context: int) -> tuple[Any, Any]:
    """Inputs and targets, (n, context) each, of the windows of `tokens` at `starts` (n,)."""
    found = tf.gather(tokens, starts[:, None] + tf.range(context + 1))
    return found[:, :-1], found[:, 1:]


def batches(tokens: np.ndarray, first: int, last: int, args: argparse.Namespace) -> tf.data.Dataset:
    """Of the steps from `first` to `last`. What is drawn for one depends on nothing before it."""

    def batch(step: Any) -> tuple[Any, Any]:
        # SMP: the ranks of a pipeline draw the same windows, and each replica its own
        seed = (args.seed, step * smp.dp_size() + smp.dp_rank())
        end = len(tokens) - args.context
        starts = tf.random.stateless_uniform([args.batch_size], seed, 0, end, tf.int32)
        return windows(tokens, starts, args.context)

    return tf.data.Dataset.range(first, last, output_type=tf.int32).map(batch)


def continued(model: GPT, start: list[int], count: int, seed: int) -> list[int]:
    """Draws `count` tokens after those of `start`, one by one."""
    written, drawn = list(start), np.random.default_rng(seed)
    for _ in range(count):
        seen = written[-model.context :]
        window = np.array([seen + [0] * (model.context - len(seen))], np.int32)
        # SMP: on all ranks, and all have the result
        scores = model.predict_on_batch(window)
        noise = drawn.gumbel(size=scores.shape[-1])  # the largest sum is drawn by softmax(scores)
        written.append(int(np.argmax(scores[0, len(seen) - 1] + noise)))
    return written[len(start) :]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--text", type=Path, metavar="FILE", help="UTF-8 text; default as in example 03")
    add("--vocabulary", type=int, default=1000, help="tokens (1000)")
    add("--partitions", type=int, default=2, help="as many processes as this, or a multiple (2)")
    add("--microbatches", type=int, default=4, help="pieces of a batch (4)")
    add("--blocks", type=int, default=4, help="transformer blocks (4)")
    add("--heads", type=int, default=4, help="attention heads in a block (4)")
    add("--width", type=int, default=96, help="size of a token's vector (96)")
    add("--context", type=int, default=64, help="tokens in a window (64)")
    add("--batch-size", type=int, default=16, help="windows per step and replica (16)")
    add("--steps", type=int, default=200, help="updates of the weights, in all (200)")
    add("--every", type=int, default=50, help="steps of an epoch: then comes a validation, and a"
        " checkpoint (50)")  # fmt: skip
    add("--lr", type=float, default=5e-3, help="learning rate at its peak (0.005)")
    add("--seed", type=int, default=1, help="of weights and windows (1)")
    add("--checkpoint", type=Path, metavar="FOLDER", help="written after each epoch; if there is"
        " one at the start, training goes on from it")  # fmt: skip
    add("--stop-after", type=int, metavar="STEP", help="end early, after so many steps in all")
    add("--write", type=int, default=40, help="tokens that the network goes on with (40)")
    args = parser.parse_args()
    for name in ("steps", "stop_after"):
        if (getattr(args, name) or 0) % args.every:
            parser.error(
                f"--{name.replace('_', '-')} {getattr(args, name)} is not a multiple of"
                f" --every {args.every}, and epochs are saved whole"
            )
    return args


def load_text(path: Path | None) -> text.Text:
    """The text; ends the program if there is none."""
    try:
        return text.load(path)
    except (OSError, ValueError, ImportError) as error:
        raise SystemExit(f"No text to train on: {error}. Pass one in UTF-8: --text FILE") from None


def main() -> None:
    args = parse_arguments()
    source = load_text(args.text)
    # SMP: more processes than partitions train replicas, hence horovod; fit averages by itself
    smp.init({"partitions": args.partitions, "microbatches": args.microbatches, "horovod": True})
    tf.keras.utils.set_random_seed(args.seed)

    vocabulary = text.Vocabulary.of(source.content, args.vocabulary)
    tokens = np.array(vocabulary.encode(source.content), np.int32)
    training, validation = np.split(tokens, [int(len(tokens) * (1 - VALIDATION_FRACTION))])
    spread = np.linspace(0, len(validation) - args.context - 1, VALIDATION_WINDOWS).astype(np.int32)
    say(f"text: {source.origin}, {len(tokens):,} tokens")

    model = GPT(len(vocabulary), args.context, args.blocks, args.heads, args.width)
    rate = tf.keras.optimizers.schedules.CosineDecay(
        0.0, args.steps, alpha=0.1, warmup_target=args.lr, warmup_steps=WARM_UP_STEPS
    )
    optimizer = tf.keras.optimizers.AdamW(rate, weight_decay=0.1, global_clipnorm=1.0)
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    callbacks = []
    if args.checkpoint is not None:
        # SMP: instead of tf.train.CheckpointManager
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        manager = smp.CheckpointManager(checkpoint, str(args.checkpoint), max_to_keep=2)
        # SMP: the optimizer's count is there at once, all else when the first step has decided
        # which rank owns what
        if manager.restore() is not None:
            say(f"going on from {manager.latest_checkpoint}, step {int(optimizer.iterations)}")
        callbacks.append(Save(manager))

    first, last = int(optimizer.iterations), args.steps
    if args.stop_after is not None:
        last = min(last, args.stop_after)
    model.fit(
        batches(training, first, last, args),
        initial_epoch=first // args.every,
        epochs=last // args.every,
        steps_per_epoch=args.every,
        validation_data=windows(validation, spread, args.context),
        validation_batch_size=args.batch_size,
        callbacks=callbacks,
        shuffle=False,  # the batches are drawn
        # SMP: one rank speaks
        verbose=2 if smp.rank() == 0 else 0,
    )

    start = validation[: args.context].tolist()
    goes_on = continued(model, start, args.write, args.seed)
    # SMP: what each rank has: its own part
    here = sum(int(np.prod(variable.shape)) for variable in model.variables)
    for rank, (partition, parameters) in enumerate(smp.allgather((smp.mp_rank(), here), smp.WORLD)):
        say(f"rank {rank}: partition {partition}, {parameters:,} parameters")

    say(f"--- the text goes ---\n{vocabulary.decode(start)}")
    say(f"--- and the network goes on ---\n{vocabulary.decode(goes_on)}")


if __name__ == "__main__":
    main()
