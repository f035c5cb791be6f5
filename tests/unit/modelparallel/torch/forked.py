# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Work in a process that may end in the middle of it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def in_a_child(work: Callable[[], None]) -> int:
    """Runs `work` in a forked process; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
