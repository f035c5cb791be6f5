# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Images, and images with text."""

from __future__ import annotations

import functools

import torch
from torch import Generator

from tests.architectures.batches import CLASSES, WORDS, images, words
from tests.architectures.registry import Architecture, Batch, freeze_averages

TITLE = "Vision"

_WIDTHS = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
FROZEN = "BatchNorm as in evaluation"
RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [16, 24, 32, 48],
    "depths": [1, 1, 2, 1],
    "num_labels": CLASSES,
}
_PATCHES = {**_WIDTHS, "image_size": 16, "patch_size": 4, "num_labels": CLASSES}


def _segments(batch: int, generator: Generator) -> Batch:
    return {
        "pixel_values": torch.randn(batch, 3, 32, 32, generator=generator),
        "labels": torch.randint(0, CLASSES, (batch, 32, 32), generator=generator),
    }


def _described_images(batch: int, generator: Generator) -> Batch:
    return {
        "input_ids": words(batch, generator),
        "pixel_values": torch.randn(batch, 3, 16, 16, generator=generator),
    }


_small = functools.partial(Architecture, make_batch=images(16))
_row = functools.partial(Architecture, make_batch=images(32))

ROWS = (
    _small("vit", "transformers.ViTForImageClassification", _PATCHES),
    _small("deit", "transformers.DeiTForImageClassification", _PATCHES),
    _small("beit", "transformers.BeitForImageClassification", _PATCHES),
    _small("dinov2", "transformers.Dinov2ForImageClassification", _PATCHES),
    _row(
        "swin",
        "transformers.SwinForImageClassification",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2, 2],
            "num_heads": [2, 2, 4],
            "window_size": 4,
            "num_labels": CLASSES,
        },
    ),
    _row(
        "convnext",
        "transformers.ConvNextForImageClassification",
        {
            "hidden_sizes": [8, 16, 24, 32],
            "depths": [1, 1, 2, 1],
            "patch_size": 2,
            "num_labels": CLASSES,
        },
    ),
    Architecture(
        "resnet", "transformers.ResNetForImageClassification", RESNET, images(64), rate=0.01
    ),
    Architecture(
        "mobilenet-v2",
        "transformers.MobileNetV2ForImageClassification",
        {"depth_multiplier": 0.35, "num_labels": CLASSES},
        images(32),
        prepare=freeze_averages,
        remark=FROZEN,
    ),
    Architecture(
        "segformer",
        "transformers.SegformerForSemanticSegmentation",
        {
            "num_encoder_blocks": 3,
            "depths": [1, 1, 1],
            "sr_ratios": [4, 2, 1],
            "hidden_sizes": [8, 16, 32],
            "patch_sizes": [7, 3, 3],
            "strides": [2, 2, 2],
            "num_attention_heads": [1, 2, 4],
            "mlp_ratios": [2, 2, 2],
            "decoder_hidden_size": 16,
            "num_labels": CLASSES,
        },
        _segments,
    ),
    Architecture(
        "clip",
        "transformers.CLIPModel",
        {
            "text_config": {
                **_WIDTHS,
                "vocab_size": WORDS,
                "max_position_embeddings": 64,
                "eos_token_id": 2,
            },
            "vision_config": {**_WIDTHS, "image_size": 16, "patch_size": 4},
            "projection_dim": 16,
        },
        _described_images,
        arguments={"return_loss": True},
        remark="images and text",
    ),
)
