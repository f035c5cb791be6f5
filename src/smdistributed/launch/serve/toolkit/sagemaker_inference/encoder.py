# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From arrays to bodies."""

from typing import Any

from smdistributed.launch.serve.handlers.bodies import CSV, JSON, NPY, body_of

__all__ = ["SUPPORTED_CONTENT_TYPES", "encode"]

SUPPORTED_CONTENT_TYPES = {JSON, CSV, NPY}


def encode(array_like: Any, content_type: str) -> Any:
    """The body of JSON, CSV or NPY: text for the first two, bytes for the third."""
    body, kind = body_of(array_like, content_type)
    return body if kind == NPY else body.decode()
