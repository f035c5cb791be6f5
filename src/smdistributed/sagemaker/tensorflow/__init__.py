# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The estimator of TensorFlow."""

from smdistributed.sagemaker.tensorflow.estimator import TensorFlow

__all__ = ["TensorFlow"]
