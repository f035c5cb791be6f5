# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From bodies to arrays."""

from typing import Any

from smdistributed.launch.serve.handlers.bodies import array_of

__all__ = ["decode"]


def decode(obj: Any, content_type: str) -> Any:
    """The array that a body of JSON, CSV or NPY is; NPY with objects is refused."""
    return array_of(obj, content_type)
