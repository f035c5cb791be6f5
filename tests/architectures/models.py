# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Public architectures of transformers and diffusers, small, with random weights: a table.

    architecture = ARCHITECTURES["gpt2"]
    model = architecture.make()                          # the same weights every time
    batch = architecture.make_batch(generator)           # tensors, cut along their first axis
    loss = architecture.loss(model(**batch, **architecture.arguments), batch)

Everything is made from configurations; nothing is downloaded. Nothing is random in training: all
dropout is turned off. Importing this imports neither library: each is when `make` is called.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

__all__ = ["ARCHITECTURES", "Architecture"]

BATCH = 4
LENGTH = 12
WORDS = 97
CLASSES = 5

Batch = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A model, its batches, its loss.

    Attributes:
        name: in the table, and on the command line.
        kind: what it is for.
        library: "transformers" or "diffusers".
        model_class: by its name in the library.
        config: what the model is made from: arguments of `config_class`, or of the model itself.
        make_batch: keyword arguments of the model; what begins with `_` is for the loss alone.
        config_class: by its name in the library; none in diffusers.
        arguments: more keyword arguments of the model, the same in each microbatch.
        loss: of the model's output and the batch.
        optimizer: "SGD" or "AdamW".
        remark: what this row is there to show.
        places: partitions by hand, of modules whose names match; the last match counts. Without
            any, the library decides.
    """

    name: str
    kind: str
    library: str
    model_class: str
    config: Mapping[str, Any]
    make_batch: Callable[[Generator], Batch]
    config_class: str = ""
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    loss: Callable[[Any, Batch], Tensor] = lambda output, batch: output.loss
    optimizer: str = "SGD"
    remark: str = ""
    places: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def make(self) -> nn.Module:
        """The model, in training mode, with the same weights every time."""
        torch.manual_seed(0)
        library = importlib.import_module(self.library)
        make = getattr(library, self.model_class)
        if self.config_class:
            model: nn.Module = make(getattr(library, self.config_class)(**self.config))
        else:
            model = make(**self.config)
        _turn_off_dropout(model)
        return model.train()

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        if self.optimizer == "AdamW":
            return torch.optim.AdamW(parameters, lr=1e-3)
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def run(self, model: Any, batch: Batch) -> Tensor:
        """The loss of a microbatch: what a step function does before `model.backward(loss)`."""
        given = {name: value for name, value in batch.items() if not name.startswith("_")}
        return self.loss(model(**given, **self.arguments), batch)


def _turn_off_dropout(model: nn.Module) -> None:
    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if isinstance(value, float) and ("drop" in name):
                    setattr(holder, name, 0.0)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0


def _words(generator: Generator, length: int = LENGTH) -> Tensor:
    return torch.randint(3, WORDS, (BATCH, length), generator=generator)


def _text(generator: Generator) -> Batch:
    return {"input_ids": _words(generator), "labels": _words(generator)}


def _pair(generator: Generator) -> Batch:
    return {"input_ids": _words(generator), "labels": _words(generator, 7)}


def _image(size: int) -> Callable[[Generator], Batch]:
    def make_batch(generator: Generator) -> Batch:
        return {
            "pixel_values": torch.randn(BATCH, 3, size, size, generator=generator),
            "labels": torch.randint(CLASSES, (BATCH,), generator=generator),
        }

    return make_batch


def _segments(generator: Generator) -> Batch:
    return {
        "pixel_values": torch.randn(BATCH, 3, 64, 64, generator=generator),
        "labels": torch.randint(CLASSES, (BATCH, 64, 64), generator=generator),
    }


def _image_and_text(generator: Generator) -> Batch:
    return {
        "pixel_values": torch.randn(BATCH, 3, 32, 32, generator=generator),
        "input_ids": _words(generator),
    }


def _sound(generator: Generator) -> Batch:
    return {
        "input_values": torch.randn(BATCH, 400, generator=generator),
        "labels": torch.randint(CLASSES, (BATCH,), generator=generator),
    }


def _spectrum_and_text(generator: Generator) -> Batch:
    return {
        "input_features": torch.randn(BATCH, 8, 40, generator=generator),
        "labels": _words(generator, 7),
    }


def _spectrum(generator: Generator) -> Batch:
    return {
        "input_values": torch.randn(BATCH, 24, 16, generator=generator),
        "labels": torch.randint(CLASSES, (BATCH,), generator=generator),
    }


def _noise(*, channels: int, text: bool = False, labels: bool = False) -> Any:
    def make_batch(generator: Generator) -> Batch:
        batch = {
            "sample": torch.randn(BATCH, channels, 16, 16, generator=generator),
            "timestep": torch.randint(1000, (BATCH,), generator=generator),
            "_target": torch.randn(BATCH, channels, 16, 16, generator=generator),
        }
        if text:
            batch["encoder_hidden_states"] = torch.randn(BATCH, 6, 16, generator=generator)
        if labels:
            batch["class_labels"] = torch.randint(CLASSES, (BATCH,), generator=generator)
            batch["hidden_states"] = batch.pop("sample")
        return batch

    return make_batch


def _picture(generator: Generator) -> Batch:
    sample = torch.randn(BATCH, 3, 16, 16, generator=generator)
    return {"sample": sample, "_target": sample}


def _distance(output: Any, batch: Batch) -> Tensor:
    loss: Tensor = functional.mse_loss(output.sample, batch["_target"])
    return loss


def _with_hidden_states(output: Any, batch: Batch) -> Tensor:
    loss: Tensor = output.loss + sum(state.square().mean() for state in output.hidden_states)
    return loss


# What decoders of the Llama kind have in common.
_DECODER = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_DECODER, "num_key_value_heads": 2}
_GPT2 = {"vocab_size": WORDS, "n_positions": 32, "n_embd": 32, "n_layer": 4, "n_head": 4}
_ROUTER = {"output_router_logits": True, "router_aux_loss_coef": 0.1}
_ENCODER = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_SEQUENCES = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16),
    "conv_kernel": (8, 4),
    "conv_stride": (4, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16,
    "apply_spec_augment": False,
    "num_labels": CLASSES,
}
_NO_CACHE = {"use_cache": False}


def _decoder(name: str, prefix: str, config: Mapping[str, Any], **rest: Any) -> Architecture:
    """A model that predicts the next word."""
    rest.setdefault("kind", "text, decoder")
    rest.setdefault("arguments", _NO_CACHE)
    return Architecture(
        name=name,
        library="transformers",
        model_class=rest.pop("model_class", f"{prefix}ForCausalLM"),
        config_class=f"{prefix}Config",
        config=config,
        make_batch=_text,
        **rest,
    )


def _encoder(name: str, prefix: str, config: Mapping[str, Any], **rest: Any) -> Architecture:
    """A model that fills in words that are masked."""
    return Architecture(
        name=name,
        kind="text, encoder",
        library="transformers",
        model_class=f"{prefix}ForMaskedLM",
        config_class=f"{prefix}Config",
        config=config,
        make_batch=_text,
        **rest,
    )


def _sequences(name: str, prefix: str, config: Mapping[str, Any], class_: str) -> Architecture:
    """A model that makes a text from another."""
    return Architecture(
        name=name,
        kind="text, encoder and decoder",
        library="transformers",
        model_class=class_,
        config_class=f"{prefix}Config",
        config=config,
        make_batch=_pair,
        arguments=_NO_CACHE,
    )


def _vision(
    name: str,
    prefix: str,
    config: Mapping[str, Any],
    *,
    size: int = 32,
    class_: str = "ForImageClassification",
    make_batch: Callable[[Generator], Batch] | None = None,
) -> Architecture:
    return Architecture(
        name=name,
        kind="vision",
        library="transformers",
        model_class=f"{prefix}{class_}",
        config_class=f"{prefix}Config",
        config={**config, "num_labels": CLASSES},
        make_batch=make_batch or _image(size),
    )


def _audio(
    name: str, prefix: str, class_: str, config: Mapping[str, Any], make_batch: Any, **rest: Any
) -> Architecture:
    return Architecture(
        name=name,
        kind="audio",
        library="transformers",
        model_class=f"{prefix}{class_}",
        config_class=f"{prefix}Config",
        config=config,
        make_batch=make_batch,
        **rest,
    )


def _diffusion(name: str, class_: str, config: Mapping[str, Any], make_batch: Any) -> Architecture:
    return Architecture(
        name=name,
        kind="diffusion",
        library="diffusers",
        model_class=class_,
        config=config,
        make_batch=make_batch,
        loss=_distance,
    )


_TABLE = (
    _decoder("gpt2", "GPT2", _GPT2, model_class="GPT2LMHeadModel"),
    _decoder(
        "gpt2-cache",
        "GPT2",
        _GPT2,
        model_class="GPT2LMHeadModel",
        arguments={"use_cache": True},
        remark="with its cache of keys and values, which training does not need",
    ),
    _decoder("gpt-neox", "GPTNeoX", _DECODER),
    _decoder("llama", "Llama", _GROUPED, optimizer="AdamW"),
    _decoder("mistral", "Mistral", {**_GROUPED, "sliding_window": 4}, optimizer="AdamW"),
    _decoder("qwen2", "Qwen2", _GROUPED),
    _decoder("phi", "Phi", _DECODER),
    _decoder("gemma", "Gemma", {**_GROUPED, "head_dim": 8}),
    _decoder(
        "opt",
        "OPT",
        {**_DECODER, "ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    _decoder("bloom", "Bloom", {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 4, "n_head": 4}),
    _decoder(
        "mamba",
        "Mamba",
        {"vocab_size": WORDS, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 4},
        kind="text, state space",
    ),
    _decoder(
        "mixtral",
        "Mixtral",
        {**_GROUPED, **_ROUTER, "num_local_experts": 4},
        kind="text, mixture of experts",
        remark="with the loss of its routers",
    ),
    _decoder(
        "mixtral-plain",
        "Mixtral",
        {**_GROUPED, "num_local_experts": 4},
        kind="text, mixture of experts",
        remark="without the loss of its routers",
    ),
    _decoder(
        "mixtral-placed",
        "Mixtral",
        {**_GROUPED, **_ROUTER, "num_local_experts": 4},
        kind="text, mixture of experts",
        places={r"model\.layers\.\d\.self_attn": 1},
        remark="with the loss of its routers; by hand, attention alone on the other rank",
    ),
    _decoder(
        "qwen2-moe",
        "Qwen2Moe",
        {
            **_GROUPED,
            **_ROUTER,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
        kind="text, mixture of experts",
        remark="with the loss of its routers",
    ),
    _decoder(
        "qwen3-moe",
        "Qwen3Moe",
        {
            **_GROUPED,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
        kind="text, mixture of experts",
        remark="without the loss of its routers",
    ),
    _decoder(
        "llama-states",
        "Llama",
        _GROUPED,
        arguments={**_NO_CACHE, "output_hidden_states": True},
        loss=_with_hidden_states,
        remark="with a loss of its hidden states",
    ),
    _encoder("bert", "Bert", _ENCODER),
    _encoder("roberta", "Roberta", _ENCODER),
    _encoder(
        "distilbert",
        "DistilBert",
        {
            "vocab_size": WORDS,
            "dim": 32,
            "n_layers": 4,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": 64,
        },
    ),
    _encoder("albert", "Albert", {**_ENCODER, "embedding_size": 16}),
    _encoder("electra", "Electra", {**_ENCODER, "embedding_size": 16}),
    _sequences(
        "t5",
        "T5",
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        "T5ForConditionalGeneration",
    ),
    _sequences("bart", "Bart", _SEQUENCES, "BartForConditionalGeneration"),
    _sequences("marian", "Marian", _SEQUENCES, "MarianMTModel"),
    _sequences("pegasus", "Pegasus", _SEQUENCES, "PegasusForConditionalGeneration"),
    _vision(
        "vit",
        "ViT",
        {
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "image_size": 32,
            "patch_size": 8,
        },
    ),
    _vision(
        "swin",
        "Swin",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
    _vision(
        "convnext",
        "ConvNext",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]},
        size=64,
    ),
    _vision(
        "resnet",
        "ResNet",
        {
            "embedding_size": 8,
            "hidden_sizes": [16, 24, 32, 48],
            "depths": [1, 1, 2, 1],
            "layer_type": "basic",
        },
        size=64,
    ),
    _vision(
        "segformer",
        "Segformer",
        {
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [8, 16, 24, 32],
            "num_attention_heads": [1, 2, 2, 4],
            "decoder_hidden_size": 16,
        },
        class_="ForSemanticSegmentation",
        make_batch=_segments,
    ),
    Architecture(
        name="clip",
        kind="vision and text",
        library="transformers",
        model_class="CLIPModel",
        config_class="CLIPConfig",
        config={
            "text_config": {**_ENCODER, "eos_token_id": 2, "projection_dim": 16},
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "image_size": 32,
                "patch_size": 8,
                "projection_dim": 16,
            },
            "projection_dim": 16,
        },
        make_batch=_image_and_text,
        arguments={"return_loss": True},
    ),
    _audio("wav2vec2", "Wav2Vec2", "ForSequenceClassification", _SPEECH, _sound),
    _audio("hubert", "Hubert", "ForSequenceClassification", _SPEECH, _sound),
    _audio(
        "whisper",
        "Whisper",
        "ForConditionalGeneration",
        {
            **_SEQUENCES,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 16,
        },
        _spectrum_and_text,
        arguments=_NO_CACHE,
    ),
    _audio(
        "ast",
        "AST",
        "ForAudioClassification",
        {
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "patch_size": 8,
            "frequency_stride": 8,
            "time_stride": 8,
            "max_length": 24,
            "num_mel_bins": 16,
            "num_labels": CLASSES,
        },
        _spectrum,
    ),
    _diffusion(
        "unet-2d",
        "UNet2DModel",
        {
            "sample_size": 16,
            "block_out_channels": (16, 32),
            "layers_per_block": 1,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "norm_num_groups": 4,
        },
        _noise(channels=3),
    ),
    _diffusion(
        "unet-2d-condition",
        "UNet2DConditionModel",
        {
            "sample_size": 16,
            "block_out_channels": (16, 32),
            "layers_per_block": 1,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": 16,
            "attention_head_dim": 4,
            "norm_num_groups": 4,
        },
        _noise(channels=4, text=True),
    ),
    _diffusion(
        "autoencoder-kl",
        "AutoencoderKL",
        {
            "block_out_channels": (16, 32),
            "layers_per_block": 1,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "norm_num_groups": 4,
        },
        _picture,
    ),
    _diffusion(
        "dit",
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 4,
            "norm_num_groups": 4,
            "sample_size": 16,
            "num_embeds_ada_norm": CLASSES,
        },
        _noise(channels=4, labels=True),
    ),
)
ARCHITECTURES = {architecture.name: architecture for architecture in _TABLE}
