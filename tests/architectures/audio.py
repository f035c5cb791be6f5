# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Sound: recognition and classification."""

from __future__ import annotations

import torch
from torch import Generator

from tests.architectures.batches import CLASSES, WORDS, classes, words
from tests.architectures.decoders import NO_CACHE
from tests.architectures.registry import Architecture, Batch

TITLE = "Audio"

_LETTERS = 32
_WIDTHS = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
_WAVES = {
    **_WIDTHS,
    "vocab_size": _LETTERS,
    "pad_token_id": 0,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 2],
    "conv_kernel": [10, 4, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
    "ctc_loss_reduction": "mean",
    "classifier_proj_size": 16,
    "num_labels": CLASSES,
}
WHISPER = {
    "vocab_size": WORDS,
    "num_mel_bins": 16,
    "d_model": 32,
    "max_source_positions": 24,
    "max_target_positions": 64,
    "encoder_layers": 3,
    "encoder_ffn_dim": 64,
    "encoder_attention_heads": 4,
    "decoder_layers": 3,
    "decoder_ffn_dim": 64,
    "decoder_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
}


def _spoken(batch: int, generator: Generator) -> Batch:
    return {
        "input_values": torch.randn(batch, 2000, generator=generator),
        "labels": torch.randint(1, _LETTERS, (batch, 8), generator=generator),
    }


def _sounds(batch: int, generator: Generator) -> Batch:
    return {
        "input_values": torch.randn(batch, 2000, generator=generator),
        "labels": classes(batch, generator),
    }


def spoken_spectra(batch: int, generator: Generator) -> Batch:
    return {
        "input_features": torch.randn(batch, 16, 48, generator=generator),
        "labels": words(batch, generator),
    }


def _spectra(batch: int, generator: Generator) -> Batch:
    return {
        "input_values": torch.randn(batch, 48, 16, generator=generator),
        "labels": classes(batch, generator),
    }


ROWS = (
    Architecture("wav2vec2", "transformers.Wav2Vec2ForCTC", _WAVES, _spoken, rate=0.01),
    Architecture(
        "wav2vec2-classes", "transformers.Wav2Vec2ForSequenceClassification", _WAVES, _sounds
    ),
    Architecture("hubert", "transformers.HubertForCTC", _WAVES, _spoken, rate=0.01),
    Architecture("hubert-classes", "transformers.HubertForSequenceClassification", _WAVES, _sounds),
    Architecture(
        "whisper",
        "transformers.WhisperForConditionalGeneration",
        WHISPER,
        spoken_spectra,
        arguments=NO_CACHE,
    ),
    Architecture(
        "ast",
        "transformers.ASTForAudioClassification",
        {
            **_WIDTHS,
            "patch_size": 8,
            "frequency_stride": 4,
            "time_stride": 4,
            "max_length": 48,
            "num_mel_bins": 16,
            "num_labels": CLASSES,
        },
        _spectra,
        remark="the Audio Spectrogram Transformer",
    ),
)
