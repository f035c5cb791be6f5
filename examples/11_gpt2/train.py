# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Train a GPT-2 of the transformers library on real text, cut into parts for several processes.

In the shape of GPT-2 training scripts for model parallelism: replicas, 16-bit training, activation
checkpointing, optimizer states in shards, partial checkpoints to resume from, and at the end a
model that plain transformers loads and writes with.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import data
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

# SMP: import the library
import smdistributed.modelparallel.torch as smp

VALIDATION_FRACTION = 0.1
VALIDATION_BATCHES = 8
LARGEST_GRADIENT_NORM = 1.0
MODEL_FILE = "pytorch_model.bin"  # a name that transformers looks for

EPILOG = """\
examples:
  smddprun -np 2 train.py                              two partitions
  smddprun -np 4 train.py --bf16 1                     two replicas of two partitions, in bfloat16
  smddprun -np 4 train.py --shard_optimizer_state 1    each replica updates a half
  smddprun -np 2 train.py --checkpoint_dir run         press Ctrl-C, run it again: it goes on
  smddprun -np 2 train.py --model_dir gpt2             then: from_pretrained("gpt2")
  smddprun -np 1 train.py --pipeline_parallel_degree 1

Options that take 0 or 1 have a value because a SageMaker job makes options of hyperparameters, and
these have values.
"""


def loss_of(model: nn.Module, input_ids: Tensor) -> Tensor:
    # The cache is of keys and values, which only writing needs.
    loss: Tensor = model(input_ids=input_ids, labels=input_ids, use_cache=False)["loss"]
    return loss


# SMP: what a step needs of the model is inside of it; it runs once for each microbatch.
@smp.step
def train_step(model: nn.Module, input_ids: Tensor) -> Tensor:
    loss = loss_of(model, input_ids)
    # SMP: instead of loss.backward(); with fp16 it also scales the loss
    model.backward(loss)
    return loss


# SMP: calling the model to test it is a step too.
@smp.step
def test_step(model: nn.Module, input_ids: Tensor) -> Tensor:
    return loss_of(model, input_ids)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    switch: dict[str, Any] = {"type": int, "choices": (0, 1), "metavar": "0|1"}

    add = parser.add_argument_group("text").add_argument
    add("--text", type=Path, metavar="FILE", help="UTF-8 text; default as in example 03")
    add("--vocabulary", type=int, default=2048, help="tokens, made of the text (2048)")

    add = parser.add_argument_group("network").add_argument
    add("--layers", type=int, default=6, help="transformer blocks (6)")
    add("--heads", type=int, default=4, help="attention heads in a block (4)")
    add("--width", type=int, default=128, help="size of a token's vector (128)")
    add("--context", type=int, default=64, help="tokens in a window (64)")
    add("--dropout", type=float, default=0.1, help="share of values dropped in training (0.1)")

    add = parser.add_argument_group("model parallelism").add_argument
    add("--pipeline_parallel_degree", type=int, default=2, help="partitions (2); as many processes,"
        " or a multiple, which makes replicas")  # fmt: skip
    add("--microbatches", type=int, default=4, help="pieces of a replica's batch (4)")
    add("--manual_partition", **switch, default=0, help="1: blocks in equal shares, by this script;"
        " 0: the library decides (0)")  # fmt: skip
    add("--delayed_param", **switch, default=1, help="1: no rank ever holds the whole model (1)")
    add("--activation_checkpointing", **switch, default=0, help="1: keep what goes into a block,"
        " and compute the rest again in the backward pass: less memory (0)")  # fmt: skip
    add("--shard_optimizer_state", **switch, default=0, help="1: replicas share out the states of"
        " the optimizer and the updates: less memory (0)")  # fmt: skip
    add("--fp16", **switch, default=0, help="1: float16, with a dynamic loss scale (0)")
    add("--bf16", **switch, default=0, help="1: bfloat16 (0)")

    add = parser.add_argument_group("training").add_argument
    add("--max_steps", type=int, default=400, help="updates of the weights, in all (400)")
    add("--train_batch_size", type=int, default=16, help="windows per step, of all replicas (16)")
    add("--lr", type=float, default=2e-3, help="learning rate at its peak (0.002)")
    add("--warmup_steps", type=int, default=20, help="in which it rises (20)")
    add("--weight_decay", type=float, default=0.1, help="not of norms and biases (0.1)")
    add("--seed", type=int, default=1, help="of weights, windows and dropout (1)")
    add("--logging_freq", type=int, default=20, help="steps between lines (20)")
    add("--validation_freq", type=int, default=100, help="steps between validations (100)")

    add = parser.add_argument_group("files").add_argument
    add("--checkpoint_dir", type=Path, metavar="FOLDER", help="if there is a checkpoint at the"
        " start, training goes on from the newest")  # fmt: skip
    add("--checkpoint_freq", type=int, default=50, help="steps between checkpoints (50)")
    add("--num_kept_checkpoints", type=int, default=2, help="the last ones, others are deleted (2)")
    add("--model_dir", type=Path, metavar="FOLDER", help="of the whole model, at the end, with its"
        " tokenizer, as transformers loads them")  # fmt: skip
    add("--load_full", type=Path, metavar="FOLDER", help="start with the weights of such a model")
    add("--generate", type=int, default=40, help="tokens to write, as far as --context goes (40)")
    # A SageMaker job passes SMP's parameters here once more; SMP reads them in the environment.
    add("--mp_parameters", help=argparse.SUPPRESS)
    return parser.parse_args()


def smp_config(args: argparse.Namespace) -> dict[str, Any]:
    """SMP: what a launcher gives in SM_HP_MP_PARAMETERS goes before this, key by key."""
    return {
        "pipeline_parallel_degree": args.pipeline_parallel_degree,
        "microbatches": args.microbatches,
        "ddp": True,
        "optimize": "speed",
        "auto_partition": not args.manual_partition,
        "default_partition": 0,
        "shard_optimizer_state": bool(args.shard_optimizer_state),
        "fp16": bool(args.fp16),
        "bf16": bool(args.bf16),
    }


def gpt2_config(args: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> GPT2Config:
    return GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=args.context,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=args.heads,
        resid_pdrop=args.dropout,
        embd_pdrop=args.dropout,
        attn_pdrop=args.dropout,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def create_model(args: argparse.Namespace, config: GPT2Config) -> GPT2LMHeadModel:
    parameters = smp.state.cfg  # SMP: what is in force, from wherever it came
    dtype = torch.float32
    if parameters.fp16 or parameters.bf16:
        dtype = torch.float16 if parameters.fp16 else torch.bfloat16
    # The same weights on all ranks, and in every run.
    torch.manual_seed(args.seed)
    # SMP: parameters take memory only where they belong, once that is known
    with smp.model_creation(dtype=dtype), smp.delay_param_initialization(bool(args.delayed_param)):
        return GPT2LMHeadModel(config)


def place(model: GPT2LMHeadModel) -> None:
    """SMP: blocks in equal shares; embeddings and head, which share weights, on partition 0."""
    blocks = model.transformer.h
    for number, block in enumerate(blocks):
        smp.set_partition(block, number * smp.pp_size() // len(blocks))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Norms and biases do not decay."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def share_of_peak(step: int, args: argparse.Namespace) -> float:
    """Of the learning rate: a linear warm-up, then half a cosine down to a tenth."""
    if step < args.warmup_steps:
        return float((step + 1) / args.warmup_steps)
    done = (step - args.warmup_steps) / max(args.max_steps - args.warmup_steps, 1)
    return 0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * done))


def mine(first: int, batch_size: int) -> range:
    """SMP: the windows of this replica, of a batch that begins with window ``first``."""
    share = batch_size // smp.dp_size()
    return range(first + smp.dp_rank() * share, first + (smp.dp_rank() + 1) * share)


def over_replicas(value: Tensor) -> float:
    """SMP: what a step returns is on all ranks of a pipeline; its mean over the pipelines."""
    value = value.clone()
    dist.all_reduce(value, group=smp.get_dp_process_group())
    return value.item() / smp.dp_size()


def validate(model: nn.Module, batches: list[Tensor]) -> None:
    """Prints the loss of text that the model is not trained on."""
    model.eval()
    with torch.no_grad():
        losses = [test_step(model, batch).reduce_mean() for batch in batches]
    model.train()
    loss = over_replicas(torch.stack(losses).mean())
    if smp.rank() == 0:
        print(f"validation: loss {loss:.4f}, perplexity {math.exp(loss):.1f}", flush=True)


def write_on(folder: Path, start: str, num_tokens: int, seed: int) -> None:
    """Continues a text with the saved model, as any program with transformers can."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    torch.manual_seed(seed)
    begun = tokenizer(start, return_tensors="pt")
    written = model.generate(
        **begun,
        max_length=min(begun["input_ids"].shape[1] + num_tokens, model.config.n_positions),
        do_sample=True,
        top_k=20,
        pad_token_id=tokenizer.pad_token_id,
    )
    print(f"the text: {start!r}")
    print(f"goes on: {tokenizer.decode(written[0])[len(start) :]!r}", flush=True)


def main() -> None:
    args = parse_arguments()
    # SMP: initialise
    smp.init(smp_config(args))
    num_pieces = smp.dp_size() * smp.num_microbatches()
    if args.train_batch_size % num_pieces:
        raise SystemExit(
            f"--train_batch_size {args.train_batch_size} does not fall into equal pieces for"
            f" {smp.dp_size()} replicas times {smp.num_microbatches()} microbatches; expected a"
            f" multiple of {num_pieces}. Change it."
        )
    is_16_bit = smp.state.cfg.fp16 or smp.state.cfg.bf16
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # SMP: each process its own GPU
        torch.cuda.set_device(smp.local_rank())
        device = torch.device("cuda", smp.local_rank())

    source = data.load_text(args.text)
    tokenizer = data.train_tokenizer(source.content, args.vocabulary, args.context)
    num_training = int(len(source.content) * (1 - VALIDATION_FRACTION))
    training, validation = (
        data.Windows(tokenizer, part, args.seed)
        for part in (source.content[:num_training], source.content[num_training:])
    )
    checked = DataLoader(
        validation,
        batch_sampler=[
            mine(number * args.train_batch_size, args.train_batch_size)
            for number in range(VALIDATION_BATCHES)
        ],
    )
    checked_batches = [batch.to(device) for batch in checked]

    config = gpt2_config(args, tokenizer)
    network = create_model(args, config)
    if not smp.state.cfg.auto_partition:
        place(network)
    # SMP: wrap the network
    model = smp.DistributedModel(network)
    if args.activation_checkpointing:
        for block in network.transformer.h:
            smp.set_activation_checkpointing(block)
    groups = parameter_groups(model, args.weight_decay)
    # SMP: wrap the optimizer; of the loss scale only fp16 takes notice
    optimizer = smp.DistributedOptimizer(
        torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95)),
        static_loss_scale=None,
        dynamic_loss_scale=True,
        dynamic_loss_args={"init_scale": 2.0**16, "scale_window": 500},
    )
    # SMP: with 16 bits there is an optimizer around the optimizer
    inner = optimizer.optimizer if is_16_bit else optimizer
    scheduler = LambdaLR(inner, lambda step: share_of_peak(step, args))

    step = 0
    resumes = args.checkpoint_dir is not None and (args.checkpoint_dir / "newest").exists()
    if resumes:
        # SMP: each rank reads its parts; what waits for the partition is loaded in the first step
        content = smp.resume_from_checkpoint(args.checkpoint_dir, partial=True)
        step = content["step"]
        scheduler.load_state_dict(content["scheduler"])
    elif args.load_full is not None:
        smp.resume_from_checkpoint(args.load_full, tag=MODEL_FILE, partial=False)

    if smp.rank() == 0:
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"text: {source.origin}, {len(source.content):,} characters")
        print(
            f"GPT-2: {num_parameters:,} parameters in {smp.pp_size()} partitions;"
            f" {smp.dp_size()} replica(s), {smp.num_microbatches()} microbatches, {device.type},"
            f" {str(network.dtype).removeprefix('torch.')}"
        )
        if resumes:
            print(f"going on from {args.checkpoint_dir} at step {step} of {args.max_steps}")

    loader = DataLoader(
        training,
        batch_sampler=[
            mine(number * args.train_batch_size, args.train_batch_size)
            for number in range(step, args.max_steps)
        ],
    )
    began, since = time.perf_counter(), step
    for input_ids in loader:
        # Dropout is drawn anew in each step, so there is no random state to save.
        # SMP: the state of a replica's leader seeds all of its partitions.
        torch.manual_seed((args.seed * 1_000_003 + step) * 1_009 + smp.dp_rank())
        optimizer.zero_grad(set_to_none=True)
        # SMP: on all ranks; those that are not the first of their pipeline ignore the batch
        losses = train_step(model, input_ids.to(device))
        # SMP: the norm of the whole model's gradients
        if is_16_bit:
            norm = optimizer.clip_master_grads(LARGEST_GRADIENT_NORM)
        else:
            norm = nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT_NORM)
        optimizer.step()
        if not (is_16_bit and optimizer.overflow):
            scheduler.step()
        step += 1

        if step % args.logging_freq == 0 or step in (1, args.max_steps):
            loss = over_replicas(losses.reduce_mean())
            if smp.rank() == 0:
                now = time.perf_counter()
                rate = (step - since) * args.train_batch_size * args.context / (now - began)
                began, since = now, step
                scale = f", loss scale {optimizer.loss_scale:g}" if smp.state.cfg.fp16 else ""
                print(
                    f"step {step} of {args.max_steps}: loss {loss:.4f}, norm {norm:.3f}{scale},"
                    f" {rate:,.0f} tokens/s",
                    flush=True,
                )
        if step % args.validation_freq == 0 and step < args.max_steps:
            validate(model, checked_batches)
        if args.checkpoint_dir is not None and (
            step % args.checkpoint_freq == 0 or step == args.max_steps
        ):
            # SMP: on all ranks
            smp.save_checkpoint(
                args.checkpoint_dir,
                tag=f"step_{step}",
                partial=True,
                user_content={"step": step, "scheduler": scheduler.state_dict()},
                num_kept_partial_checkpoints=args.num_kept_checkpoints,
            )

    validate(model, checked_batches)
    if args.model_dir is not None:
        # SMP: on all ranks; rank 0 gathers the model and writes it, by its names in transformers
        smp.save_checkpoint(args.model_dir, tag=MODEL_FILE, partial=False)
        if smp.rank() == 0:
            config.save_pretrained(args.model_dir)
            tokenizer.save_pretrained(args.model_dir)
            start = tokenizer.decode(validation[0][: args.context // 4])
            write_on(args.model_dir, start, args.generate, args.seed)


if __name__ == "__main__":
    main()
