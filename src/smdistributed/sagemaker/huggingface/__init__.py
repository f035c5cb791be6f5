# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The estimator of HuggingFace."""

from smdistributed.sagemaker.huggingface.estimator import HuggingFace

__all__ = ["HuggingFace"]
