# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Gloo, as PyTorch ships it: the baseline of every table."""

from adapters.torch_calls import TorchAdapter


class GlooAdapter(TorchAdapter):
    backend = "gloo"
