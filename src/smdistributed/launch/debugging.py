# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank keeps the terminal, so that `breakpoint()` works in it; the others wait without limit.

The rank has given up its controlling terminal like the others (`terminal`): a process that has none
is never stopped for reading from one. It reads and writes by descriptors of the terminal alone.
"""

from __future__ import annotations

import contextlib
import termios
from collections.abc import Iterator
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["WITHOUT_LIMIT", "DebuggedRank", "terminal_kept"]

# A year: the variables take no "never" for all of them.
WITHOUT_LIMIT = MappingProxyType({"SMDDP_TIMEOUT_SECONDS": "31536000", "SMDDP_STALL_SECONDS": "0"})
"""Variables of all ranks: none gives up, or complains, while another one is looked at."""


class DebuggedRank(NamedTuple):
    """The rank that keeps the terminal.

    Attributes:
        rank: of this machine's.
        stdin, stdout, stderr: descriptors that it gets; None: those of this process.
    """

    rank: int
    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None


@contextlib.contextmanager
def terminal_kept(descriptor: int) -> Iterator[None]:
    """After its block a terminal is set as before: a rank that is killed at a prompt leaves it so.

    Args:
        descriptor: of the terminal; what is none is left alone.
    """
    settings = None
    with contextlib.suppress(termios.error):
        settings = termios.tcgetattr(descriptor)
    try:
        yield
    finally:
        if settings is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
