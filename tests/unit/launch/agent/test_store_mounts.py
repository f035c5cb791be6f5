# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that mount may do anything; a script never finds an empty folder for its data."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machine_speed import scaled

from smdistributed.launch.agent.fetching import DataError
from smdistributed.launch.agent.store_mounts import StoreMounts
from smdistributed.launch.data.sources import Source
from smdistributed.launch.data.stores.remote import Abandoned
from smdistributed.launch.data.stores.s3 import S3Settings
from tests.small_disks import mounted_disk

SOURCE = Source("s3://b", [("a", "p/a", 1, '"x"')], mode="FastFile", folder="p/")
SETTINGS = S3Settings("http://127.0.0.1:1")

SHOWS = """#!/bin/bash
trap 'umount "$2"; exit 0' USR1
mount -t tmpfs none "$2" && printf a > "$2/a"
while :; do sleep 0.05; done
"""
SHOWS_NOTHING = '#!/bin/sh\nmount -t tmpfs none "$2"; exec sleep 1000\n'
SHOWS_ANOTHER = SHOWS_NOTHING.replace(";", '; printf aa > "$2/a";')
LITTERS = '#!/bin/sh\ntouch "$2/.lock"; echo none; exit 1\n'
# Takes the first question of the kernel, and answers none.
IS_SILENT = f"""#!{sys.executable}
import ctypes, os, sys, time
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={{fuse}},rootmode=40000,user_id=0,group_id=0".encode()
ctypes.CDLL(None).mount(b"none", os.fsencode(sys.argv[2]), b"fuse", 0, options)
os.read(fuse, 1 << 16)
time.sleep(1000)
"""

Has = Callable[[str], Path]


@pytest.fixture
def has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Has]:
    """Makes the program that mounts. Returns: the folder of the channels."""
    with mounted_disk(tmp_path / "disk", "size=1m") as disk:  # and skips where nothing is mounted
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET-of-the-test")
        monkeypatch.setenv("PATH", f"{disk}:{os.environ['PATH']}")

        def make(text: str) -> Path:
            (disk / "mount-s3").write_text(text)
            (disk / "mount-s3").chmod(0o700)
            return disk / "channels"

        yield make
        subprocess.run(["umount", "-l", str(disk / "channels" / "train")], capture_output=True)


def processes_of(text: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SHOWS_NOTHING, "mount-s3 does not show 'a': No such file"),
        pytest.param(
            SHOWS_ANOTHER,
            "mount-s3 shows 'a' with 2 bytes, and the store says 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(IS_SILENT, "what mounts does not answer", marks=pytest.mark.slow),
    ],
    ids=["nothing", "another", "silent"],
)
def test_what_shows_no_data_is_not_taken(has: Has, tmp_path: Path, text: str, why: str) -> None:
    if text is IS_SILENT and not os.path.exists("/dev/fuse"):
        pytest.skip("there is no /dev/fuse")
    channels, said = has(text), list[str]()
    mounts = StoreMounts(said.append, True, patience_s=2.0)
    began = time.monotonic()
    assert mounts.mount({"train": SOURCE}, SETTINGS, channels) == set()
    assert time.monotonic() - began < scaled(30)
    assert f"is in mode FastFile, which is File here: {why}" in said[0]
    assert os.listdir(channels) == [], "or it would be taken for the data"
    assert mounts.pids() == []
    assert processes_of(str(tmp_path)) == []


def test_what_is_left_in_the_place_of_a_channel_is_an_error(has: Has) -> None:
    mounts = StoreMounts(print, True)
    with pytest.raises(DataError, match=r"'train' cannot be mounted: .*not empty: .*train"):
        mounts.mount({"train": SOURCE}, SETTINGS, has(LITTERS))
    mounts.close()


def test_a_folder_that_is_unmounted_is_told(has: Has, tmp_path: Path) -> None:
    channels = has(SHOWS)
    mounts = StoreMounts(print, True)
    assert mounts.mount({"train": SOURCE}, SETTINGS, channels) == {"train"}
    assert os.listdir(channels / "train") == ["a"]
    assert mounts.problem == ""
    for pid in processes_of(f"{tmp_path}/disk/mount-s3"):
        os.kill(pid, signal.SIGUSR1)
    until = time.monotonic() + scaled(20)
    while not mounts.problem:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert (
        mounts.problem
        == "channel 'train' is not mounted any more: mount-s3 has ended with status 0"
    )
    mounts.close()


def test_a_stop_waits_for_no_program_that_mounts(has: Has, tmp_path: Path) -> None:
    mounts = StoreMounts(print, True)
    with pytest.raises(Abandoned):
        mounts.mount({"train": SOURCE}, SETTINGS, has("#!/bin/sh\nexec sleep 100\n"), lambda: True)
    mounts.close()
    assert processes_of(str(tmp_path)) == []
