# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A host's folder at `/opt/ml`, for its processes alone.

Scripts have that path in them. Several hosts of one machine each need their own, and most users
may not write there. So the agent of a host runs in a mount namespace of its own, in which `/opt`
has all that it has elsewhere, and `ml`:

    a user may make user namespaces    mounts as the root of one, and is itself again in another
    root                               a mount namespace alone
    neither                            the path is not there; variables say where things are

Nothing is left behind: what was mounted goes with the last process of the namespace.

Source: launch specification, section 7.1.
"""

from __future__ import annotations

import enum
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["MOUNTED", "Step", "available_step", "wrapped"]

MOUNTED = "SMD_ML_IS_MOUNTED"
"""Variable of an agent: its host's folder is at `/opt/ml`."""

_PROBE_S = 10.0
_READ_ONLY = Path(__file__).with_name("read_only.py")

# Arguments: the folder, and the command. What is in /opt stays: environments are installed there.
# If this is killed, what it has made lies beside the folder, and goes when that goes.
_SCRIPT = """
set -e
keep=$(mktemp -d -p "${1%/*}" .opt.XXXXXX)
trap 'umount -l "$keep" 2>/dev/null; rmdir "$keep" 2>/dev/null' EXIT
mount --rbind /opt "$keep"
mount -t tmpfs -o size=1m,mode=755 none /opt
for each in "$keep"/* "$keep"/.[!.]*; do
    name=/opt/${each##*/}
    if [ "$name" = /opt/ml ]; then continue
    elif [ -L "$each" ]; then cp -P "$each" "$name"
    elif [ -d "$each" ]; then mkdir "$name"; mount --rbind "$each" "$name"
    elif [ -e "$each" ]; then : > "$name"; mount --bind "$each" "$name"
    fi
done
mkdir /opt/ml
mount --bind "$1" /opt/ml
umount -l "$keep"
rmdir "$keep"
trap - EXIT
shift
exec "$@"
"""

# Arguments: a file, and the command. Where there is no such file names are looked up elsewhere.
_NAMES_SCRIPT = """
if [ -e /etc/hosts ]; then mount --bind "$1" /etc/hosts || true; fi
shift
exec "$@"
"""


class Step(enum.Enum):
    """How a folder comes to `/opt/ml`; the value says it to people."""

    USER_NAMESPACE = "a user namespace and a mount namespace for each host"
    MOUNT_NAMESPACE = "a mount namespace for each host (this user is root)"
    NONE = "not at all: variables alone say where things are"

    @property
    def is_mount(self) -> bool:
        """Whether the folder is at `/opt/ml` then."""
        return self is not Step.NONE


def wrapped(
    step: Step,
    folder: Path,
    command: Sequence[str],
    views: Path | None = None,
    names: Path | None = None,
) -> list[str]:
    """The command that runs another one with the folder at `/opt/ml`.

    Args:
        step: how.
        folder: of the host, which is there.
        command: to be run.
        views: a folder of links to folders, which the command shall see read-only in their place,
            as they are elsewhere: also what is at `/opt/ml` there.
        names: a file that the command shall see at `/etc/hosts`.
    """
    if step is Step.NONE:
        return list(command)
    inside = ["/bin/sh", "-c", _SCRIPT, "sh", str(folder)]
    if names is not None:
        inside += ["/bin/sh", "-c", _NAMES_SCRIPT, "sh", str(names)]
    if views is not None:
        inside = [sys.executable, "-I", "-S", str(_READ_ONLY), str(views), *inside]
    if step is Step.MOUNT_NAMESPACE:
        return ["unshare", "--mount", *inside, *command]
    itself = ["unshare", "--user", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}", "--"]
    return ["unshare", "--user", "--map-root-user", "--mount", *inside, *itself, *command]


def available_step(folder: Path) -> tuple[Step, str]:
    """The first step that works here, by trying it.

    Args:
        folder: an existing one, to try with.

    Returns: the step; and why the ones before it do not work, in words.
    """
    if shutil.which("unshare") is None:
        return Step.NONE, "there is no command unshare (of util-linux)"
    if os.getuid() == 0:
        why = _problem(wrapped(Step.MOUNT_NAMESPACE, folder, ["test", "-d", "/opt/ml"]))
        return (Step.NONE, why) if why else (Step.MOUNT_NAMESPACE, "")
    why = _problem(wrapped(Step.USER_NAMESPACE, folder, ["test", "-w", "/opt/ml"]))
    return (Step.NONE, why) if why else (Step.USER_NAMESPACE, "")


def _problem(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ended with status {done.returncode}"
