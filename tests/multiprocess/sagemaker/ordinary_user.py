# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a script as somebody who is not root and has an empty home.

Root becomes `nobody`. Where that user may not read this Python, as in root's own folder, the script
gets a mount namespace in which it may; nothing is changed outside of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = 65534

# Arguments: the folder that nobody may enter, the one in it that is needed, and the command.
_EXPOSE = """
set -e
keep=$(mktemp -d)
mount --rbind "$2" "$keep"
mount -t tmpfs -o size=1m,mode=755 none "$1"
mkdir -p "$2"
mount --rbind "$keep" "$2"
umount -l "$keep"
rmdir "$keep"
shift 2
exec "$@"
"""

# Argument: the command, which this becomes as nobody.
_DROP = f"""
import os, sys
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
os.execv(sys.argv[1], sys.argv[1:])
"""


def command_of_nobody(arguments: list[str]) -> list[str]:
    """This Python with these arguments, as an ordinary user; skips the test where that cannot be.

    Args:
        arguments: of the interpreter.
    """
    command = [sys.executable, *arguments]
    if os.getuid() != 0:
        return command
    dropped = [sys.executable, "-c", _DROP, *command]
    closed = _closed_folder(Path(sys.base_prefix))
    if closed is not None:
        dropped = [
            *("unshare", "--mount", "/bin/sh", "-c", _EXPOSE, "sh"),
            *(str(closed), sys.base_prefix, *dropped),
        ]
    probe = [sys.executable, "-c", "import smdistributed"]
    done = subprocess.run(
        [each if each != command[0] else probe[0] for each in dropped[: -len(command)]] + probe,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=60,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no word"]
        pytest.skip(f"nobody cannot run this Python ({sys.base_prefix}): {said[-1]}")
    return dropped


def _closed_folder(path: Path) -> Path | None:
    """The first folder on the way that others may not enter."""
    for each in reversed([path, *path.parents]):
        if not each.stat().st_mode & 0o001:
            return each
    return None
