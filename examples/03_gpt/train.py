# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small GPT on real English text, data-parallel, with the `smddp` backend.

With mixed precision, gradient accumulation over several pieces of a batch, and checkpoints from
which training goes on exactly as if it had never stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import math
import os
import sys
from pathlib import Path

import checkpoint
import text
import torch
import torch.distributed as dist
from model import GPT, GPTConfig
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (as documented)
from tqdm import tqdm

# smddp: import the library; this registers the backend and finds this process's rank
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (imported for its effect)

VALIDATION_FRACTION = 0.1
VALIDATION_WINDOWS = 64
WARM_UP_STEPS = 20
CLIP_GRADIENT_NORM = 1.0
NATIVE_BF16 = ("avx512_bf16", "amx_bf16")  # instruction sets that multiply bfloat16

EPILOG = """\
examples:
  smddprun -np 2 train.py                        two processes, some minutes on two cores
  smddprun -np 2 train.py --checkpoint gpt.pt    the same; press Ctrl-C, run it again: it goes on
  smddprun -np 2 train.py --text my_book.txt     another text
  torchrun --nproc-per-node 2 train.py           another launcher, the same result
  smddprun -np 1 train.py                        one process

what the sizes mean:
  A step trains on --batch-size windows of --context tokens. The processes share them out, and each
  goes through its share in --accumulate pieces: gradients are added up on the spot, and averaged
  over the processes once, after the last piece. So the numbers of processes and of pieces change
  the speed and the memory, not what is learnt.

what makes resuming exact:
  All that is random is drawn from a generator that starts anew from (--seed, step, rank) in every
  step. So there is no random state to save, and the data of a step do not depend on when it runs.
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument_group("text").add_argument
    add("--text", type=Path, metavar="FILE", help="UTF-8 text, or Debian's bible.data; by"
        " default that Bible where bible-kjv-text is installed, else Python's language reference"
        )  # fmt: skip
    add("--vocabulary", type=int, default=4096, help="tokens: all characters, then words (4096)")
    add("--sample", type=int, default=120, help="tokens of text to write at the end (120)")

    add = parser.add_argument_group("network").add_argument
    add("--layers", type=int, default=4, help="transformer blocks (4)")
    add("--heads", type=int, default=4, help="attention heads in a block (4)")
    add("--width", type=int, default=128, help="size of a token's vector (128)")
    add("--context", type=int, default=128, help="tokens in a window (128)")
    add("--dropout", type=float, default=0.1, help="share of values dropped in training (0.1)")

    add = parser.add_argument_group("training").add_argument
    add("--steps", type=int, default=500, help="updates of the weights, in all (500)")
    add("--batch-size", type=int, default=16, help="windows per step, over all processes (16)")
    add("--accumulate", type=int, default=2, help="pieces of a process's share of a step (2)")
    add("--lr", type=float, default=3e-3, help="learning rate at its peak (0.003); it rises for"
        f" {WARM_UP_STEPS} steps, then falls along a cosine to a tenth")  # fmt: skip
    add("--seed", type=int, default=1, help="of the weights, the windows and the dropout (1)")

    add = parser.add_argument_group("precision").add_argument
    add("--precision", choices=("auto", "fp32", "bf16", "fp16"), default="auto", help="of the"
        " matrix products; weights stay float32. fp16 scales the loss, so that small gradients do"
        " not vanish. auto (default): fp16 on a GPU, bf16 on a CPU that computes in it, else fp32"
        )  # fmt: skip
    add("--fp16-gradients", action="store_true", help="average the gradients in fp16: half the"
        " bytes between the processes")  # fmt: skip
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if any")

    add = parser.add_argument_group("files").add_argument
    add("--checkpoint", type=Path, metavar="FILE", help="written now and then; if it is there at"
        " the start, training goes on from it")  # fmt: skip
    add("--every", type=int, default=50, help="steps between checkpoints and validations (50)")
    add("--log", type=Path, metavar="FILE", help="a line of JSON per step, appended by rank 0")
    return parser.parse_args()


@dataclasses.dataclass(frozen=True)
class Precision:
    """How the matrix products are computed; ``dtype`` None means in float32."""

    device: torch.device
    dtype: torch.dtype | None

    @classmethod
    def choose(cls, name: str, device: torch.device) -> Precision:
        if name == "auto" and device.type == "cuda":
            name = "fp16"
        elif name == "auto":
            # Every CPU can do bfloat16, most by converting to float32 and back, which costs time.
            instructions = torch.cpu.get_capabilities()
            name = "bf16" if any(instructions.get(i) for i in NATIVE_BF16) else "fp32"
        return cls(device, {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name])

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def make_scaler(self) -> torch.amp.GradScaler:
        """Scales the loss for float16; for the other precisions it does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)

    def __str__(self) -> str:
        return "float32" if self.dtype is None else str(self.dtype).removeprefix("torch.")


def windows(tokens: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (n, context) each, of the windows of ``tokens`` at ``starts`` (n,)."""
    index = starts[:, None] + torch.arange(context + 1)
    window = tokens[index]
    return window[:, :-1], window[:, 1:]


def draw_batch(tokens: Tensor, step: int, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """This rank's share of the windows of ``step``.

    Every rank draws the windows of all ranks and takes its own, so what a step learns from does not
    depend on how many ranks there are.
    """
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    last = len(tokens) - args.context
    starts = torch.randint(last, (args.batch_size,), generator=generator)
    return windows(tokens, starts[dist.get_rank() :: dist.get_world_size()], args.context)


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, then half a cosine down to a tenth of the peak at the last step."""
    if step < WARM_UP_STEPS:
        return float(args.lr * (step + 1) / WARM_UP_STEPS)
    done = (step - WARM_UP_STEPS) / max(args.steps - WARM_UP_STEPS, 1)
    return float(args.lr * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * done))))


def train_step(
    model: DDP,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    precision: Precision,
    batch: tuple[Tensor, Tensor],
    pieces: int,
) -> float:
    """One update from this rank's share of a batch. Returns the loss averaged over all ranks."""
    inputs, targets = (part.to(precision.device).chunk(pieces) for part in batch)
    total = torch.zeros((), device=precision.device)
    for number, (piece, target) in enumerate(zip(inputs, targets, strict=True), 1):
        # Gradients stay on this rank until the last piece, where DDP averages their sum.
        is_last = number == len(inputs)
        with contextlib.nullcontext() if is_last else model.no_sync(), precision.autocast():
            loss = model(piece, target) * (len(piece) / len(batch[0]))
            scaler.scale(loss).backward()
        total += loss.detach()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRADIENT_NORM)
    scaler.step(optimizer)  # skips the update if a gradient is not finite, on all ranks alike
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    return total.item()


@torch.no_grad()
def validate(model: DDP, precision: Precision, tokens: Tensor, context: int) -> float:
    """Mean loss over windows spread evenly over text that training never sees."""
    starts = torch.linspace(0, len(tokens) - context - 1, VALIDATION_WINDOWS).long()
    inputs, targets = windows(tokens, starts[dist.get_rank() :: dist.get_world_size()], context)
    model.eval()
    with precision.autocast():
        loss = model.module(inputs.to(precision.device), targets.to(precision.device))
    model.train()
    # Ranks may have a window more or less: weigh the means.
    total = torch.stack([loss * len(inputs), torch.ones_like(loss) * len(inputs)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


class Progress:
    """A progress bar in a terminal; elsewhere a line after each validation. On rank 0 only."""

    def __init__(self, first: int, steps: int) -> None:
        self._is_live = sys.stdout.isatty()
        self._validation = ""
        self._bar = tqdm(
            total=steps,
            initial=first,
            desc="training",
            unit="step",
            disable=dist.get_rank() != 0,
            # A launcher puts the rank before every line, so a bar that only ever returns to the
            # start of its line would not be seen: draw it nowhere, and print it when it is time.
            file=sys.stdout if self._is_live else io.StringIO(),
            mininterval=0.1 if self._is_live else float("inf"),
            ncols=None if self._is_live else 96,
            ascii=not sys.stdout.encoding.lower().startswith("utf"),
        )

    def step(self, loss: float) -> None:
        self._bar.set_postfix_str(f"loss {loss:.3f}{self._validation}", refresh=False)
        self._bar.update()

    def validated(self, loss: float, validation_loss: float) -> None:
        self._validation = f", validation {validation_loss:.3f}"
        self._bar.set_postfix_str(f"loss {loss:.3f}{self._validation}", refresh=self._is_live)
        if not self._bar.disable and not self._is_live:
            print(self._bar, flush=True)

    def close(self) -> None:
        self._bar.leave = self._is_live
        self._bar.close()


def choose_device(name: str) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    # smddp: pin each process to a GPU; with more processes than GPUs some share one
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def check_sizes(args: argparse.Namespace, num_validation_tokens: int) -> None:
    """Refuse what would fail later, and less clearly. Raises SystemExit."""
    world_size = dist.get_world_size()
    if args.batch_size % (world_size * args.accumulate):
        raise SystemExit(
            f"--batch-size {args.batch_size} does not fall into equal pieces for {world_size} "
            f"processes times --accumulate {args.accumulate}; expected a multiple of "
            f"{world_size * args.accumulate}. Change one of them."
        )
    if num_validation_tokens <= args.context:
        raise SystemExit(
            f"the text is too short: the tenth of it kept for validation has "
            f"{num_validation_tokens} tokens; expected more than --context {args.context}. "
            "Take a longer text."
        )


def main() -> None:
    args = parse_arguments()
    # One thread per process unless the user says otherwise: the processes share the cores.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)

    # smddp: initialise the process group with the library's backend
    dist.init_process_group(backend="smddp")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = choose_device(args.device)
    precision = Precision.choose(args.precision, device)

    source = text.load(args.text)
    vocabulary = text.Vocabulary.of(source.content, args.vocabulary)
    tokens = torch.tensor(vocabulary.encode(source.content))
    training, validation = tokens.tensor_split([int(len(tokens) * (1 - VALIDATION_FRACTION))])
    check_sizes(args, len(validation))

    config = GPTConfig(
        len(vocabulary), args.context, args.layers, args.heads, args.width, args.dropout
    )
    torch.manual_seed(args.seed)
    network = GPT(config).to(device)
    # smddp: wrap the network with PyTorch's DDP
    model = DDP(network, gradient_as_bucket_view=True)
    if args.fp16_gradients:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    scaler = precision.make_scaler()

    options = {name: getattr(args, name) for name in ("steps", "batch_size", "lr", "seed")}
    options |= dataclasses.asdict(config) | {"text": source.origin, "precision": str(precision)}
    first_step = 0
    if args.checkpoint is not None:
        state = checkpoint.load(args.checkpoint, device, expected=options)
        if state is not None:
            network.load_state_dict(state["network"])
            optimizer.load_state_dict(state["optimizer"])
            scaler.load_state_dict(state["scaler"])
            first_step = state["step"]

    if rank == 0:
        num_parameters = sum(p.numel() for p in network.parameters())
        print(f"text: {source.origin}, {len(source.content):,} characters, {len(tokens):,} tokens")
        print(
            f"network: {num_parameters:,} parameters; {world_size} processes on {device.type}, "
            f"{precision}, {dist.get_backend()}"
        )
        if first_step:
            print(f"going on from {args.checkpoint} at step {first_step} of {args.steps}")
        sys.stdout.flush()

    log = args.log.open("a", encoding="utf-8") if rank == 0 and args.log is not None else None
    progress = Progress(first_step, args.steps)
    for step in range(first_step, args.steps):
        # Dropout must differ between ranks, and be the same when a step is run a second time.
        torch.manual_seed((args.seed * 1_000_003 + step) * 1_009 + rank)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        batch = draw_batch(training, step, args)
        loss = train_step(model, optimizer, scaler, precision, batch, args.accumulate)
        progress.step(loss)
        record = {"step": step, "loss": loss, "lr": optimizer.param_groups[0]["lr"]}

        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            record["validation_loss"] = validate(model, precision, validation, args.context)
            progress.validated(loss, record["validation_loss"])
            # smddp: save on rank 0 only; all ranks hold the same weights
            if rank == 0 and args.checkpoint is not None:
                checkpoint.save(
                    {
                        "step": step + 1,
                        "options": options,
                        "network": network.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "scaler": scaler.state_dict(),
                    },
                    args.checkpoint,
                )
        if log is not None:
            log.write(json.dumps(record) + "\n")
            log.flush()
    progress.close()

    if rank == 0 and args.sample > 0:
        network.eval()
        start = validation[None, : args.context // 4].to(device)
        generator = torch.Generator(device).manual_seed(args.seed)
        written = network.generate(start, args.sample, generator)[0].tolist()
        prompt, answer = written[: start.shape[1]], written[start.shape[1] :]
        print("\n--- the text goes ---\n" + vocabulary.decode(prompt))
        print("--- and the network goes on ---\n" + vocabulary.decode(answer), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
