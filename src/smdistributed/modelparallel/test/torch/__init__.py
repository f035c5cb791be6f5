# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Helpers for the tests of users' PyTorch scripts: `utils`."""
