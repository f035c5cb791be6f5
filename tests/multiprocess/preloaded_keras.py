# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Import this to import TensorFlow with Keras, which TensorFlow itself leaves to the first use."""

import importlib

keras = importlib.import_module("tensorflow").keras
assert keras.Model
