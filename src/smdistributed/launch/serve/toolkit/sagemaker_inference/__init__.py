# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Stands in for the package that handlers import, where it is not installed.

Found by workers only: its folder is last on their path of modules.
"""
