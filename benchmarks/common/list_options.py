# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Types for ``argparse``: lists on the command line, in parts between commas."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """A type for some of ``allowed``, in the order of the command line."""

    def parse(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in chosen if name not in allowed]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(
                f"{text!r} names {', '.join(unknown) or 'nothing'}; expected some of "
                f"{', '.join(allowed)}. Separate them by commas"
            )
        return list(dict.fromkeys(chosen))

    return parse


def rank_counts(least: int) -> Callable[[str], list[int]]:
    """A type for numbers of ranks from ``least`` to 8."""

    def parse(text: str) -> list[int]:
        parts = text.split(",")
        if not all(part.isdecimal() and least <= int(part) <= 8 for part in parts):
            raise argparse.ArgumentTypeError(
                f"{text!r} is no list of numbers of ranks; expected whole numbers from {least} to "
                "8. Write for example 2,4"
            )
        return [int(part) for part in parts]

    return parse
