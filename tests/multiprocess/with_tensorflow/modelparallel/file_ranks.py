# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the process of test_files.py runs."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.checkpoints import files
from smdistributed.modelparallel.tensorflow.checkpoints.files import write_checkpoint, write_whole
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

_PB = "saved_model.pb"


def _saved(name: str) -> Any:
    """Writes a directory like a SavedModel."""

    def write(path: str) -> None:
        (Path(path) / "variables").mkdir(parents=True)
        (Path(path) / "saved_model.pb").write_text(name)
        (Path(path) / "variables" / f"variables.{name}").touch()

    return write


def _with_a_wrong_ending(path: str) -> None:
    raise ValueError(f"a wrong ending: {path}")


def _files(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}


def check_a_directory_that_cannot_be_renamed_is_written_into(rank: int, size: int) -> None:
    """A disk that is mounted at TEST_DISK, and one of a container's image."""
    disk = Path(os.environ["TEST_DISK"])
    # Until 2026-11 what lay on a disk below was copied beside it, and removed from it.
    (disk / "below").touch()
    for number in ("1", "2"):
        write_whole(str(disk.parent), _saved(number))
        assert disk.is_mount()
        of_model = {"saved_model.pb", f"variables/variables.{number}"}
        assert _files(disk.parent) == {f"{disk.name}/below"} | of_model
    (disk / "below").unlink()
    with tempfile.TemporaryDirectory() as name:
        other = Path(name) / "model"
        other.mkdir()
        for place in (disk, other):
            (place / "train.py").touch()
            for number in ("1", "2"):
                if place is disk:
                    write_whole(str(place), _saved(number))
                else:
                    with mock.patch.object(files, "_exchange", _other_device):
                        write_whole(str(place), _saved(number))
                of_model = {"saved_model.pb", f"variables/variables.{number}"}
                assert _files(place) == {"train.py"} | of_model
                assert (place / "saved_model.pb").read_text() == number
                assert {each.name for each in place.iterdir()} == {
                    "train.py",
                    "saved_model.pb",
                    "variables",
                }
        assert os.listdir(name) == ["model"]
        with (
            mock.patch.object(files, "_exchange", _other_device),
            mock.patch("os.replace", _other_device),
        ):
            text = raised(OSError, write_whole, str(other), _saved("3"))
        assert "partly gone" in text
        assert "untouched" not in text


def _other_device(*_: str) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def check_what_is_of_others_stays(rank: int, size: int) -> None:
    """Until 2026-11 an export to a folder or a file that was there removed it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place, killed = folder / "model", folder / ".model.smp-tmp.old"
        (place / "code").mkdir(parents=True)
        (place / "code" / "train.py").touch()
        (folder / "file").write_text("mine")
        of_others = {"file", "model/code/train.py"}

        def require(number: str) -> None:
            of_model = {"model/saved_model.pb", f"model/variables/variables.{number}"}
            assert _files(folder) == of_others | of_model
            assert (place / "saved_model.pb").read_text() == number

        for number in ("1", "2"):
            write_whole(str(place), _saved(number))
            require(number)
        text = raised(ValueError, write_whole, str(place), _with_a_wrong_ending)
        assert text == f"a wrong ending: {place}"  # and not where it is written
        text = raised(NotADirectoryError, write_whole, str(folder / "file"), _saved("3"))
        assert "is a file, and what is written is a directory" in text
        assert (folder / "file").read_text() == "mine"
        (place / "code" / "link").symlink_to("nowhere")
        os.rename(place, killed)  # as if killed before the new one had its name
        write_whole(str(place), _saved("4"))
        require("4")
        (killed / "variables").mkdir(parents=True)  # as if killed behind that
        write_whole(str(place), _saved("5"))
        require("5")
        assert os.readlink(place / "code" / "link") == "nowhere"
        assert {each.name for each in folder.iterdir()} == {"file", "model"}


def check_what_is_of_others_stays_in_folders_of_a_model(rank: int, size: int) -> None:
    """Until 2026-11 what users had in `assets` or `variables` was removed.

    And `keras_metadata.pb` stayed when a model of tf-keras was replaced by one without: loading
    failed, as it named layers of the one before.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "model"
        (place / "assets" / "of us").mkdir(parents=True)
        (place / "variables").mkdir()
        mine = {"assets/of us/names.txt", "assets/labels.txt", "variables/notes.txt"}

        def write(path: str) -> None:
            _saved("2")(path)
            (Path(path) / "assets").mkdir()
            (Path(path) / "assets" / "words.txt").write_text("2")

        for has_mine in (True, False):
            for each in mine if has_mine else ():
                (place / each).write_text("mine")
            for written in (_saved("1"), write):
                write_whole(str(place), written)
                (place / "keras_metadata.pb").touch()
            before = place.stat().st_ino
            write_whole(str(place), write)
            own = {"saved_model.pb", "variables/variables.2", "assets/words.txt"}
            assert _files(place) == own | (mine if has_mine else set())
            assert (place.stat().st_ino == before) == has_mine
            assert all((place / each).read_text() == "mine" for each in mine if has_mine)
            for kind, each in ((NotADirectoryError, "variables"), (IsADirectoryError, _PB)):
                with _in_the_way(place / each):
                    text = raised(kind, write_whole, str(place), write)
                    assert f"{place / each} is a " in text
                    assert "untouched" in text
            shutil.rmtree(place)
            assert os.listdir(name) == []


@contextmanager
def _in_the_way(place: Path) -> Iterator[None]:
    """A file is where a directory was, or a directory where a file was."""
    aside = place.with_name("aside")
    os.rename(place, aside)
    if aside.is_dir():
        place.touch()
    else:
        place.mkdir()
    yield
    if aside.is_dir():
        place.unlink()
    else:
        place.rmdir()
    os.rename(aside, place)


def check_a_directory_in_which_this_process_works_stays(rank: int, size: int) -> None:
    """Until 2026-11 it was removed, so relative paths led nowhere; "." was taken for its parent."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inside = folder / "one" / "two"
        inside.mkdir(parents=True)
        os.chdir(inside)
        try:
            for number, (path, place) in enumerate(
                (
                    (".", inside),
                    ("..", inside.parent),
                    ("../../one/two/", inside),
                    (str(inside.parent), inside.parent),
                )
            ):
                write_whole(path, _saved(str(number)))
                assert os.path.samefile(".", inside), path
                assert (place / "saved_model.pb").read_text() == str(number)
                assert (place / "variables" / f"variables.{number}").exists()
        finally:
            os.chdir(before)
        (inside / ".two.smp-tmp").mkdir()  # as if killed meanwhile
        write_whole(str(inside), _saved("last"))
        own = {"saved_model.pb", "variables"}
        assert {each.name for each in inside.iterdir()} == own
        assert {each.name for each in inside.parent.iterdir()} == own | {"two"}
        assert os.listdir(name) == ["one"]


def check_what_is_of_others_stays_theirs(rank: int, size: int) -> None:
    """Until 2026-11 directories went to whoever wrote."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "model"
        for below in ("", "code"):
            (place / below).mkdir(parents=True)
            os.chmod(place, 0o2775)
            if os.geteuid() == 0:
                os.chown(place, 12345, 12346)
            before = place.stat()
            for number in ("1", "2"):
                write_whole(str(place), _saved(number))
                assert _files(place) == {"saved_model.pb", f"variables/variables.{number}"}
                after = place.stat()
                for of in ("st_uid", "st_gid", "st_mode"):
                    assert getattr(after, of) == getattr(before, of), of
            # What is exchanged is another directory; what others have a part of is the same.
            assert (after.st_ino == before.st_ino) == bool(below)
            assert os.listdir(name) == ["model"]
            shutil.rmtree(place)


def check_a_file_keeps_its_rights(rank: int, size: int) -> None:
    """Until 2026-11 weights that only their owner might read could be read by all then."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "model.weights.h5"
        place.touch(0o600)
        if os.geteuid() == 0:
            os.chown(place, 12345, 12346)
        before = place.stat()
        write_whole(str(place), lambda path: Path(path).write_text("new"))
        after = place.stat()
        assert place.read_text() == "new"
        for of in ("st_uid", "st_gid", "st_mode"):
            assert getattr(after, of) == getattr(before, of), of


def check_half_a_checkpoint_is_not_said_to_be_untouched(rank: int, size: int) -> None:
    """Data and index are two files. Until 2026-11 the text said that the old one was there."""
    with tempfile.TemporaryDirectory() as name:
        prefix = str(Path(name) / "ckpt-1")
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        for number, text in ((1.0, "untouched"), (2.0, "partly gone")):
            replace = mock.Mock(wraps=os.replace, side_effect=[mock.DEFAULT, error])
            with mock.patch.object(os, "replace", replace):
                assert text in raised(OSError, write_checkpoint, prefix, {"x": {"": tf.zeros(3)}})
            write_checkpoint(prefix, {"x": {"": tf.constant(number)}})
            assert tf.train.load_checkpoint(prefix).get_tensor("x") == number
        assert len(os.listdir(name)) == 2


def check_shards_are_not_mixed(rank: int, size: int) -> None:
    """As of Keras' `max_shard_size`. Until 2026-11 those of two models were loaded as one."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "model.weights.json"
        names = ["model_0.weights.h5", "model_1.weights.h5", place.name]

        def shards(number: str) -> Callable[[str], None]:
            def write(path: str) -> None:
                for each in names:
                    Path(path).with_name(each).write_text(number)

            return write

        for error in (OSError(errno.EIO, os.strerror(errno.EIO)), KeyboardInterrupt("planted")):
            write_whole(str(place), shards("1"))
            replace = mock.Mock(wraps=os.replace, side_effect=[mock.DEFAULT, error])
            with mock.patch.object(os, "replace", replace):
                text = raised(type(error), write_whole, str(place), shards("2"))
            assert "untouched" not in text
            assert not place.exists()
            write_whole(str(place), shards("3"))
            assert sorted(os.listdir(name)) == sorted(names)
            assert {(Path(name) / each).read_text() for each in names} == {"3"}


@contextmanager
def _as_another_user() -> Iterator[None]:
    """While it is open, this process is not root's."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(12345, 12345, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def check_a_directory_without_rights_is_named(rank: int, size: int) -> None:
    """Until 2026-11 an export to a model that is read-only spoilt the path for ever.

    It left a hidden folder, read-only as well, which no later export could remove. Where there was
    something of others, the old model was removed, or was said to be.
    """
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        with _as_another_user():
            for has_others in (False, True):
                place = Path(name) / f"model-{has_others}"
                write_whole(str(place), _saved("1"))
                (place / "train.py").touch() if has_others else None
                of_others = {"train.py"} if has_others else set()
                for below in ("", "variables"):
                    os.chmod(place / below, 0o555)
                    text = raised(PermissionError, write_whole, str(place), _saved("2"))
                    assert f"{place / below} is not writable" in text
                    assert "untouched" in text
                    assert _files(place) == {_PB, "variables/variables.1"} | of_others
                    os.chmod(place / below, 0o755)
                assert not list(Path(name).glob(".*"))
                write_whole(str(place), _saved("3"))
                assert _files(place) == {_PB, "variables/variables.3"} | of_others
            left = Path(name) / ".model-False.smp-tmp" / "model-False"
            left.mkdir(parents=True)
            (left / _PB).touch()
            os.chmod(left, 0o555)
            text = raised(PermissionError, write_whole, str(left.parent.parent / left.name), str)
            assert f"{left} is left of an earlier save, and cannot be removed" in text
            os.chmod(left, 0o755)


def check_a_directory_of_another_user(rank: int, size: int) -> None:
    """In a folder such as /tmp it cannot be renamed. Until 2026-11 exports to it failed."""
    if os.geteuid() != 0:
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "model"
        place.mkdir()
        os.chmod(name, 0o1777)
        os.chmod(place, 0o777)
        with _as_another_user():
            for number in ("1", "2"):
                write_whole(str(place), _saved(number))
                assert _files(Path(name)) == {f"model/{_PB}", f"model/variables/variables.{number}"}
        assert place.stat().st_uid == 0


def check_an_old_one_that_cannot_be_removed(rank: int, size: int) -> None:
    """As on NFS, where it is read at this moment. Until 2026-11 the new one was removed, too."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "model"
        busy = OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        for number in ("1", "2"):
            with (
                mock.patch.object(files, "_libc", object()),  # has no renameat2
                mock.patch.object(os, "rmdir", side_effect=busy),
            ):
                write_whole(str(place), _saved(number))
            assert _files(place) == {_PB, f"variables/variables.{number}"}
        write_whole(str(place), _saved("3"))
        assert _files(Path(name)) == {f"model/{_PB}", "model/variables/variables.3"}
        assert os.listdir(name) == ["model"]


def check_writers_by_two_names_have_one_lock(rank: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        place, link = Path(name) / "model", Path(name) / "latest"
        place.mkdir()
        (place / "train.py").touch()
        link.symlink_to("model")

        def write(path: str) -> None:
            assert Path(path).name == "latest"
            text = raised(BlockingIOError, write_whole, str(place), _saved("other"))
            assert f"{place} is being written by another process" in text
            _saved("1")(path)

        write_whole(str(link), write)
        assert _files(place) == {"train.py", _PB, "variables/variables.1"}
        assert os.readlink(link) == "model"


def check_texts_of_the_system_name_the_path_of_the_user(rank: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "model"

        def fail_as_tensorflow(path: str) -> None:
            raise tf.errors.UnknownError(None, None, f"{path}/assets; a planted error")

        def fail_as_the_system(path: str) -> None:
            raise OSError(errno.EIO, f"unable to open {path}/assets")

        for fail in (fail_as_tensorflow, fail_as_the_system):
            text = raised(OSError, write_whole, str(place), fail)
            assert f"{place}/assets" in text
            assert ".smp-tmp" not in text


@contextmanager
def _bound(folder: Path, place: Path) -> Iterator[None]:
    """A folder is mounted at a place, too."""
    folder.mkdir(parents=True)
    place.mkdir(parents=True)
    subprocess.run(["mount", "--bind", folder, place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def check_folders_that_are_mounted(rank: int, size: int) -> None:
    """Until 2026-11 an export removed what it was to replace, and what a disk below it held."""
    disk = Path(os.environ["TEST_DISK"])
    place, around = disk / "model", disk / "around it"
    logs, code = around / "logs of us", around / "code"
    with (
        _bound(disk / "one", place),
        _bound(disk / "two", logs),
        _bound(disk / "three", code),
    ):
        for each in (place, logs, code):
            (each / "mine").touch()
        subprocess.run(["mount", "-o", "remount,bind,ro", code], check=True)
        for number in ("1", "2"):
            for folder in (place, around):
                write_whole(str(folder), _saved(number))
                assert (folder / "saved_model.pb").read_text() == number
                assert os.listdir(folder / "variables") == [f"variables.{number}"]
        with _bound(disk / "four", around / "variables" / "mounted"):
            text = raised(OSError, write_whole, str(around), _saved("3"))
            assert "mounted is a mounted disk" in text
            assert (around / "saved_model.pb").read_text() == "2"
            assert (around / "variables" / "variables.2").exists()
        shutil.rmtree(disk / "four")
        assert _files(disk / "one") == {"mine", "saved_model.pb", "variables/variables.2"}
        assert _files(disk / "two") == _files(disk / "three") == {"mine"}
        assert _files(logs) == _files(code) == {"mine"}
        names = {"model", "around it", "one", "two", "three"}
        assert {each.name for each in disk.iterdir()} == names


def check_an_interrupt_while_it_is_cleaned_up(rank: int, size: int) -> None:
    """Until 2026-11 the lock stayed: nothing could be written there any more."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "model"
        for number in ("1", "2"):
            with mock.patch.object(shutil, "rmtree", side_effect=KeyboardInterrupt("planted")):
                raised(KeyboardInterrupt, write_whole, str(place), _saved(number))
            assert (place / "saved_model.pb").read_text() == number
        write_whole(str(place), _saved("3"))
        assert os.listdir(name) == ["model"]


# ---- the n-th call of the operating system fails -------------------------------------------------

_CALLS = ("link", "listdir", "mkdir", "open", "fsync", "rename", "replace", "rmdir", "unlink")
_EVERY = int(os.environ.get("TEST_EVERY", "7"))


class _Failing:
    """Its n-th call of `_CALLS` fails.

    Attributes:
        has_failed: it has come to that.
    """

    def __init__(self, number: int, error: BaseException) -> None:
        self.has_failed = False
        self._left = number
        self._error = error

    @contextmanager
    def calls(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in _CALLS:
                stack.enter_context(mock.patch.object(os, name, self._of(getattr(os, name))))
            yield

    def _of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.has_failed = True
                raise self._error
            return function(*args, **kwargs)

        return call


def check_a_call_that_fails(rank: int, size: int) -> None:
    """At folders of TEST_DISK: one is exchanged, one holds what is of others, one is mounted."""
    disk = Path(os.environ["TEST_DISK"])
    with _bound(disk / "bound", disk / "mounted"):
        for place in (disk / "mounted", disk / "shared", disk / "model"):
            for error in (
                OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
                KeyboardInterrupt("planted"),
            ):
                number = 1
                while _fails_at(number, error, place):
                    number += _EVERY
                assert number > 10
                shutil.rmtree(place, ignore_errors=True)


def _fails_at(number: int, error: BaseException, place: Path) -> bool:
    """Whether it came to the n-th call; what was there is there, or what was written."""
    of_others = set() if place.name == "model" else {"train.py", "code/deep/run.py"}
    for name in of_others:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("mine")
    write_whole(str(place), _saved("1"))
    failing = _Failing(number, error)
    text = ""
    with failing.calls():
        try:
            write_whole(str(place), _saved("2"))
        except (OSError, KeyboardInterrupt) as found:
            text = str(found)
    what = (place.name, number, text)
    if (place / "saved_model.pb").exists():
        now = (place / "saved_model.pb").read_text()
        assert os.listdir(place / "variables") == [f"variables.{now}"], what
        assert now == "1" if "untouched" in text else True, what
    else:
        assert of_others, what
        assert not isinstance(error, OSError) or "partly gone" in text, what
    if text and isinstance(error, OSError):
        assert str(place) in text, what
        assert os.strerror(errno.ENOSPC) in text, what
        assert "[(" not in text, what
    write_whole(str(place), _saved("3"))
    assert _files(place) == of_others | {"saved_model.pb", "variables/variables.3"}, what
    assert not list(place.glob(".*")), what
    assert not list(place.parent.glob(".*")), what
    return failing.has_failed
