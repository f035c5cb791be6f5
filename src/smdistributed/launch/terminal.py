# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the ranks apart from the terminal in whose session they run.

Ranks stay in the session of the launcher. The kernel may make each session a scheduling group of
its own (`sched_autogroup_enabled`), and `sched_yield`, by which ranks that share a processor hand
it to each other, does not reach beyond such a group.

The price is that the session may have a terminal, and to it a rank is a background process. One
that asks for a password on `/dev/tty` would be stopped by SIGTTIN, one that writes there perhaps by
SIGTTOU, and a stopped rank holds up all others for ever. Ignoring these signals is not enough: the
program's own children would inherit that, and a password prompt could still switch off the
terminal's echo. A process without a controlling terminal gets neither signal, and finds out when it
opens `/dev/tty`.
"""

import contextlib
import fcntl
import os
import termios

__all__ = ["leave_terminal"]


def leave_terminal() -> None:
    """Gives up this process's controlling terminal, if it has one.

    The session, its other processes and open descriptors stay as they are; children inherit that
    there is no terminal. To be called in a process that does not lead its session: from a leader's
    the kernel would take the terminal away from all.
    """
    # No such device: there is no terminal, which is the aim.
    with contextlib.suppress(OSError):
        # A serial line without a carrier would block otherwise.
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            fcntl.ioctl(terminal, termios.TIOCNOTTY)
        finally:
            os.close(terminal)
