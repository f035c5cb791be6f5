# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Data of a channel on a host: whole or not there, and read-only (launch specification, 5)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.agent import mounts
from smdistributed.launch.agent.mounts import Step, available_step, wrapped
from smdistributed.launch.agent.placement import make_views, notes_on, place
from smdistributed.launch.contract.archives import VIEW, copy_directories
from smdistributed.launch.data.sources import Source
from tests.small_disks import mounted_disk

NOBODY = 65534


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data" / "sub").mkdir(parents=True)
    for name in ("x", "y", "sub/z"):
        (tmp_path / "data" / name).write_text(name)
    return tmp_path / "data"


def test_a_folder_is_a_link_and_objects_are_a_folder_of_links(data: Path, tmp_path: Path) -> None:
    whole = Source(str(data), None)
    some = Source(str(data), [("z", "sub/z"), ("deep/er", "x")])
    writable = Source(str(data), None, is_writable=True)
    pipe = Source(str(data), [("x", "x")], mode="Pipe")
    sources = {"whole": whole, "some": some, "writable": writable, "pipe": pipe}
    views, channels = tmp_path / "views", tmp_path / "ml"
    channels.mkdir()
    for _ in range(2):  # once more changes nothing
        make_views(views, sources)
        for name, source in sources.items():
            place(name, source, views, channels / name)
    assert sorted(os.listdir(channels)) == ["pipe", "some", "whole", "writable"]
    assert os.readlink(channels / "whole") == str(views / "whole")
    assert os.readlink(channels / "writable") == str(data), "not through what is read-only"
    assert (channels / "some" / "z").read_text() == "sub/z"
    assert (channels / "some" / "deep" / "er").read_text() == "x"
    assert os.listdir(channels / "pipe") == []
    assert notes_on({"writable": writable, "pipe": pipe}, views, is_mounted=True) == []
    (note,) = notes_on({"whole": whole}, views, is_mounted=True)
    assert note == f"channel 'whole' is not read-only here: a script can change {data}"
    fast = Source(str(data), None, mode="FastFile")
    (note,) = notes_on({"whole": fast}, views, is_mounted=False)
    assert note.startswith("channel 'whole' is in mode FastFile, which is File here")


@pytest.mark.parametrize("objects", [None, [("x", "gone")]])
def test_data_that_have_gone_since(tmp_path: Path, objects: list[tuple[str, str]] | None) -> None:
    source = Source(str(tmp_path / "gone" if objects is None else tmp_path), objects)
    make_views(tmp_path / "views", {"train": source})
    said = rf"channel 'train' are not there on {os.uname().nodename}: .*/gone; expected"
    with pytest.raises(ConfigurationError, match=said):
        place("train", source, tmp_path / "views", tmp_path / "train")
    assert not (tmp_path / "train").exists()


@pytest.fixture
def few_files(tmp_path: Path) -> Iterator[Path]:
    """A disk that has room for ten."""
    with mounted_disk(tmp_path / "few", "size=1m,nr_inodes=10") as path:
        yield path


def test_a_disk_that_is_full_is_named_and_nothing_is_left(data: Path, few_files: Path) -> None:
    source = Source(str(data), [(str(number), "x") for number in range(20)])
    make_views(data.parent / "views", {"train": source})
    text = rf"the disk of {few_files}/train is full: .*; expected room for 20 links, about [\d,]+ b"
    with pytest.raises(ConfigurationError, match=text):
        place("train", source, data.parent / "views", few_files / "train")
    assert os.listdir(few_files) == []


# --- read-only ------------------------------------------------------------------------------------

READS_AND_WRITES = """
import json, os, sys
views, data = sys.argv[1:]
def tried(path):
    try:
        open(path, "a").close()
    except OSError as error:
        return error.errno
print(json.dumps({
    "read": open(f"{views}/train/sub/z").read(),
    "read_only": bool(os.statvfs(f"{views}/train").f_flag & os.ST_RDONLY),
    "changed": tried(f"{views}/train/x"),
    "new": tried(f"{views}/train/sub/new"),
    "itself": tried(f"{data}/x"),
    "who": os.getuid(),
}))
"""


def as_seen(step: Step, views: Path, data: Path, **run: int) -> dict[str, object]:
    command = [sys.executable, "-I", "-S", "-c", READS_AND_WRITES, str(views), str(data)]
    done = subprocess.run(
        wrapped(step, data, command, views), capture_output=True, text=True, cwd="/", **run
    )
    if "unshare failed" in done.stderr:
        pytest.skip(f"user namespaces are forbidden here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    if "Linux 5.12" in done.stderr:
        pytest.skip(f"this system cannot make mounts read-only: {done.stderr.strip()}")
    seen: dict[str, object] = json.loads(done.stdout)
    return seen


def test_in_its_namespace_a_script_cannot_change_the_data(data: Path, tmp_path: Path) -> None:
    step, why = available_step(tmp_path)
    if step is Step.NONE:
        pytest.skip(f"nothing can be mounted here: {why}")
    (data / "deeper").mkdir()
    views = tmp_path / "views"
    make_views(views, {"train": Source(str(data), None), "gone": Source("/nowhere", None)})
    seen = as_seen(step, views, data)
    assert seen["read"] == "sub/z"
    assert seen["read_only"]
    assert seen["changed"] == seen["new"] == 30, "EROFS"
    assert seen["itself"] is None, "only the channel is read-only"
    assert os.readlink(views / "train") == str(data), "elsewhere nothing is mounted"
    assert os.readlink(views / "gone") == "/nowhere"


def test_a_link_to_what_is_beside_the_data_leads_there_and_not_to_another_channel(
    data: Path, tmp_path: Path
) -> None:
    step, why = available_step(tmp_path)
    if step is Step.NONE:
        pytest.skip(f"nothing can be mounted here: {why}")
    for folder in ("test", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "labels").write_text(folder)
    (data / "labels").symlink_to("../test/labels")
    (tmp_path / "linked").symlink_to(data)
    views = tmp_path / "views"
    others = {"test": Source(str(tmp_path / "other"), None)}
    make_views(views, {"train": Source(str(tmp_path / "linked"), None), **others})
    command = wrapped(step, data, ["cat", f"{views}/train/labels", f"{views}/test/labels"], views)
    assert subprocess.run(command, capture_output=True, text=True).stdout == "testother"


def test_a_link_that_a_script_has_made_to_its_data_is_packed(data: Path, tmp_path: Path) -> None:
    step, why = available_step(tmp_path)
    if step is Step.NONE:
        pytest.skip(f"nothing can be mounted here: {why}")
    host = tmp_path / "host"
    (host / "ml" / "model").mkdir(parents=True)
    make_views(host / "channels", {"train": Source(str(data), None)})
    link = f'ln -s "$(realpath {host}/channels/train)/x" {host}/ml/model/m'
    command = wrapped(step, host / "ml", ["sh", "-c", link], host / "channels")
    subprocess.run(command, check=True)
    assert Path(os.readlink(host / "ml" / "model" / "m")).is_relative_to(host / VIEW)
    copy_directories(tmp_path / "model", [host / "ml" / "model"], [host / "ml"])
    assert (tmp_path / "model" / "m").read_text() == "x"


def test_data_at_opt_ml_are_those_of_the_machine_and_not_the_hosts(tmp_path: Path) -> None:
    if available_step(tmp_path)[0] is not Step.MOUNT_NAMESPACE:
        pytest.skip("only root can have a machine here that has something at /opt/ml")
    (tmp_path / "host").mkdir()
    make_views(tmp_path / "views", {"train": Source("/opt/ml/model", None)})
    inside = ["ls", f"{tmp_path}/views/train", "/opt/ml"]
    command = wrapped(Step.MOUNT_NAMESPACE, tmp_path / "host", inside, tmp_path / "views")
    machine = "mount -t tmpfs none /opt; mkdir -p /opt/ml/model; touch /opt/ml/model/old; exec $@"
    done = subprocess.run(
        ["unshare", "--mount", "/bin/bash", "-c", machine.replace("$@", '"$@"'), "sh", *command],
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["/opt/ml:", f"{tmp_path}/views/train:", "old"], done.stderr


def test_what_is_mounted_in_the_data_is_read_only_too(data: Path, few_files: Path) -> None:
    step, why = available_step(data)
    if step is Step.NONE:
        pytest.skip(f"nothing can be mounted here: {why}")
    (few_files / "sub").mkdir()
    (few_files / "sub" / "z").write_text("mounted")
    views = data.parent / "views"
    make_views(views, {"train": Source(str(few_files.parent), None)})
    os.symlink("few/sub", few_files.parent / "sub")
    seen = as_seen(step, views, data)
    assert seen["read"] == "mounted"
    assert seen["new"] == 30


def test_also_for_an_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    monkeypatch.setattr(mounts.os, "getuid", lambda: NOBODY)
    monkeypatch.setattr(mounts.os, "getgid", lambda: NOBODY)
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")  # that nobody may reach
    if not os.path.exists(sys.executable) or not os.access(mounts._READ_ONLY, os.R_OK):
        pytest.skip("there is no Python that every user may run")
    folder = Path("/tmp") / f"smd-placement-{os.getpid()}"
    data = folder / "data"
    try:
        (data / "sub").mkdir(parents=True)
        (data / "sub" / "z").write_text("sub/z")
        (data / "x").write_text("x")
        make_views(folder / "views", {"train": Source(str(data), None)})
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(folder)], check=True)
        seen = as_seen(Step.USER_NAMESPACE, folder / "views", data, user=NOBODY, group=NOBODY)
        assert (seen["who"], seen["changed"], seen["new"]) == (NOBODY, 30, 30)
        assert seen["itself"] is None
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_if_nothing_can_be_mounted_the_links_stay(data: Path, tmp_path: Path) -> None:
    drop = []
    if os.getuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("there is no setpriv, which takes root's rights away")
        drop = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    views = tmp_path / "views"
    make_views(views, {"train": Source(str(data), None)})
    helper = [sys.executable, "-I", "-S", str(mounts._READ_ONLY), str(views)]
    done = subprocess.run(
        [*drop, *helper, "cat", f"{views}/train/x"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "x"
    assert "data can be written to: [Errno 1] tmpfs at" in done.stderr


OLD = """
import os, sys
sys.path.insert(0, sys.argv[1])
import read_only
read_only._MOUNT_SETATTR = 100_000
read_only.show_read_only(sys.argv[2])
print(os.readlink(sys.argv[2] + "/train"))
open(sys.argv[2] + "/train/x", "w").write("changed")
"""


def test_an_older_linux_leaves_links_too(data: Path, tmp_path: Path) -> None:
    step, why = available_step(tmp_path)
    if step is Step.NONE:
        pytest.skip(f"nothing can be mounted here: {why}")
    views = tmp_path / "views"
    make_views(views, {"train": Source(str(data), None)})
    folder = str(mounts._READ_ONLY.parent)
    inside = wrapped(Step.MOUNT_NAMESPACE, data, [sys.executable, "-c", OLD, folder, str(views)])
    if step is Step.USER_NAMESPACE:
        pytest.skip("the command in a user namespace may not mount")
    done = subprocess.run(inside, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(data.resolve())
    assert "data can be written to" in done.stderr
    assert "(Linux 5.12 knows how)" in done.stderr
    assert (data / "x").read_text() == "changed"
