# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Train a convolutional network on real MNIST digits, data-parallel, with the ``smddp`` backend.

The script has the shape that the guide of the SageMaker data parallel library documents. What it
takes to go from a plain PyTorch script to this one is marked "smddp:" below; all else is PyTorch.

    smddprun -np 2 train.py
    torchrun --nproc-per-node 2 train.py --backend gloo      # the same with Gloo, to compare
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TextIO

import digits
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (the name every PyTorch script gives it)
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (as documented)
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

# smddp: import the library; this registers the backend and finds this process's rank
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (imported for its effect)

# The first steps fill caches, and DDP rearranges its gradient buckets after the first one.
WARM_UP_STEPS = 10
SHORT_IMAGES_PER_CLASS = 250
WEIGHTS = "mnist.pt"


class Net(nn.Module):
    """Two convolutions and two linear layers, in the manner of LeNet-5: 1.6 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5, padding=2)
        self.fc1 = nn.Linear(32 * 7 * 7, 1024)
        self.fc2 = nn.Linear(1024, digits.NUM_CLASSES)
        self.dropout = nn.Dropout(0.5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (n, 1, 28, 28) to unnormalised class scores (n, 10)."""
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        scores: torch.Tensor = self.fc2(self.dropout(x))
        return scores


class LineStream:
    """Turns a progress bar that redraws one line into one that writes a new line each time.

    A launcher puts the rank in front of every *line* of output; a bar that only ever returns the
    carriage would reach the reader as one endless line, at the end of the run.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding  # tqdm asks, to decide whether it may draw with Unicode

    def write(self, text: str) -> None:
        line = text.strip()
        if line:
            self._stream.write(line + "\n")

    def flush(self) -> None:
        self._stream.flush()


def make_progress_bar(num_steps: int) -> tqdm:
    """A bar over all training steps: live in a terminal, one line per epoch elsewhere. Rank 0."""
    if sys.stdout.isatty():
        bar = tqdm(total=num_steps, desc="training", unit="step", file=sys.stdout)
    else:
        # No interval makes tqdm draw by itself here: only the explicit refresh of each epoch does.
        bar = tqdm(
            total=num_steps,
            desc="training",
            unit="step",
            file=LineStream(sys.stdout),
            mininterval=float("inf"),
            ncols=96,
            leave=False,
            delay=1e-9,  # any delay above 0 suppresses the first line, which would say 0 %
        )
    return bar


def train_epoch(
    model: DDP,
    loader: DataLoader[tuple[torch.Tensor, ...]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    max_steps: int,
    bar: tqdm | None,
) -> tuple[list[float], list[float]]:
    """Train for at most ``max_steps`` steps.

    Returns, per step, the loss averaged over all ranks, and the wall time in seconds on this rank
    (fetching the batch, forward, backward with all-reduce, update).
    """
    model.train()
    losses, times_s = [], []
    start = time.perf_counter()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()  # DDP averages the gradients over all ranks in here
        optimizer.step()
        losses.append(loss.item())

        now = time.perf_counter()
        times_s.append(now - start)
        start = now
        if bar is not None:
            bar.update()
        if len(losses) == max_steps:
            break
    mean_losses = torch.tensor(losses, device=device)
    dist.all_reduce(mean_losses)
    return (mean_losses / dist.get_world_size()).tolist(), times_s


@torch.no_grad()
def evaluate(model: DDP, test: digits.Digits, device: torch.device) -> float:
    """Share of test images classified correctly, 0 to 1; every rank takes its part of the images.

    The parts are strided, not a DistributedSampler's: that one repeats images until all ranks have
    the same number, which would count some of them twice.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images = torch.from_numpy(test.images[rank::world_size].copy())
    labels = torch.from_numpy(test.labels[rank::world_size].copy())
    model.eval()
    num_correct = torch.zeros(1, dtype=torch.int64, device=device)
    for image_batch, label_batch in zip(images.split(250), labels.split(250), strict=True):
        # Through model.module: DDP's own forward may communicate, and ranks may differ in batches.
        predicted = model.module(image_batch.to(device)).argmax(dim=1)
        num_correct += (predicted == label_batch.to(device)).sum()
    dist.all_reduce(num_correct)
    return num_correct.item() / len(test.labels)


def time_all_reduce(num_elements: int, device: torch.device, repeats: int = 20) -> list[float]:
    """Wall times in seconds of ``repeats`` all-reduces of ``num_elements`` float32 values."""
    buffer = torch.zeros(num_elements, device=device)
    times_s = []
    for _ in range(5 + repeats):
        dist.barrier()  # all ranks start together, so no rank's wait for another is counted
        start = time.perf_counter()
        dist.all_reduce(buffer)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times_s.append(time.perf_counter() - start)
    return times_s[5:]


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over the bytes of all parameters and buffers: equal exactly when the weights are."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def in_folder(variable: str, name: str) -> Path | None:
    """A file in the folder that a variable names; None if it is not set."""
    folder = os.environ.get(variable)
    return Path(folder, name) if folder else None


def positive_int(text: str) -> int:
    """An argparse type: a whole number from 1 up."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"got {text!r}; expected a whole number from 1 up. Pass, for instance, 8"
        )
    return value


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Data-parallel MNIST training with smddp.")
    parser.add_argument("--backend", choices=("smddp", "gloo"), default="smddp")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--epochs", type=positive_int, default=8)
    parser.add_argument(
        "--batch-size", type=positive_int, default=64, help="over all processes together"
    )
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of the first epoch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        default=in_folder("SM_MODEL_DIR", WEIGHTS),
        help="weights, written by rank 0; in a job of an estimator: in its model",
    )
    parser.add_argument(
        "--result",
        type=Path,
        metavar="FILE",
        default=in_folder("SM_OUTPUT_DATA_DIR", "result.json"),
        help="figures as JSON, by rank 0; in a job of an estimator: in its output",
    )
    parser.add_argument("--max-steps", type=positive_int, help="stop training after so many steps")
    parser.add_argument(
        "--short",
        action="store_true",
        help=f"a trial run: 1 epoch, {SHORT_IMAGES_PER_CLASS * digits.NUM_CLASSES} digits",
    )
    parser.add_argument(
        "--hash", action="store_true", help="every rank prints the SHA-256 of its final weights"
    )
    arguments = parser.parse_args()
    if arguments.short:
        arguments.epochs = 1
    return arguments


def model_fn(model_dir: str) -> Net:
    """The trained network, for an endpoint (`estimator.deploy()`), which imports this file."""
    model = Net()
    model.load_state_dict(torch.load(Path(model_dir, WEIGHTS), map_location="cpu"))
    return model


def main() -> None:
    args = parse_arguments()

    # One thread per process unless the user says otherwise: the processes share the cores.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)

    # smddp: initialise the process group with the library's backend
    dist.init_process_group(backend=args.backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()

    # smddp: pin each GPU to one process
    device = torch.device(args.device)
    if args.device == "cuda" and torch.cuda.is_available():
        local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local_rank)
        device = torch.device("cuda", local_rank)

    # smddp: scale the batch size by the world size
    batch_size = max(args.batch_size // world_size, 1)

    per_class = SHORT_IMAGES_PER_CLASS if args.short else digits.IMAGES_PER_CLASS
    train, test = digits.split(digits.load(), per_class)
    train_dataset = TensorDataset(torch.from_numpy(train.images), torch.from_numpy(train.labels))

    # smddp: give each rank its own part of the data
    train_sampler = DistributedSampler(
        train_dataset, num_replicas=world_size, rank=rank, seed=args.seed
    )
    # drop_last: every step then has the same size, so that step times can be compared.
    train_loader = DataLoader(
        train_dataset, batch_size=batch_size, sampler=train_sampler, drop_last=True
    )
    if len(train_loader) == 0:
        raise SystemExit(
            f"--batch-size {args.batch_size} gives each of {world_size} processes {batch_size} "
            f"images a step, but a process holds only {len(train_sampler)}; expected at least one "
            f"full step. Pass --batch-size {len(train_sampler) * world_size} or less."
        )

    torch.manual_seed(args.seed)
    # smddp: wrap the model with PyTorch's DDP
    model = DDP(Net().to(device))
    torch.manual_seed(args.seed + 1 + rank)  # dropout must differ between ranks

    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

    num_steps = args.epochs * len(train_loader)
    if args.max_steps is not None:
        num_steps = min(num_steps, args.max_steps)
    if rank == 0:
        print(
            f"world size {world_size}, backend {dist.get_backend()}, {batch_size} images per rank "
            f"and step; {len(train.labels)} training and {len(test.labels)} test images",
            flush=True,
        )

    losses: list[float] = []
    times_s: list[float] = []
    accuracies: list[float] = []
    bar = make_progress_bar(num_steps) if rank == 0 else None
    for epoch in range(args.epochs):
        if len(losses) == num_steps:
            break
        train_sampler.set_epoch(epoch)
        epoch_losses, epoch_times_s = train_epoch(
            model, train_loader, optimizer, device, num_steps - len(losses), bar
        )
        losses += epoch_losses
        times_s += epoch_times_s
        accuracies.append(evaluate(model, test, device))
        if bar is not None:
            mean_loss = statistics.fmean(epoch_losses)
            bar.set_postfix_str(f"loss {mean_loss:.3f}, test {accuracies[-1]:.1%}")
        scheduler.step()
    if bar is not None:
        bar.close()

    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    all_reduce_s = statistics.median(time_all_reduce(num_parameters, device))

    if args.hash:
        print(f"weights of rank {rank}: sha256 {weights_sha256(model.module)}", flush=True)

    # smddp: save the model on rank 0 only; all ranks hold the same weights
    if rank == 0:
        if args.save is not None:
            torch.save(model.module.state_dict(), args.save)

        # A run shorter than the warm-up still reports a figure, from its last step.
        step_s = statistics.median(times_s[WARM_UP_STEPS:] or times_s[-1:])
        result = {
            "backend": dist.get_backend(),
            "world_size": world_size,
            "num_steps": len(losses),
            "step_losses": losses,
            "test_accuracy": accuracies[-1],
            "samples_per_s": batch_size * world_size / step_s,
            "step_ms": step_s * 1e3,
            "all_reduce_ms": all_reduce_s * 1e3,
            "gradient_bytes": num_parameters * 4,
            "training_s": sum(times_s),
            "weights_sha256": weights_sha256(model.module),
        }
        print(
            f"test accuracy {accuracies[-1]:.2%}, {result['samples_per_s']:,.0f} samples per "
            f"second, {step_s * 1e3:.1f} ms per step (median)",
            flush=True,
        )
        if args.result is not None:
            args.result.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
