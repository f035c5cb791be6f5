# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An exception in one line, for the middle of a text that other ranks read."""

__all__ = ["error_text"]


def error_text(error: BaseException) -> str:
    """Its class and what it says; never raises, as other ranks wait for the text."""
    try:
        said = str(error)
    except Exception as failed:
        said = f"(its __str__ raised {type(failed).__name__})"
    return f"{type(error).__name__}: {said}".rstrip(": .")
