# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas of the model: averages of their gradients, and failures told to all of them."""
