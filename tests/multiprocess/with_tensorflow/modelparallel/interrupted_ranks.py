# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank is interrupted around what all ranks do; and what a file system may do to a save.

Used by `test_interrupted.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf
from machine_speed import soon_s

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.dataparallel.exceptions import SMDDPPeerLost
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.tensorflow.checkpoints import files, keras_methods, saving
from smdistributed.modelparallel.tensorflow.checkpoints.contents import Contents
from smdistributed.modelparallel.tensorflow.checkpoints.manager import CheckpointManager
from smdistributed.modelparallel.tensorflow.reporting import report
from smdistributed.modelparallel.tensorflow.step import pipeline
from tests.multiprocess.with_tensorflow.modelparallel.kept import shared_folder, training
from tests.multiprocess.with_tensorflow.modelparallel.plain_process import X
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

VICTIM = 1
SOON_S = soon_s()


def interrupted(where: Any, name: str, call: Callable[[], Any]) -> None:
    """A call fails on all ranks, soon, where the victim is interrupted in a function."""
    begin = time.monotonic()
    if smp.rank() == VICTIM:
        with mock.patch.object(where, name, side_effect=KeyboardInterrupt("planted")):
            assert raised(KeyboardInterrupt, call) == "planted"
    else:
        text = raised((StepAborted, SMDDPPeerLost), call)
        assert "KeyboardInterrupt: planted" in text, text
        assert f"rank {VICTIM} (" in text, text
    assert time.monotonic() - begin < SOON_S


def check_an_interrupt_outside_of_the_driver_is_told(rank: int, size: int) -> None:
    with training(shared_folder("interrupted-steps"), size) as kept:
        kept.steps(1)
        for _ in range(2):
            kept.predict(X)
        for name in ("_checksum", "mark_of"):  # in the first three calls, and later
            interrupted(pipeline, name, lambda: kept.predict(X))
            for _ in range(2):
                kept.predict(X)
        with smp.recording():
            kept.steps(2)
        interrupted(report._Recording, "record", smp.report)
        assert str(smp.report())


def check_an_interrupt_in_a_save_ends_it_on_all_ranks(rank: int, size: int) -> None:
    folder = shared_folder("interrupted-saves")
    with training(folder, size) as kept:
        kept.steps(1)
        kept.manager.save()
        # Before the others can know that this rank saves, too: the next save is as if nothing was.
        interrupted(CheckpointManager, "_is_skipped", kept.manager.save)
        kept.manager.save()
        # Where all tell each other how it went.
        interrupted(Contents, "survey", kept.manager.save)
        kept.manager.save()
        # Then the others wait for values: their group ends, and steps go on.
        interrupted(saving, "merge_surveys", kept.manager.save)
        kept.steps(1)
        text = raised(SMDDPPeerLost, kept.manager.save)
        assert f"manager.save() ended on rank {VICTIM}: KeyboardInterrupt: planted" in text, text
        assert kept.manager.latest_checkpoint == str(folder / "ckpt-3")
        assert int(kept.checkpoint.save_counter) == 3
        assert not list(folder.glob(".*"))
    with training(folder, size) as kept:
        kept.manager.restore()
        kept.steps(1)
        kept.manager.save()


def check_what_one_rank_alone_lacks_ends_a_save_on_all(rank: int, size: int) -> None:
    """Until 2026-11 the others waited for its values, or it for theirs, until the timeout."""
    folder = shared_folder("lacking")
    folder.mkdir(parents=True, exist_ok=True)
    for where, name, method in (
        (saving, "value_of", "manager.save()"),
        (keras_methods, "send_value", "model.get_weights()"),
        (keras_methods, "receive_value", "model.load_weights()"),
    ):
        with training(folder, size) as kept:
            kept.steps(1)
            path = str(folder / "kept.weights.h5")
            kept.model.save_weights(path)
            calls: dict[str, Callable[[], Any]] = {
                "manager.save()": kept.manager.save,
                "model.get_weights()": kept.model.get_weights,
                "model.load_weights()": lambda path=path, kept=kept: kept.model.load_weights(path),
            }
            begin = time.monotonic()
            with contextlib.ExitStack() as stack:
                if rank == VICTIM:
                    lacking = MemoryError("planted")
                    stack.enter_context(mock.patch.object(where, name, side_effect=lacking))
                text = raised((MemoryError, SMDDPPeerLost), calls[method])
            assert time.monotonic() - begin < SOON_S
            if rank != VICTIM:
                assert f"{method} ended on rank {VICTIM}: " in text, text
                assert "MemoryError: planted" in text, text
            kept.steps(1)


def check_an_interrupt_when_all_is_written_leaves_the_folder_usable(rank: int, size: int) -> None:
    """It was taken for that of another job."""
    write_state = files.write_state

    def interrupted_late(*arguments: Any) -> None:
        write_state(*arguments)
        raise KeyboardInterrupt("planted")

    with training(shared_folder("interrupted-late"), size) as kept:
        kept.steps(1)
        kept.manager.save()
        kept.steps(1)
        with mock.patch.object(files, "write_state", interrupted_late):
            raised((KeyboardInterrupt, StepAborted), kept.manager.save)
        kept.manager.save()


def check_a_copy_that_is_restored_may_be_saved_to(rank: int, size: int) -> None:
    """As by a script that trains for one fold after the other, in one process."""
    folder = shared_folder("copied")
    begun = folder.with_name("copied-from")
    with training(folder, size) as kept:
        kept.steps(1)
        smp.CheckpointManager(kept.checkpoint, begun).save(checkpoint_number=5)
        kept.manager.save()
        if rank == 0:
            shutil.rmtree(folder)
            shutil.copytree(begun, folder)
        smp.barrier()
        next_one = smp.CheckpointManager(kept.checkpoint, folder)
        assert next_one.restore() == str(folder / "ckpt-5")
        next_one.save(checkpoint_number=6)
        assert tf.train.latest_checkpoint(str(folder)) == str(folder / "ckpt-6")


# ---- files, of one process ----------------------------------------------------------------------


def _directory_with(text: str) -> Callable[[str], None]:
    def write(path: str) -> None:
        os.mkdir(path)
        Path(path, "value").write_text(text)

    return write


def _exchanges_nothing(*_: Any) -> int:
    ctypes.set_errno(errno.EINVAL)
    return -1


def check_a_directory_is_replaced_whole_or_not_at_all(rank: int, size: int) -> None:
    folder = shared_folder(f"replaced-{rank}")
    folder.mkdir(parents=True)
    place = folder / "served"
    cannot_exchange = mock.patch.object(files, "_libc")
    for supported in (True, False):
        with contextlib.nullcontext() if supported else cannot_exchange as libc:
            if libc is not None:
                libc.renameat2 = _exchanges_nothing
            files.write_whole(str(place), _directory_with("first"))
            files.write_whole(str(place), _directory_with("second"))
            assert (place / "value").read_text() == "second"
            for error in (KeyboardInterrupt("planted"), OSError(errno.ESTALE, "stale")):
                for moment in range(1, 3):
                    _fails(error, moment, place)
                    assert (place / "value").read_text() == "second", (supported, error, moment)
                    assert os.listdir(folder) == ["served"]
            shutil.rmtree(place)


def _fails(error: BaseException, moment: int, place: Path) -> None:
    """A write, where the renaming that is due at a moment fails, if there is such a one."""
    replace = os.replace
    count = 0

    def failing(one: str, other: str) -> None:
        nonlocal count
        count += 1
        if count == moment:
            raise error
        replace(one, other)

    def write(path: str) -> None:
        _directory_with("third")(path)
        if not isinstance(files._libc, mock.Mock):
            raise error

    with mock.patch.object(files.os, "replace", failing):
        raised(type(error), files.write_whole, str(place), write)


def check_of_two_writers_one_is_told(rank: int, size: int) -> None:
    """However close they come: each has passed what went before when the other one writes."""
    folder = shared_folder(f"writers-{rank}")
    folder.mkdir(parents=True)
    path = folder / "served"

    def write(hidden: str) -> None:
        text = raised(OSError, files.write_whole, str(path), _directory_with("other"))
        assert text.count("is being written by another process") == 1, text
        assert "could not be written" not in text, text
        _directory_with("one")(hidden)

    files.write_whole(str(path), write)
    assert (path / "value").read_text() == "one"
    # The other one has ended between the making and the locking of the directory.
    lock = files._lock
    rounds = []

    def late(descriptor: int, of: str) -> None:
        rounds.append(of)
        if len(rounds) == 1:
            files.write_whole(str(path), _directory_with("other"))
        lock(descriptor, of)

    with mock.patch.object(files, "_lock", late):
        files.write_whole(str(path), _directory_with("last"))
    assert len(rounds) == 3  # it has looked again
    assert (path / "value").read_text() == "last"
    assert os.listdir(folder) == ["served"]


def check_file_systems_without_locks_are_written_to(rank: int, size: int) -> None:
    folder = shared_folder(f"no-locks-{rank}")
    folder.mkdir(parents=True)
    left = folder / ".served.smp-tmp"
    for number in (errno.ENOLCK, errno.ENOTSUP, errno.EBADF):
        left.mkdir()
        (left / "below").mkdir()
        (left / "half").write_text("of a writer that was killed")
        with mock.patch.object(files.fcntl, "flock", side_effect=OSError(number, "no locks")):
            files.write_whole(str(folder / "served"), _directory_with(str(number)))
        assert (folder / "served" / "value").read_text() == str(number)
        assert os.listdir(folder) == ["served"]


def check_what_a_link_leads_to_is_left_alone(rank: int, size: int) -> None:
    folder = shared_folder(f"links-{rank}")
    precious = folder / "elsewhere" / "precious"
    precious.parent.mkdir(parents=True)
    precious.touch()
    (folder / ".served.smp-tmp").symlink_to(precious.parent)
    text = raised(OSError, files.write_whole, str(folder / "served"), _directory_with("x"))
    assert "served could not be written: " in text, text
    assert precious.exists()
