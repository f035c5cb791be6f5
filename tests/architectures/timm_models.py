# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models of timm, with a stand-in for torchvision: of that they need names only."""

from __future__ import annotations

import enum
import functools
import sys
import types
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from tests.architectures.batches import CLASSES, images
from tests.architectures.registry import Architecture, Batch, freeze_averages
from tests.architectures.vision import FROZEN

TITLE = "Vision: timm"


class _StandIn(types.ModuleType):
    """A module in which every name is a class that does nothing."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (nn.Module,), {})


class _Interpolation(enum.Enum):
    """Of what timm makes of it, only the members' names count."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def make(name: str, **sizes: Any) -> nn.Module:
    """`timm.create_model(name, **sizes)`."""
    for path in (
        "torchvision",
        "torchvision.datasets",
        "torchvision.models",
        "torchvision.models.feature_extraction",
        "torchvision.ops",
        "torchvision.ops.misc",
        "torchvision.transforms",
        "torchvision.transforms.functional",
        "torchvision.utils",
    ):
        module = sys.modules.setdefault(path, _StandIn(path))
        parent, _, last = path.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    sys.modules["torchvision.transforms.functional"].InterpolationMode = _Interpolation  # type: ignore[attr-defined]
    import timm

    model: nn.Module = timm.create_model(name, num_classes=CLASSES, **sizes)
    return model


def _loss(model: Any, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["pixel_values"]), batch["labels"])


_row = functools.partial(
    Architecture,
    model="tests.architectures.timm_models.make",
    make_batch=images(32),
    loss=_loss,
    needs="timm",
)

ROWS = (
    _row(
        name="timm-vit",
        sizes={
            "name": "vit_tiny_patch16_224",
            "img_size": 32,
            "patch_size": 8,
            "embed_dim": 32,
            "depth": 4,
            "num_heads": 4,
        },
    ),
    _row(
        name="timm-swin",
        sizes={
            "name": "swin_tiny_patch4_window7_224",
            "img_size": 32,
            "patch_size": 2,
            "window_size": 4,
            "embed_dim": 16,
            "depths": (2, 2, 2),
            "num_heads": (2, 2, 4),
        },
    ),
    _row(
        name="timm-convnext",
        sizes={"name": "convnext_atto", "depths": (1, 1, 2, 1), "dims": (8, 16, 24, 32)},
    ),
    _row(
        name="timm-resnet",
        sizes={"name": "resnet18", "channels": (8, 16, 24, 32)},
        make_batch=images(48),
        rate=0.01,
    ),
    _row(
        name="timm-efficientnet",
        sizes={"name": "efficientnet_lite0"},
        rate=0.01,
        prepare=freeze_averages,
        remark=FROZEN,
    ),
    _row(
        name="timm-mobilenet-v3",
        sizes={"name": "mobilenetv3_small_050"},
        prepare=freeze_averages,
        remark=FROZEN,
    ),
)
