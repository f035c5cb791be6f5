# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The estimator of PyTorch."""

from smdistributed.sagemaker.pytorch.estimator import PyTorch

__all__ = ["PyTorch"]
