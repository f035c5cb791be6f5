# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models of diffusers: what predicts the noise of an image, and what compresses the image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from tests.architectures.registry import Architecture, Batch, MakeBatch

TITLE = "Diffusion"

_LABELS = 10
_BLOCKS = {
    "sample_size": 16,
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 4,
}
_CODER = {
    **_BLOCKS,
    "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
    "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
}
UNET = {
    **_BLOCKS,
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": 8,
}
_LATENTS = {
    "num_attention_heads": 4,
    "attention_head_dim": 8,
    "in_channels": 4,
    "num_layers": 3,
    "sample_size": 8,
    "patch_size": 2,
}


def noise_loss(model: Any, batch: Batch) -> Tensor:
    """The mean square of what was predicted, against `target`."""
    inputs = dict(batch)
    target = inputs.pop("target")
    return functional.mse_loss(model(**inputs).sample, target)


def _compression_loss(model: Any, batch: Batch) -> Tensor:
    sample = batch["sample"]
    return functional.mse_loss(model(sample).sample, sample)


def _vector_loss(model: Any, batch: Batch) -> Tensor:
    output = model(batch["sample"])
    loss: Tensor = functional.mse_loss(output.sample, batch["sample"]) + output.commit_loss.mean()
    return loss


def _flux_loss(model: Any, batch: Batch) -> Tensor:
    """Positions are the same for the whole batch, so they are not cut with it."""
    size = torch.arange(4)
    image = torch.zeros(16, 3)
    image[:, 1:] = torch.cartesian_prod(size, size)
    return noise_loss(model, {**batch, "img_ids": image, "txt_ids": torch.zeros(6, 3)})


def noisy(*image: int, first: str = "sample", labels: bool = False, **others: Any) -> MakeBatch:
    """Noisy images with their times; `others` are shapes of more arguments, without the batch."""

    def make(batch: int, generator: Generator) -> Batch:
        made = {
            first: torch.randn(batch, *image, generator=generator),
            "timestep": torch.randint(0, 1000, (batch,), generator=generator),
            "target": torch.randn(batch, *image, generator=generator),
        }
        if labels:
            made["class_labels"] = torch.randint(0, _LABELS, (batch,), generator=generator)
        for name, shape in others.items():
            made[name] = torch.randn(batch, *shape, generator=generator)
        return made

    return make


def _images(batch: int, generator: Generator) -> Batch:
    return {"sample": torch.randn(batch, 3, 16, 16, generator=generator)}


ROWS = (
    Architecture("unet-2d", "diffusers.UNet2DModel", UNET, noisy(3, 16, 16), noise_loss),
    Architecture(
        "unet-2d-condition",
        "diffusers.UNet2DConditionModel",
        {
            **_BLOCKS,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 4,
            "cross_attention_dim": 16,
        },
        noisy(4, 16, 16, encoder_hidden_states=(6, 16)),
        noise_loss,
    ),
    Architecture("autoencoder-kl", "diffusers.AutoencoderKL", _CODER, _images, _compression_loss),
    Architecture(
        "vq-vae",
        "diffusers.VQModel",
        {**_CODER, "num_vq_embeddings": 16},
        _images,
        _vector_loss,
    ),
    Architecture(
        "dit",
        "diffusers.DiTTransformer2DModel",
        {**_LATENTS, "num_embeds_ada_norm": _LABELS, "norm_num_groups": 4},
        noisy(4, 8, 8, first="hidden_states", labels=True),
        noise_loss,
    ),
    Architecture(
        "pixart",
        "diffusers.PixArtTransformer2DModel",
        {
            **_LATENTS,
            "out_channels": 4,
            "cross_attention_dim": 32,
            "caption_channels": 16,
            "use_additional_conditions": False,
            "norm_num_groups": 4,
        },
        noisy(4, 8, 8, first="hidden_states", encoder_hidden_states=(6, 16)),
        noise_loss,
    ),
    Architecture(
        "sd3",
        "diffusers.SD3Transformer2DModel",
        {
            **_LATENTS,
            "caption_projection_dim": 32,
            "joint_attention_dim": 16,
            "pooled_projection_dim": 16,
            "out_channels": 4,
            "pos_embed_max_size": 8,
        },
        noisy(
            4,
            8,
            8,
            first="hidden_states",
            encoder_hidden_states=(6, 16),
            pooled_projections=(16,),
        ),
        noise_loss,
    ),
    Architecture(
        "flux",
        "diffusers.FluxTransformer2DModel",
        {
            "patch_size": 1,
            "in_channels": 4,
            "num_layers": 2,
            "num_single_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": [4, 4, 8],
        },
        noisy(
            16,
            4,
            first="hidden_states",
            encoder_hidden_states=(6, 32),
            pooled_projections=(32,),
        ),
        _flux_loss,
    ),
)
