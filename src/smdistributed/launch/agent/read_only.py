# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Run as a file in a new mount namespace: `read_only.py FOLDER COMMAND...`.

FOLDER has links to folders. In the namespace all files of the machine are mounted at FOLDER/@root,
read-only with all that is mounted in them, and the links lead to the folders there. So a link that
is in such a folder, and leads to what is beside it, finds it. Elsewhere the links stay.
Then this process becomes the command, also if something was not possible: then the links lead to
the folders themselves in the namespace too, and a line says why.

It imports nothing of this package: it runs before there is an environment, and must be quick.

Source: launch specification, section 5.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# Of <linux/mount.h> and <linux/fcntl.h>; new system calls have one number on all processors.
_MS_BIND, _MS_REC = 1 << 12, 1 << 14
_MOUNT_ATTR_RDONLY = 1
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_SETATTR = 442
_MNT_DETACH = 2

ROOT = "@root"  # which is no name of a channel

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _cover(folder: str) -> None:
    """A small file system in memory, for the places that folders are mounted at."""
    options = b"size=256k,mode=700"
    _check(_libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, options), f"tmpfs at {folder}")


def _bind(source: str, place: str) -> None:
    """Mounts a folder at another place, read-only.

    Only the place becomes read-only; the folder stays as it is.
    """
    os.mkdir(place)
    try:
        at = os.fsencode(place)
        flags = _MS_BIND | _MS_REC
        _check(_libc.mount(os.fsencode(source), at, None, flags, None), f"bind {source}")
        try:
            wanted = _MountAttr(_MOUNT_ATTR_RDONLY, 0, 0, 0)
            size = ctypes.sizeof(wanted)
            done = _libc.syscall(
                _MOUNT_SETATTR, _AT_FDCWD, at, _AT_RECURSIVE, ctypes.byref(wanted), size
            )
            _check(done, f"read-only {source} (Linux 5.12 knows how)")
        except OSError:
            _libc.umount2(at, _MNT_DETACH)
            raise
    except OSError:
        os.rmdir(place)
        raise


def show_read_only(folder: str) -> None:
    """Has the links of a folder lead to what they lead to, but read-only."""
    # Without links on the way, which would lead out of the view.
    places = {name: os.path.realpath(os.path.join(folder, name)) for name in os.listdir(folder)}
    if not places:
        return
    try:
        _cover(folder)
    except OSError as error:
        print(f"data can be written to: {error}", file=sys.stderr, flush=True)
        return
    view = ROOT
    try:
        _bind("/", os.path.join(folder, ROOT))
    except OSError as error:
        print(f"data can be written to: {error}", file=sys.stderr, flush=True)
        view = ""
    for name, place in places.items():
        os.symlink(view + place, os.path.join(folder, name))


if __name__ == "__main__":
    show_read_only(sys.argv[1])
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores, and a command would too
    os.execvp(sys.argv[2], sys.argv[2:])
