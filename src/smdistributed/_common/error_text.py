# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An exception in one line, for the middle of a text that other ranks read."""

__all__ = ["error_text", "shortened"]

# Of a text that goes to other ranks: enough for people, and quick to send.
_MOST_CHARACTERS = 64 << 10


def error_text(error: BaseException) -> str:
    """Its class and what it says; never raises, as other ranks wait for the text."""
    try:
        said = str(error)
    except Exception as failed:
        said = f"(its __str__ raised {type(failed).__name__})"
    text = shortened(f"{type(error).__name__}: {said}".rstrip(": ."))
    # A file's name that is no UTF-8 is text with halves of surrogate pairs, which cannot be sent.
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str) -> str:
    """The text, without its middle if it is very long."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = _MOST_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
