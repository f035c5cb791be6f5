# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank keeps the terminal, so that `breakpoint()` works in it; the others wait without limit.

The rank has given up its controlling terminal like the others (`terminal`): a process that has none
is never stopped for reading from one. It reads and writes by descriptors of the terminal alone.
"""

from __future__ import annotations

import contextlib
import os
import termios
from collections.abc import Iterator
from types import MappingProxyType
from typing import NamedTuple

from smdistributed._common.errors import ConfigurationError

__all__ = ["WITHOUT_LIMIT", "DebuggedRank", "opened", "own_terminal", "terminal_kept"]

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


def own_terminal() -> str:
    """The path of the terminal that this process reads from.

    Raises:
        ConfigurationError: it reads from none.
    """
    try:
        return os.ttyname(0)
    except OSError:
        raise ConfigurationError(
            "a rank is to be debugged, but standard input is no terminal; expected a command that"
            " was typed at one, without a pipe."
        ) from None


@contextlib.contextmanager
def opened(terminal: str, rank: int) -> Iterator[DebuggedRank]:
    """A rank that has a terminal of another session, in its block.

    Args:
        terminal: its path.
        rank: of this machine's.

    Raises:
        ConfigurationError: it cannot be opened, or is gone.
    """
    try:
        descriptor = os.open(terminal, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(
            f"a rank is to be debugged at {terminal}, which cannot be opened ({error}); expected"
            " the terminal that the job was started at, which must stay open."
        ) from None
    try:
        yield DebuggedRank(rank, descriptor, descriptor, descriptor)
    finally:
        os.close(descriptor)


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
