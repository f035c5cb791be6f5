# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The estimator and the model of TensorFlow."""

from smdistributed.sagemaker.tensorflow.estimator import TensorFlow
from smdistributed.sagemaker.tensorflow.model import TensorFlowModel, TensorFlowPredictor

__all__ = ["TensorFlow", "TensorFlowModel", "TensorFlowPredictor"]
