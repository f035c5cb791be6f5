# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Packages that tests start in processes of their own, and need not import themselves."""

from __future__ import annotations

import importlib.util

import pytest


def require(name: str) -> None:
    """Skips the test, or the module that calls it, unless the package is installed.

    As `pytest.importorskip`, which imports it: some take seconds, in each of pytest's workers.
    """
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"the package {name} is not installed", allow_module_level=True)
