# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Reading single environment variables strictly.

An empty variable counts as unset: schedulers and container specifications often define names
without a value.
"""

import re
from collections.abc import Mapping

from smdistributed._common.errors import ConfigurationError

__all__ = ["first_text", "read_int", "read_port", "read_text"]

# int() would also take "1_000", "٣" and surrounding text such as newlines.
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def read_text(environ: Mapping[str, str], name: str) -> str | None:
    """Returns the variable without surrounding blanks, or `None` if unset or empty."""
    text = environ.get(name, "").strip()
    return text or None


def first_text(environ: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """Returns name and text of the first of `names` that is set, or `None`."""
    for name in names:
        text = read_text(environ, name)
        if text is not None:
            return name, text
    return None


def read_int(environ: Mapping[str, str], name: str) -> int | None:
    """Returns the variable as an integer, or `None` if unset or empty.

    Raises:
        ConfigurationError: the text is not a decimal integer.
    """
    text = read_text(environ, name)
    if text is None:
        return None
    if _INTEGER.fullmatch(text) is None:
        raise ConfigurationError(
            f"{name}={text!r} is not an integer; expected decimal digits such as '3'. Correct "
            f"{name}, or unset it and let the launcher set it."
        )
    return int(text)


def read_port(environ: Mapping[str, str], name: str) -> int | None:
    """Returns the variable as a TCP port (1 to 65535), or `None` if unset or empty.

    Raises:
        ConfigurationError: not an integer, or out of range.
    """
    port = read_int(environ, name)
    if port is not None and not 1 <= port <= 65535:
        raise ConfigurationError(
            f"{name}={port} is not a TCP port; expected 1 to 65535. Set {name} to a free port, the "
            "same on every rank."
        )
    return port
