# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Helpers for the tests of users' scripts, one package for each framework.

Source: modelparallel specification, section 0.
"""
