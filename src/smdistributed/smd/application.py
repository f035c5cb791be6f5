# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What all commands of `smd` have: the application that they belong to, and how they print."""

from __future__ import annotations

import datetime as dt
import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

__all__ = ["FAILED", "JsonOption", "application", "console", "print_json"]

application = typer.Typer(
    name="smd",
    help="Train as SageMaker jobs do, here or on your machines: no Docker, no account.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

FAILED = 1
"""Exit status of a command whose job, or endpoint, has failed."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def print_json(value: Any) -> None:
    """Prints a value; times as ISO 8601."""

    def plain(each: Any) -> str:
        return each.isoformat() if isinstance(each, dt.datetime) else str(each)

    print(json.dumps(value, indent=1, default=plain, ensure_ascii=False))


def console() -> Console:
    """As wide as a terminal; names are whole where programs read them."""
    return Console() if sys.stdout.isatty() else Console(width=200)
