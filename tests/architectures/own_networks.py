# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Networks that scripts write themselves: rows of layers, and two networks against each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from tests.architectures.batches import CLASSES, classes
from tests.architectures.registry import Architecture, Batch

TITLE = "Networks as scripts write them"


class Vgg(nn.Sequential):
    """VGG (Simonyan and Zisserman, 2014), in one row of layers."""

    def __init__(self, widths: list[int | str], size: int) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for width in widths:
            if isinstance(width, str):
                layers.append(nn.MaxPool2d(2))
                size //= 2
                continue
            layers.append(nn.Conv2d(channels, width, 3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        layers += [nn.Flatten(), nn.Linear(channels * size**2, 32), nn.ReLU(inplace=True)]
        super().__init__(*layers, nn.Linear(32, CLASSES))


class _Dense(nn.Module):
    """A layer of DenseNet: what it adds stands beside what it was given."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], dim=1)


class DenseNet(nn.Module):
    """DenseNet (Huang and others, 2016): blocks of `_Dense`, with transitions between them."""

    def __init__(self, blocks: list[int], growth: int) -> None:
        super().__init__()
        channels = 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        for number, length in enumerate(blocks):
            if number:
                layers += [
                    nn.BatchNorm2d(channels),
                    nn.ReLU(),
                    nn.Conv2d(channels, channels // 2, 1),
                ]
                layers.append(nn.AvgPool2d(2))
                channels //= 2
            layers += [_Dense(channels + growth * k, growth) for k in range(length)]
            channels += growth * length
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = functional.relu(self.features(x))
        logits: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return logits


class Gan(nn.Module):
    """A generator and a critic of images; what is called with noise alone is the generator's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(8, 4 * width * 16),
            nn.Unflatten(1, (4 * width, 4, 4)),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, 3, 4, 2, 1),
            nn.Tanh(),
        )
        self.critic = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 4 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(4 * width * 16, 32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 1),
        )

    def forward(self, noise: Tensor, images: Tensor | None = None) -> tuple[Tensor, ...]:
        made = self.generator(noise)
        if images is None:
            return (self.critic(made),)
        return self.critic(made.detach()), self.critic(images)


class PenalisedGan(Gan):
    """With a penalty on the critic's gradient (Gulrajani and others, 2017): a second derivative."""

    def forward(self, noise: Tensor, images: Tensor | None = None) -> tuple[Tensor, ...]:
        scores = super().forward(noise, images)
        if images is None:
            return scores
        between = images.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        return *scores, (slope.flatten(1).norm(dim=1) - 1).square().mean()


def _pictures(batch: int, generator: Generator) -> Batch:
    return {
        "images": torch.randn(batch, 3, 16, 16, generator=generator),
        "labels": classes(batch, generator),
    }


def _noise_and_pictures(batch: int, generator: Generator) -> Batch:
    return {
        "noise": torch.randn(batch, 8, generator=generator),
        "images": torch.randn(batch, 3, 16, 16, generator=generator),
    }


def _class_loss(model: Any, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["images"]), batch["labels"])


def _loss_of_critic(model: Any, batch: Batch) -> Tensor:
    made, real, *penalty = model(batch["noise"], batch["images"])
    loss: Tensor = functional.relu(1 + made).mean() + functional.relu(1 - real).mean()
    return loss + sum(penalty)


def _loss_of_generator(model: Any, batch: Batch) -> Tensor:
    (made,) = model(batch["noise"])
    loss: Tensor = -made.mean()
    return loss


_HERE = __name__
_GAN = {"critic": _loss_of_critic, "generator": _loss_of_generator}

ROWS = (
    Architecture(
        "vgg",
        f"{_HERE}.Vgg",
        {"widths": [8, "pool", 16, "pool", 32, 32, "pool"], "size": 16},
        _pictures,
        _class_loss,
        remark="one `nn.Sequential`",
    ),
    Architecture(
        "densenet",
        f"{_HERE}.DenseNet",
        {"blocks": [3, 3, 3], "growth": 8},
        _pictures,
        _class_loss,
    ),
    Architecture(
        "gan",
        f"{_HERE}.Gan",
        {"width": 8},
        _noise_and_pictures,
        turns=_GAN,
        remark="generator and critic in turn, each with an optimizer of its own",
    ),
    Architecture(
        "gan-penalty",
        f"{_HERE}.PenalisedGan",
        {"width": 8},
        _noise_and_pictures,
        turns=_GAN,
        refused="torch.autograd.grad",
        remark="with a penalty on the critic's gradient",
    ),
    Architecture(
        "gan-penalty-placed",
        f"{_HERE}.PenalisedGan",
        {"width": 8},
        _noise_and_pictures,
        turns=_GAN,
        places={"generator": 1},
        remark="with that penalty; by hand, the critic is on the rank that takes its gradient",
    ),
)
