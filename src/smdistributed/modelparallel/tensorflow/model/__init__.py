# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedModel`: a Keras model whose parts are on several ranks.

Source: TensorFlow modelparallel specification, sections 3.4 and 5.4.
"""
