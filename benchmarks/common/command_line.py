# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Options that several benchmarks have, and types of options that are lists."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def add_names(parser: argparse.ArgumentParser, option: str, allowed: Sequence[str]) -> None:
    """An option that takes some of ``allowed``; without it, all."""
    parser.add_argument(
        option,
        type=names(allowed),
        default=list(allowed),
        metavar="NAME,...",
        help=f"of {', '.join(allowed)}",
    )


def add_turns(
    parser: argparse.ArgumentParser, rounds: int | None = None, turn_ms: float | None = None
) -> None:
    """``--rounds`` and ``--turn-ms``, with their defaults."""
    parser.add_argument(
        "--rounds", type=int, default=rounds, metavar="N", help="turns of each column"
    )
    parser.add_argument(
        "--turn-ms", type=float, default=turn_ms, metavar="MS", help="time of one turn, about"
    )


def names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """A type for some of ``allowed`` between commas, in the order of the command line."""

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
    """A type for numbers of ranks from ``least`` to 8, between commas."""

    def parse(text: str) -> list[int]:
        parts = text.split(",")
        if not all(part.isdecimal() and least <= int(part) <= 8 for part in parts):
            raise argparse.ArgumentTypeError(
                f"{text!r} is no list of numbers of ranks; expected whole numbers from {least} to "
                "8. Write for example 2,4"
            )
        return [int(part) for part in parts]

    return parse
