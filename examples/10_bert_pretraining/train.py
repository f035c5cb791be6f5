# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Pretrain a small BERT on real English text, cut into parts that run in different processes.

It learns to guess words that were masked, and whether a passage follows another one. In the shape
of BERT pretraining scripts for model parallelism: FusedLAMB with a warm-up, a checkpoint file for
each rank, parameters of the library from the launcher.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import data
import torch
import torch.distributed as dist
from modeling import NO_LABEL, BertConfig, BertForPreTraining, losses
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

# SMP: import the library
import smdistributed.modelparallel.torch as smp

VALIDATION_FRACTION = 0.1
TEST_BATCHES = 8

# SMP: what the launcher gives in SM_HP_MP_PARAMETERS goes before these, key by key
SMP_PARAMETERS = {"partitions": 2, "microbatches": 4, "ddp": True, "optimize": "speed"}

EPILOG = """\
examples:
  smddprun -np 2 train.py                            two partitions, some minutes on two cores
  smddprun -np 4 train.py                            two replicas of two partitions
  smddprun -np 2 train.py --output bert              with checkpoints; press Ctrl-C, run it again
  smddprun -np 1 -x SM_HP_MP_PARAMETERS='{"partitions": 1}' train.py
  smddprun -np 2 -x SM_HP_MP_PARAMETERS='{"auto_partition": false, "default_partition": 0}' train.py
                                                     this script, not the library, places the layers
"""


# SMP: what a step needs of the model is inside of it; it runs once for each microbatch.
@smp.step
def train_step(model: nn.Module, batch: data.Batch) -> tuple[Tensor, Tensor]:
    scores = model(batch.tokens, batch.segments, batch.is_there)
    of_words, of_next = losses(scores, batch.labels, batch.is_elsewhere)
    # SMP: instead of loss.backward()
    model.backward(of_words + of_next)
    return of_words, of_next


# SMP: calling the model to test it is a step too.
@smp.step
def test_step(model: nn.Module, batch: data.Batch) -> tuple[Tensor, Tensor, Tensor]:
    words, following = model(batch.tokens, batch.segments, batch.is_there)
    of_words, _ = losses((words, following), batch.labels, batch.is_elsewhere)
    masked = batch.labels != NO_LABEL
    right = (words.argmax(-1) == batch.labels)[masked].float().mean()
    return of_words, right, (following.argmax(-1) == batch.is_elsewhere).float().mean()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument_group("text").add_argument
    add("--text", type=Path, metavar="FILE", help="UTF-8 text; default as in example 03")
    add("--vocabulary", type=int, default=2048, help="tokens (2048)")

    add = parser.add_argument_group("network").add_argument
    add("--layers", type=int, default=6, help="of the encoder (6)")
    add("--heads", type=int, default=4, help="attention heads in a layer (4)")
    add("--width", type=int, default=96, help="size of a token's vector (96)")
    add("--context", type=int, default=64, help="tokens in a pair of passages (64)")
    add("--dropout", type=float, default=0.1, help="share of values dropped in training (0.1)")
    add("--activation-checkpointing", metavar="STRATEGY", help="of the encoder: keep only what goes"
        " into its layers, and compute the rest again; 'each' layer, 'contiguous' ones of a"
        " partition together, or 'group_2', two at a time")  # fmt: skip

    add = parser.add_argument_group("training").add_argument
    add("--steps", type=int, default=400, help="updates of the weights, in all (400)")
    add("--batch-size", type=int, default=32, help="pairs per step, over all replicas (32)")
    add("--lr", type=float, default=1e-2, help="learning rate at its peak (0.01)")
    add("--warmup", type=float, default=0.1, help="share of the steps in which it rises (0.1)")
    add("--seed", type=int, default=1, help="of weights, pairs and dropout (1)")
    add("--log-every", type=int, default=20, help="steps between lines (20)")

    add = parser.add_argument_group("files").add_argument
    add("--output", type=Path, metavar="FOLDER", help="of checkpoints; if there is one at the"
        " start, training goes on from it. At the end also model.pt, for plain PyTorch"
        )  # fmt: skip
    add("--save-every", type=int, default=100, help="steps between checkpoints (100)")
    add("--keep", type=int, default=2, help="the last ones, the others are deleted (2)")
    # A SageMaker job passes SMP's parameters here once more; SMP reads them in the environment.
    add("--mp_parameters", help=argparse.SUPPRESS)
    return parser.parse_args()


def place(model: BertForPreTraining) -> None:
    """SMP: the encoder's layers in equal shares; all else on the default partition."""
    for number, layer in enumerate(model.encoder):
        smp.set_partition(layer, number * smp.pp_size() // len(model.encoder))


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Weights decay; norms and biases do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def share_of_peak(step: int, args: argparse.Namespace) -> float:
    """Of the learning rate: a linear warm-up, then down to nothing, slowly at first."""
    done = (step + 1) / (args.steps + 1)
    return done / args.warmup if done < args.warmup else (1.0 - done) ** 0.5


def mine(first: int, batch_size: int) -> range:
    """SMP: the samples of this replica, of a batch that begins with sample ``first``."""
    share = batch_size // smp.dp_size()
    return range(first + smp.dp_rank() * share, first + (smp.dp_rank() + 1) * share)


def over_replicas(outputs: tuple[smp.StepOutput, ...]) -> list[float]:
    """Means over microbatches and replicas."""
    means = torch.stack([each.reduce_mean() for each in outputs])
    # SMP: the ranks with this partition; they have what the step returned, as all have
    dist.all_reduce(means, group=smp.get_dp_process_group())
    return (means / smp.dp_size()).tolist()


def save(
    folder: Path, step: int, keep: int, model: Any, optimizer: Any, scheduler: LambdaLR
) -> None:
    """Writes a file for each rank of the first replica, then says which is the newest.

    All ranks call it. A file is there whole or not at all; a checkpoint counts from the moment on
    that `newest` names it, when all its files are there.
    """
    if smp.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    smp.barrier()
    # SMP: replicas hold the same; each rank of the first one saves its own part
    if smp.dp_rank() == 0:
        state = {
            "step": step,
            "model": model.local_state_dict(),
            "optimizer": optimizer.local_state_dict(),
            "scheduler": scheduler.state_dict(),
        }
        # SMP: adds the rank to the name: step_100_0, step_100_1, ...
        smp.save(state, folder / f"step_{step}", partial=True)
    smp.barrier()
    if smp.rank() == 0:
        unfinished = folder / "newest.unfinished"
        unfinished.write_text(f"step_{step}\n")
        unfinished.replace(folder / "newest")
        steps = {int(path.name.split("_")[1]) for path in folder.glob("step_*")}
        for old in sorted(steps)[:-keep]:
            for path in folder.glob(f"step_{old}_*"):
                path.unlink()


def load(folder: Path | None, model: Any, optimizer: Any, scheduler: LambdaLR) -> int:
    """Goes on from the newest checkpoint, if there is one. Returns the steps that it has seen."""
    if folder is None or not (folder / "newest").exists():
        return 0
    # SMP: each rank reads its own file; model and optimizer take it once they are partitioned
    state = smp.load(folder / (folder / "newest").read_text().strip(), partial=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return int(state["step"])


def test(model: Any, batches: list[data.Batch]) -> str:
    """What the model knows of text that it has not been trained on, in words."""
    model.eval()
    with torch.no_grad():
        results = [over_replicas(test_step(model, batch)) for batch in batches]
    model.train()
    loss, words, following = torch.tensor(results).mean(dim=0).tolist()
    return (
        f"masked words {loss:.4f}, {words:.1%} of them guessed right;"
        f" next sentence told right {following:.1%}"
    )


def fill_in(network: BertForPreTraining, corpus: data.Corpus, batch: data.Batch) -> None:
    """Prints a passage with masked words, and what the network puts in their place."""
    network.eval()
    with torch.no_grad():
        words, _ = network(batch.tokens[:1], batch.segments[:1], batch.is_there[:1])
    tokens, labels = batch.tokens[0], batch.labels[0]
    is_masked = labels != NO_LABEL
    print("the text:    ", corpus.decode(torch.where(is_masked, labels, tokens).tolist()))
    print("what it sees:", corpus.decode(tokens.tolist()))
    guessed = torch.where(is_masked, words[0].argmax(-1), tokens)
    print("its guess:   ", corpus.decode(guessed.tolist()), flush=True)


def main() -> None:
    args = parse_arguments()
    # SMP: initialise; a launcher's parameters go before these
    smp.init(SMP_PARAMETERS)
    num_pieces = smp.dp_size() * smp.num_microbatches()
    if args.batch_size % num_pieces:
        raise SystemExit(
            f"--batch-size {args.batch_size} does not fall into equal pieces for {smp.dp_size()}"
            f" replicas times {smp.num_microbatches()} microbatches; expected a multiple of"
            f" {num_pieces}. Change it."
        )
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # SMP: each process its own GPU
        torch.cuda.set_device(smp.local_rank())
        device = torch.device("cuda", smp.local_rank())

    source = data.text.load(args.text)
    corpus = data.Corpus(source.content, args.vocabulary)
    num_training = int(len(corpus.sentences) * (1 - VALIDATION_FRACTION))
    training, validation = (
        data.Pairs(sentences, args.context, len(corpus), args.seed)
        for sentences in (corpus.sentences[:num_training], corpus.sentences[num_training:])
    )
    checked = DataLoader(
        validation,
        batch_sampler=[mine(n * args.batch_size, args.batch_size) for n in range(TEST_BATCHES)],
    )
    checked_batches = [batch.to(device) for batch in checked]

    torch.manual_seed(args.seed)
    config = BertConfig(
        len(corpus), args.context, args.layers, args.heads, args.width, args.dropout
    )
    network = BertForPreTraining(config)
    if not smp.state.cfg.auto_partition:
        place(network)
    # SMP: wrap the network; only the step decides what is where
    model = smp.DistributedModel(network)
    if args.activation_checkpointing is not None:
        smp.set_activation_checkpointing(network.encoder, strategy=args.activation_checkpointing)
    # SMP: wrap the optimizer; the scheduler does not mind
    optimizer = smp.DistributedOptimizer(
        smp.optimizers.FusedLAMB(parameter_groups(model), lr=args.lr)
    )
    scheduler = LambdaLR(optimizer, lambda step: share_of_peak(step, args))

    first_step = load(args.output, model, optimizer, scheduler)
    if smp.rank() == 0:
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"text: {source.origin}, {len(corpus.sentences):,} sentences")
        print(
            f"network: {num_parameters:,} parameters in {smp.pp_size()} partitions;"
            f" {smp.dp_size()} replica(s), {smp.num_microbatches()} microbatches, {device.type}"
        )
        if first_step:
            print(f"going on from {args.output} at step {first_step} of {args.steps}")

    loader = DataLoader(
        training,
        batch_sampler=[
            mine(step * args.batch_size, args.batch_size) for step in range(first_step, args.steps)
        ],
    )
    began, since = time.perf_counter(), first_step
    for step, batch in enumerate(loader, first_step + 1):
        # Dropout is drawn anew in each step, so there is no random state to save.
        # SMP: the state of a replica's leader seeds all of its partitions.
        torch.manual_seed((args.seed * 1_000_003 + step) * 1_009 + smp.dp_rank())
        optimizer.zero_grad()
        # SMP: on all ranks; those that are not the first of their pipeline ignore the batch
        outputs = train_step(model, batch.to(device))
        optimizer.step()
        scheduler.step()

        if step == first_step + 1:
            # SMP: rmsg puts the rank in front
            held = sum(parameter.numel() for parameter in model.local_parameters())
            print(smp.rmsg(f"partition {smp.pp_rank()}, {held:,} parameters"), flush=True)
        if step % args.log_every == 0 or step in (1, args.steps):
            of_words, of_next = over_replicas(outputs)
            if smp.rank() == 0:
                now = time.perf_counter()
                rate = (step - since) * args.batch_size * args.context / (now - began)
                began, since = now, step
                print(
                    f"step {step} of {args.steps}: loss {of_words + of_next:.4f} (masked words"
                    f" {of_words:.4f}, next sentence {of_next:.4f}), {rate:,.0f} tokens/s",
                    flush=True,
                )
        if args.output is not None and (step % args.save_every == 0 or step == args.steps):
            save(args.output, step, args.keep, model, optimizer, scheduler)

    told = test(model, checked_batches)
    # SMP: a collective of each pipeline: the whole model, by its names in plain PyTorch
    whole = model.state_dict()
    if smp.rank() == 0:
        print(f"test: {told}")
        if args.output is not None:
            smp.save(whole, args.output / "model.pt", partial=False)
        network = BertForPreTraining(config)
        network.load_state_dict(whole)
        fill_in(network, corpus, checked_batches[0].to(torch.device("cpu")))


if __name__ == "__main__":
    main()
