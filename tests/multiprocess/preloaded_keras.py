# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Import this to import TensorFlow with Keras, which TensorFlow itself leaves to the first use.

And what is imported once these are used: what our packages consist of, without their effects, and
what the checks of ranks ask for.
"""

import gc
import importlib
import unittest.mock  # noqa: F401

import numpy.random
import numpy.testing  # noqa: F401
from preloaded_rooms import load_rooms

keras = importlib.import_module("tensorflow").keras
assert keras.Model
load_rooms("smdistributed.dataparallel.tensorflow", "smdistributed.modelparallel.tensorflow")

# Keras 3 looks for garbage whenever a session is cleared, and tests do. Here is none now: to look
# through all this takes 0.2 s, and copies every page of it, in each process.
gc.collect()
gc.freeze()
