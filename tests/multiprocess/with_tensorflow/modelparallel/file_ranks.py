# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the process of test_files.py runs."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from smdistributed.modelparallel.tensorflow.checkpoints import files
from smdistributed.modelparallel.tensorflow.checkpoints.files import write_whole
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]


def _saved(name: str) -> Any:
    """Writes a directory like a SavedModel."""

    def write(path: str) -> None:
        (Path(path) / "variables").mkdir(parents=True)
        (Path(path) / "saved_model.pb").write_text(name)
        (Path(path) / "variables" / name).touch()

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
        of_model = {"saved_model.pb", f"variables/{number}"}
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
                of_model = {"saved_model.pb", f"variables/{number}"}
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
            of_model = {"model/saved_model.pb", f"model/variables/{number}"}
            assert _files(folder) == of_others | of_model
            assert (place / "saved_model.pb").read_text() == number

        for number in ("1", "2"):
            write_whole(str(place), _saved(number))
            require(number)
        text = raised(ValueError, write_whole, str(place), _with_a_wrong_ending)
        assert text == f"a wrong ending: {place}"  # and not where it is written
        text = raised(NotADirectoryError, write_whole, str(folder / "file"), _saved("3"))
        assert "a file is there" in text
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
                assert (place / "variables" / str(number)).exists()
        finally:
            os.chdir(before)
        own = {"saved_model.pb", "variables"}
        assert {each.name for each in inside.iterdir()} == own
        assert {each.name for each in inside.parent.iterdir()} == own | {"two"}
        assert os.listdir(name) == ["one"]


def check_what_is_of_others_stays_theirs(rank: int, size: int) -> None:
    """Until 2026-11 directories went to whoever wrote, and what cannot be linked was an error."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "model"
        (place / "code").mkdir(parents=True)
        (place / "code" / "train.py").touch()
        if os.geteuid() == 0:
            for each in (place, place / "code"):
                os.chown(each, 12345, 12346)
        expected = [(each.stat().st_uid, each.stat().st_gid) for each in (place, place / "code")]
        for number, error in (("1", None), ("2", PermissionError)):
            with (
                mock.patch("os.link", side_effect=error) if error else contextlib.nullcontext(),
                mock.patch("shutil.copy2", side_effect=error)
                if error
                else contextlib.nullcontext(),
            ):
                write_whole(str(place), _saved(number))
            of_model = {"saved_model.pb", f"variables/{number}"}
            assert _files(place) == {"code/train.py"} | of_model
            found = [(each.stat().st_uid, each.stat().st_gid) for each in (place, place / "code")]
            assert found == expected
        assert os.listdir(name) == ["model"]
