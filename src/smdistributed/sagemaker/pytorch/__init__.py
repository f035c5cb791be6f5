# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The estimator and the model of PyTorch."""

from smdistributed.sagemaker.pytorch.estimator import PyTorch
from smdistributed.sagemaker.pytorch.model import PyTorchModel, PyTorchPredictor

__all__ = ["PyTorch", "PyTorchModel", "PyTorchPredictor"]
