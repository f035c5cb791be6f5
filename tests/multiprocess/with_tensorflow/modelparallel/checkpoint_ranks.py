# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_checkpoints.py run."""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import functools
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.exceptions import ModelNotPartitionedError
from smdistributed.modelparallel.tensorflow.checkpoints import files, restoring
from smdistributed.modelparallel.tensorflow.checkpoints.together import CheckpointError
from smdistributed.modelparallel.tensorflow.checkpoints.values import receive_value, send_value
from tests.multiprocess.with_tensorflow.modelparallel import plain_process
from tests.multiprocess.with_tensorflow.modelparallel.kept import (
    Training,
    assert_same,
    content,
    plain_state,
    shared_folder,
    training,
)
from tests.multiprocess.with_tensorflow.modelparallel.plain_process import (
    BATCHES,
    LEGACY,
    OPTIMIZERS,
    X,
    Y,
    plain_model,
    variables_of,
)
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]


def _kept() -> str:
    """Where `check_a_run_goes_on_bitwise` has left a checkpoint at step 5."""
    return str(shared_folder("adam") / "ckpt-1")


def check_a_run_goes_on_bitwise(rank: int, size: int) -> None:
    """Saved at step 5; with as many partitions, restored before and after the first step."""
    folder = shared_folder("adam")
    with training(folder, size) as whole:
        whole.steps(5)
        prefix = whole.manager.save()
        assert prefix == str(folder / "ckpt-1") == whole.manager.latest_checkpoint
        assert {each.name for each in folder.iterdir()} == {
            "checkpoint",
            "ckpt-1.index",
            "ckpt-1.data-00000-of-00001",
        }
        losses, values = whole.steps(3), whole.values()
    for is_late in (False, True):
        with training(folder, size) as again:
            if is_late:
                again.steps(1)
            assert again.manager.restore() == prefix
            assert int(again.counter) == int(again.optimizer.iterations) == 5
            assert again.steps(3) == losses
            assert_same(again.values(), values)


def check_plain_tensorflow_reads_and_writes_the_same(rank: int, size: int) -> None:
    for name in OPTIMIZERS if "ALL_OPTIMIZERS" in os.environ else ["adam"]:
        folder = shared_folder(name)
        if not (folder / "ckpt-1.index").exists():
            with training(folder, size, name) as whole:
                whole.steps(2)
                whole.manager.save()
        if rank == 0:
            prefix = str(folder / "ckpt-1")
            assert_same(content(prefix), plain_state(prefix, name))
        if name != "adam":
            with training(folder, size, name) as again:
                again.manager.restore()
                again.steps(1)


def check_other_partitions_take_it_up(rank: int, size: int) -> None:
    """A checkpoint of two partitions, with one and replicas, and with as many as ranks."""
    for partitions in (1, size):
        with training(shared_folder("adam"), partitions) as again:
            again.manager.restore()
            again.predict(X)
            folder = shared_folder(f"of {partitions} with {size}")
            prefix = smp.CheckpointManager(again.checkpoint, folder).save()
            assert prefix is not None
            assert_same(content(prefix), content(_kept()))
            values = again.values()
            losses = again.steps(3)
        if "ALL_OPTIMIZERS" in os.environ:
            with training(folder, partitions) as assigned:
                assigned.steps(1)
                for each, value in zip(assigned.kept(), values.values(), strict=True):
                    each.assign(value)
                assert assigned.steps(3) == losses


def check_a_host_that_sees_no_files_is_sent_its_part(rank: int, size: int) -> None:
    folder = shared_folder("adam")
    with training(folder if rank == 0 else folder / "empty", size) as seeing:
        seeing.manager.restore()
        losses, values = seeing.steps(1), seeing.values()
    unseen = mock.patch.object(restoring, "digest_of", return_value=None)
    with training(folder if rank == 0 else folder / "empty", size) as blind:
        if rank > 0:
            unseen.start()
        try:
            assert blind.manager.restore() == _kept()
            assert blind.steps(1) == losses
        finally:
            mock.patch.stopall()
        assert_same(blind.values(), values)
        with unseen:
            text = raised(FileNotFoundError, functools.partial(blind.manager.restore, _kept()))
        assert "is on no rank" in text, text


def check_values_travel_as_they_are(rank: int, size: int) -> None:
    """Of all types; and where the receiver has them takes their memory once."""
    numbers = [tf.constant([[1.5, -2.0, 0.0]], each) for each in (tf.float32, tf.bfloat16)]
    numbers += [tf.constant([True, False]), tf.constant([["a", ""]]), tf.constant(3, tf.int64)]
    numbers += [tf.zeros([2, 0]), tf.cast([1.0, 2.0], tf.dtypes.experimental.float8_e5m2)]
    large = 64 << 20
    smp.init({"partitions": size})
    for value in [*numbers, tf.fill([large // 4], 2.5)]:
        if rank == 0:
            send_value(value, 1)
            continue
        came = receive_value(0)
        assert came.dtype == value.dtype
        assert came.shape == value.shape
        assert np.array_equal(came.numpy(), value.numpy())
        variable = tf.Variable(came)
        if value.dtype == tf.float32:
            variable.assign_add(tf.ones_like(came))
            assert np.array_equal(came.numpy(), value.numpy()), "it was changed in place"
    if rank == 0:
        send_value(value, 1)
    else:
        del came, variable
        Path("/proc/self/clear_refs").write_text("5")
        before = memory_of("VmRSS")
        came = receive_value(0)
        assert memory_of("VmHWM") - before < 1.2 * large
        assert float(came[-1]) == 2.5
    smp.reset()


def memory_of(name: str) -> int:
    """Of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def check_old_ones_go_and_numbers_may_return(rank: int, size: int) -> None:
    folder = shared_folder("numbers")
    with training(folder, size) as kept:
        assert kept.manager.restore() is None  # there is none
        text = raised(ModelNotPartitionedError, kept.manager.save)
        assert "before the first step" in text, text
        kept.steps(1)
        paths = [kept.manager.save() for _ in range(3)]
        assert kept.manager.checkpoints == paths[1:]
        assert kept.manager.save(checkpoint_number=2) == paths[1]
        assert kept.manager.checkpoints == [paths[2], paths[1]]
        state = tf.train.get_checkpoint_state(str(folder))
        assert list(state.all_model_checkpoint_paths) == [paths[2], paths[1]]
        assert sorted(each.name for each in folder.glob("*.index")) == [
            "ckpt-2.index",
            "ckpt-3.index",
        ]
        every_other = smp.CheckpointManager(
            kept.checkpoint, folder, step_counter=kept.counter, checkpoint_interval=2
        )
        assert every_other.checkpoints == [paths[2], paths[1]]
        assert every_other.save() is not None
        assert every_other.save() is None
        # Until 2026-11 its file `checkpoint` led elsewhere: a run that began again found none.
        relative = os.path.relpath(folder / "relative")
        path = smp.CheckpointManager(kept.checkpoint, relative).save()
        assert tf.train.latest_checkpoint(relative) == path
        assert smp.CheckpointManager(kept.checkpoint, relative).restore() == path
        plain = tf.train.CheckpointManager(kept.checkpoint, str(folder), max_to_keep=None)
        before = kept.values()
        latest = plain.save()
        kept.steps(1)
        assert plain.restore_or_initialize() == plain.latest_checkpoint == latest
        assert_same(kept.values(), before)


def check_numbers_go_on_after_a_restore(rank: int, size: int) -> None:
    """In a process that has not saved yet, as in TensorFlow; else it replaced what it came from."""
    folder = shared_folder("counted")
    with training(folder, size) as kept:
        kept.steps(1)
        paths = [kept.manager.save() for _ in range(2)]
    for number, is_late in ((3, False), (4, True)):
        with training(folder, size) as again:
            if is_late:
                again.steps(1)
            raised(FileNotFoundError, again.manager.restore, "")  # which is not the latest one
            assert again.manager.restore() == paths[-1]
            again.steps(1)
            paths.append(again.manager.save())
            assert paths[-1] == str(folder / f"ckpt-{number}"), paths
            assert again.manager.checkpoints == paths[-2:]


def check_two_optimizers_take_their_own_slots(rank: int, size: int) -> None:
    """Each over some of the variables, in each partition; restored before the first step."""
    make = tf.keras.optimizers
    kinds = [(make.Adam, make.Adam), (tf.keras.mixed_precision.LossScaleOptimizer, make.SGD)]
    if LEGACY:
        kinds = [(make.Adam, make.Adam), (make.legacy.Adam, make.legacy.Adam)]
    for number, (one, other) in enumerate(kinds if "ALL_OPTIMIZERS" in os.environ else kinds[:1]):
        folder = shared_folder(f"two optimizers {number}")
        with training(folder, size) as whole:
            steps = _two_optimizers(whole, _made(one), _made(other))
            steps(2)
            whole.manager.save()
            losses = steps(2)
        with training(folder, size) as again:
            steps = _two_optimizers(again, _made(one), _made(other))
            again.manager.restore()
            assert steps(2) == losses


def _made(kind: Any) -> Any:
    if kind.__name__ == "SGD":
        return kind(0.1, momentum=0.9)
    return kind(tf.keras.optimizers.Adam(0.02)) if "LossScale" in kind.__name__ else kind(0.02)


def _two_optimizers(kept: Any, one: Any, other: Any) -> Callable[[int], list[float]]:
    model = kept.model
    kept.checkpoint = tf.train.Checkpoint(model=model, optimizers=[one, other])
    kept.manager = smp.CheckpointManager(kept.checkpoint, kept.manager.directory)

    def divided() -> tuple[list[Any], list[Any]]:
        layers = (model.norm, model.second)
        inner = {id(each) for layer in layers for each in layer.trainable_variables}
        parts: tuple[list[Any], list[Any]] = ([], [])
        for each in model.trainable_variables:
            parts[id(each) in inner].append(each)
        return parts

    @smp.step
    def gradients(x: Any, y: Any) -> Any:
        logits = model(x, training=True)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, logits)
        return loss, [kept.optimizer.get_gradients(loss, part) for part in divided()]

    def step() -> float:
        loss, found = gradients(X, Y)
        for optimizer, of_part, part in zip((one, other), found, divided(), strict=True):
            optimizer.apply_gradients(
                zip([each.accumulate() for each in of_part], part, strict=True)
            )
        return float(loss.reduce_mean())

    return lambda count: [step() for _ in range(count)]


def check_an_iterator_goes_on(rank: int, size: int) -> None:
    smp.init({"partitions": size})
    batches = iter(tf.data.Dataset.range(9))
    folder = shared_folder("iterator")
    manager = smp.CheckpointManager(tf.train.Checkpoint(batches=batches), folder)
    assert int(next(batches)) == 0
    path = manager.save()
    assert [int(next(batches)) for _ in range(3)] == [1, 2, 3]
    manager.restore(path)
    assert int(next(batches)) == 1


def check_what_does_not_fit_is_named_and_nothing_changes(rank: int, size: int) -> None:
    folder, prefix = shared_folder("adam"), _kept()
    damaged = shared_folder("damaged")
    if rank == 0:
        shutil.copytree(folder, damaged)
        data = damaged / "ckpt-1.data-00000-of-00001"
        data.write_bytes(data.read_bytes()[:-200])
    kernel = "kernel" if LEGACY else "_kernel"
    for of_model, optimizer, words in (
        ({"width": 16}, "adam", f"model/first/{kernel}/.ATTRIBUTES/VARIABLE_VALUE has the shape"),
        ({"more": True}, "adam", f"does not have model/more/{kernel}"),
        ({}, "momentum", "optimizer/_variables/"),
    ):
        with training(folder, size, optimizer, **of_model) as other:
            other.steps(1)
            before = other.values()
            text = raised(ValueError, functools.partial(other.manager.restore, prefix))
            assert words in text, text
            assert "Nothing was changed" in text, text
            assert_same(other.values(), before)
    with training(folder, size) as same:
        same.steps(1)
        before = same.values()
        text = raised(ValueError, lambda: same.manager.restore(str(damaged / "ckpt-1")))
        assert "of the checkpoint" in text, text
        assert "damaged/ckpt-1 cannot be read" in text, text
        text = raised(FileNotFoundError, lambda: same.manager.restore(str(folder / "ckpt-9")))
        assert "ckpt-9.index is on no rank" in text, text
        text = raised(RuntimeError, lambda: same.checkpoint.restore(prefix))
        assert "smp.CheckpointManager(checkpoint, directory).restore(path)" in text, text
        one_for_each = prefix if rank == 0 else prefix + "0"
        text = raised(ValueError, lambda: same.manager.restore(one_for_each))
        assert "expected the same path on all ranks" in text, text
        no_slots = str(shared_folder("no-slots"))
        if rank == 0:
            counter = tf.Variable(0, dtype=tf.int64)
            tf.train.Checkpoint(model=plain_model(), counter=counter).write(no_slots)
        text = raised(ValueError, lambda: same.manager.restore(no_slots))
        assert "does not have optimizer/" in text, text
        assert_same(same.values(), before)
    with training(folder, size, more=True) as deferred:
        deferred.manager.restore(prefix)
        assert "model/more" in raised(ValueError, lambda: deferred.steps(1))
        # No step runs without what was to be restored.
        assert "model/more" in raised(ValueError, lambda: deferred.predict(X))


def check_what_the_other_keras_has_written_is_named(rank: int, size: int) -> None:
    """Before and after the first step; run when ranks of both have left their files."""
    other = "0" if LEGACY else "1"
    foreign = str(shared_folder("adam").parents[1] / other / "adam" / "ckpt-1")
    expected = f"was written with {'Keras 3' if LEGACY else 'tf-keras'}"
    with training(shared_folder("empty"), size) as here:
        here.manager.restore(foreign)
        text = raised(ValueError, lambda: here.steps(1))
        assert expected in text, text
    with training(shared_folder("empty"), size) as here:
        here.steps(1)
        before = here.values()
        text = raised(ValueError, lambda: here.manager.restore(foreign))
        assert expected in text, text
        assert f"Set TF_USE_LEGACY_KERAS={other} before TensorFlow is imported" in text, text
        assert_same(here.values(), before)
        assert int(here.counter) == 1


def check_layers_in_lists_are_not_left_out(rank: int, size: int) -> None:
    """Keras 3 has no names for them there, but through an optimizer. A seed is no weight."""
    folder = shared_folder("listed")
    path = str(folder / "all.weights.h5")
    with training(folder, size, listed=True) as one:
        one.steps(1)
        assert one.manager.save() is not None
        if LEGACY:
            return
        alone = smp.CheckpointManager(tf.train.Checkpoint(model=one.model), folder / "alone")
        for call in (alone.save, functools.partial(alone.restore, _kept())):
            text = raised(ValueError, call)
            assert "does not reach 4 variables of the model, " in text, text
            assert "setattr" in text, text
        assert not (folder / "alone").exists()
        one.model.save_weights(path)
        weights = one.model.get_weights()
        one.steps(1)
        one.model.load_weights(path)
        for each, value in zip(one.model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(each, value)


def check_a_disk_that_takes_nothing_is_named(rank: int, size: int) -> None:
    folder = shared_folder("full")
    with training(folder, size) as kept:
        kept.steps(1)
        first = kept.manager.save()
        with _disk_that_takes_nothing():
            text = raised(OSError, kept.manager.save)
        assert "ckpt-2 could not be written: File too large" in text, text
        assert "bytes are free" in text, text
        assert tf.train.latest_checkpoint(str(folder)) == first
        assert sorted(os.listdir(folder)) == [
            "checkpoint",
            "ckpt-1.data-00000-of-00001",
            "ckpt-1.index",
        ]
        assert kept.manager.save() == str(folder / "ckpt-2")
        blocked = smp.CheckpointManager(kept.checkpoint, folder / "checkpoint" / "below")
        text = raised(OSError, blocked.save)
        assert "checkpoint/below cannot be made" in text, text
        assert "smddprun --paths" in text, text
        # Where not even root may make a file, or a directory.
        read_only = smp.CheckpointManager(kept.checkpoint, "/sys")
        text = raised(OSError, read_only.save)
        assert "/sys/ckpt-3 could not be written: " in text, text
        assert "Check its permissions and its disk" in text, text
        below = smp.CheckpointManager(kept.checkpoint, "/sys/checkpoints")
        text = raised(OSError, below.save)
        assert "/sys/checkpoints cannot be made: " in text, text
        assert kept.manager.latest_checkpoint == str(folder / "ckpt-2")


def check_two_jobs_in_one_directory_are_named(rank: int, size: int) -> None:
    folder = shared_folder("two-jobs")
    state = folder / "checkpoint"
    with training(folder, size) as kept:
        kept.steps(1)
        first = kept.manager.save()
        second = smp.CheckpointManager(kept.checkpoint, folder, checkpoint_name="best")
        second.save()  # two of one job: as TensorFlow has it
        kept.manager.save()
        if rank == 0:
            ours = state.read_text()
            # Plain TensorFlow, which is no part of this job.
            another = tf.train.CheckpointManager(tf.train.Checkpoint(), folder, max_to_keep=9)
            another.save(checkpoint_number=9)
        smp.barrier()
        before = sorted(os.listdir(folder))
        text = raised(CheckpointError, kept.manager.save)
        assert f"another process saves to {folder}, too: it has written {folder}/ckpt-9" in text
        assert "Give each job a directory of its own" in text, text
        assert sorted(os.listdir(folder)) == before
        smp.barrier()
        if rank == 0:
            state.write_text(ours)
        smp.barrier()
        weights = str(folder / "w.weights.h5")
        for save, path, hidden in (
            (kept.manager.save, first.removesuffix("1") + "4", ".ckpt.smp-tmp"),
            (lambda: kept.model.save_weights(weights), weights, ".w.weights.h5.smp-tmp"),
        ):
            with _locked(folder / hidden) if rank == 0 else contextlib.nullcontext():
                text = raised(OSError, save)
            assert f"{path} is being written by another process" in text, text
            save()
        smp.barrier()
        assert not list(folder.glob(".*"))
        if rank == 0:
            another.save(checkpoint_number=10)
        smp.barrier()
    with training(folder, size) as next_one:
        next_one.steps(1)
        next_one.manager.save()


@contextlib.contextmanager
def _locked(hidden: Path) -> Iterator[None]:
    """As where another process has not written all yet."""
    hidden.mkdir()
    descriptor = os.open(hidden, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
        assert hidden.exists()
    finally:
        os.close(descriptor)


def check_a_full_disk_leaves_what_was_there(rank: int, size: int) -> None:
    """However much of it is left: TEST_FOLDER is a disk of some MiB."""
    folder = shared_folder("small")
    with training(folder, size) as kept:
        kept.steps(1)
        first = kept.manager.save()
        before = kept.values()
        kept.steps(1)

        def require_the_first() -> None:
            assert tf.train.latest_checkpoint(str(folder)) == first
            assert not list(folder.glob(".*"))

        _require_that_it_waits_for_room(kept.manager.save, require_the_first)
        assert kept.manager.latest_checkpoint == str(folder / "ckpt-2")
        values = kept.values()
        for path, expected in ((first, before), (None, values)):
            kept.manager.restore(path)
            assert_same(kept.values(), expected)
        for name in ("one.weights.h5", "whole.keras"):
            path = folder / name
            write = kept.model.save_weights if "weights" in name else kept.model.save
            _require_that_it_waits_for_room(
                functools.partial(write, str(path)), functools.partial(_require_no_file, path)
            )
        kept.model.load_weights(str(folder / "one.weights.h5"))
        assert_same(kept.values(), values)
        _require_that_it_waits_for_room(
            functools.partial(kept.model.save_model, str(folder / "served")),
            functools.partial(_require_no_file, folder / "served"),
        )
        _require_that_all_fail_where_old_ones_stay(kept)


def _require_that_all_fail_where_old_ones_stay(kept: Training) -> None:
    kept.manager.save()  # and the next one is too many
    error = OSError(errno.EROFS, "as of a disk that takes no more")
    removing = mock.patch.object(files, "remove_checkpoint", side_effect=error)
    with removing if smp.rank() == 0 else contextlib.nullcontext():
        assert "takes no more" in raised(OSError, kept.manager.save)
    before = int(kept.checkpoint.save_counter)
    assert smp.allgather(before, smp.WORLD) == [before] * smp.size()
    assert kept.manager.save() == kept.manager.latest_checkpoint


def _require_no_file(path: Path) -> None:
    assert not path.exists()
    assert not list(path.parent.glob(".*"))


def _require_that_it_waits_for_room(write: Callable[[], Any], look: Callable[[], None]) -> None:
    """Fails on all ranks until its disk has enough room, of which there is more each time.

    Args:
        look: at what must be there when it has failed.
    """
    filler = Path(os.environ["TEST_FOLDER"], "filler")
    is_writer = smp.rank() == 0
    if is_writer:
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
    failed = 0
    while (text := _failure_of(write)) is not None:
        assert "could not be written: No space left on device" in text, text
        assert "bytes are free" in text, text
        failed += 1
        if is_writer:
            look()
            os.truncate(filler, filler.stat().st_size - 4096)
    assert failed > 2, failed
    if is_writer:
        filler.unlink()
    smp.barrier()


def _failure_of(write: Callable[[], Any]) -> str | None:
    try:
        write()
    except OSError as error:
        return str(error)
    return None


def check_killed_anywhere_it_leaves_the_one_before(rank: int, size: int) -> None:
    """Also where a checkpoint of the same number is replaced: then one before that is there."""
    folder = shared_folder("killed")
    with training(folder, size) as kept:
        kept.steps(1)
        one, two = kept.manager.save(), kept.manager.save()
        if rank == 0:
            whole = {os.path.basename(each): content(each) for each in (one, two)}
            saved = folder.with_name("saved")
            shutil.copytree(folder, saved)
            left = None
            for listed in ([one], [one, two]):
                seen = folder.with_name(f"seen-{len(listed)}")
                _begin_with(kept.manager, saved, listed)
                last = 0
                for last in _states_while_saving(kept.manager, saved, two, seen):
                    _require_whole(seen / str(last), whole)
                    if list((seen / str(last)).glob(".*/*.index")):
                        left = seen / str(last)
                assert last > 6, last
                assert tf.train.latest_checkpoint(str(folder)) == two
                if "ALL_PLACES" in os.environ:
                    _kill_at_places(kept.manager, saved, listed, two, whole)
            assert left is not None
            shutil.rmtree(folder)
            shutil.copytree(left, folder)  # the next save removes what it has left
        smp.barrier()
        kept.manager.save()
        smp.barrier()
        assert not list(folder.glob(".*"))


def _require_whole(folder: Path, whole: dict[str, Any]) -> None:
    latest = tf.train.latest_checkpoint(str(folder))
    assert latest is not None, folder
    assert_same(content(latest), whole[os.path.basename(latest)])


def _begin_with(manager: Any, saved: Path, listed: list[str]) -> None:
    """Lets the folder of a manager have these checkpoints, and no more."""
    folder = Path(manager.directory)
    shutil.rmtree(folder)
    folder.mkdir()
    for each in saved.iterdir():
        if str(folder / each.stem) in listed:
            shutil.copy(each, folder)
    manager._maybe_delete = collections.OrderedDict.fromkeys(listed, 1.0)
    manager._tell(manager._maybe_delete)


def _states_while_saving(manager: Any, saved: Path, path: str, seen: Path) -> Iterator[int]:
    """Saves; gives numbers of copies of the folder as it was at each line of the library.

    There a process that was killed would have left it so. What would be written is copied.
    """
    folder = Path(manager.directory)
    known: list[Any] = []

    def look() -> None:
        state = sorted(
            (str(each), each.stat().st_ino, each.stat().st_size) for each in folder.rglob("*")
        )
        if not known or state != known[-1]:
            shutil.copytree(folder, seen / str(len(known)))
            known.append(state)

    sys.settrace(lambda frame, event, argument: _lines(frame, look))
    try:
        with mock.patch.object(files.tf.raw_ops, "SaveV2", _copying(saved / Path(path).name)):
            manager._write(path, {})
    finally:
        sys.settrace(None)
    yield from range(len(known))


def _kill_at_places(
    manager: Any, saved: Path, listed: list[str], path: str, whole: dict[str, Any]
) -> None:
    """The same by real kills, at every fourth line."""
    places = 0
    while _killed_at(places, manager, saved, listed, path):
        _require_whole(Path(manager.directory), whole)
        places += 4
    assert places > 80, places


def _killed_at(place: int, manager: Any, saved: Path, listed: list[str], path: str) -> bool:
    """Saves in a process that is killed at a line of the library; whether it was.

    The process is a copy of this one, where TensorFlow has no threads.
    """
    _begin_with(manager, saved, listed)
    child = os.fork()
    if child == 0:
        left = [place]

        def count() -> None:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        sys.settrace(lambda frame, event, argument: _lines(frame, count))
        with mock.patch.object(files.tf.raw_ops, "SaveV2", _copying(saved / Path(path).name)):
            manager._write(path, {})
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _lines(frame: Any, look: Callable[[], None]) -> Any:
    """Calls something at each line of the modules that write."""
    if Path(frame.f_code.co_filename).name not in ("files.py", "atomic_files.py", "manager.py"):
        return None

    def line(frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            look()
        return line

    return line


def _copying(source: Path) -> Any:
    def save(prefix: str, **_: Any) -> None:
        for ending in (".index", ".data-00000-of-00001"):
            shutil.copy(f"{source}{ending}", f"{prefix}{ending}")

    return save


def check_a_rank_that_does_not_save_is_named(rank: int, size: int) -> None:
    with training(shared_folder("alone"), size) as kept:
        kept.steps(1)
        if rank == 0:
            text = raised(Exception, kept.manager.save)
        else:
            text = raised(Exception, lambda: kept.steps(1))
        assert "calls manager.save() (call it on all ranks)" in text, text
        smp.barrier()


def check_weights_are_those_of_the_whole_model(rank: int, size: int) -> None:
    with training(shared_folder("weights"), size) as one:
        text = raised(ModelNotPartitionedError, one.model.get_weights)
        assert "before the first step" in text, text
        one.steps(2)
        weights = one.model.get_weights()
        plain = plain_model()
        assert [each.shape for each in weights] == [each.shape for each in plain.get_weights()]
        plain.set_weights(weights)
        expected = plain(X).numpy()
        one.steps(1)
        assert any((a != b).any() for a, b in zip(one.model.get_weights(), weights, strict=True))
        before = one.values()
        raised(ValueError, lambda: one.model.set_weights([*weights[:-1], weights[0]]))
        assert_same(one.values(), before)
        one.model.set_weights(weights)
        for each, value in zip(one.model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(each, value)
        np.testing.assert_allclose(one.predict(X).concat(), expected, rtol=1e-5)


def check_keras_files_are_whole(rank: int, size: int) -> None:
    folder = shared_folder("files")
    if rank == 0:
        folder.mkdir(parents=True)
    for name in ["one.weights.h5", *(["two.h5", "three"] if LEGACY else [])]:
        path = str(folder / name)
        with training(folder, size) as one:
            one.steps(2)
            one.model.compile(one.optimizer)
            one.model.save_weights(path)
            weights, values = one.model.get_weights(), one.values()
            one.steps(1)
            one.model.load_weights(path)
            for each, value in zip(one.model.get_weights(), weights, strict=True):
                np.testing.assert_array_equal(each, value)
            if name != "two.h5":  # which has no optimizer
                assert_same(one.values(), values)
            if rank == 0:
                plain = plain_model()
                plain.compile(OPTIMIZERS["adam"]())
                plain.optimizer.build(plain.trainable_variables)
                plain.load_weights(path)
                for each, value in zip(plain.get_weights(), weights, strict=True):
                    np.testing.assert_array_equal(each, value)
            raised(Exception, lambda: one.model.load_weights(str(folder / "none.weights.h5")))
            tf.keras.backend.clear_session()


def check_what_is_served_needs_no_library(rank: int, size: int) -> None:
    """Nor does what is kept: a process without it goes on with it; see `plain_process`."""
    folder = shared_folder("served")
    with training(folder / "checkpoints", size) as one:
        one.steps(2)
        one.manager.save()
        for _ in range(2):  # what is there is replaced
            one.model.save_model(folder / "model")
        # Until 2026-11 this wrote into a directory "s3:" of the working directory.
        text = raised(ValueError, one.model.save_model, "s3://bucket/model")
        assert "'s3://bucket/model' is not a path of this host" in text
        if tf.keras.Model.__module__.startswith("tf_keras"):
            text = raised(ValueError, one.model.save_weights, "s3://bucket/weights")
            assert "'s3://bucket/weights' is not a path of this host" in text
        assert not os.path.exists("s3:")
        saved = _values_of_all_ranks(one)
        one.model.compile(one.optimizer, tf.keras.losses.SparseCategoricalCrossentropy(True))
        one.model.save(folder / "whole.keras")
        one.model.save(folder / "folder")
        plain = plain_model()
        plain.set_weights(one.model.get_weights())
        if rank == 0:
            np.savez(folder / "saved.npz", *saved)
            batches = {rows: np.repeat(X[:1], rows, axis=0) for rows in BATCHES}
            for rows, batch in batches.items():
                np.save(folder / f"batch-{rows}.npy", batch)
            command = [sys.executable, plain_process.__file__, str(folder)]
            child = subprocess.run(command, capture_output=True, text=True)
            assert child.returncode == 0, child.stderr[-3000:]
            for rows, batch in batches.items():
                served = np.load(folder / f"served-{rows}.npy")
                np.testing.assert_allclose(served, plain(batch), rtol=1e-5)
        one.model.export(str(folder / "exported"))
        if rank == 0:
            exported = tf.saved_model.load(str(folder / "exported"))
            np.testing.assert_allclose(exported.serve(X[:4]), plain(X[:4]), rtol=1e-5)
        smp.barrier()
        _check_what_is_exported_is_there_whole_or_not_at_all(one, folder)


def _check_what_is_exported_is_there_whole_or_not_at_all(one: Any, folder: Path) -> None:
    exported = folder / "exported"
    before = _bytes_below(exported)
    one.steps(1)
    with _disk_that_takes_nothing():
        text = raised(OSError, one.model.export, str(exported))
    assert "exported could not be written: File too large" in text, text
    assert "bytes are free" in text, text
    assert _bytes_below(exported) == before
    smp.barrier()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        one.model.export(str(exported))
        one.model.export(filepath=folder / "made" / "exported")
    if smp.rank() == 0:
        assert f"Saved artifact at '{exported}'" in printed.getvalue()
        assert _bytes_below(exported) != before
        assert [each for each in os.listdir(folder) if each.startswith(".")] == []
        assert (folder / "made" / "exported" / "saved_model.pb").exists()
    smp.barrier()


def _bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@contextlib.contextmanager
def _disk_that_takes_nothing() -> Iterator[None]:
    """More than some bytes, on any rank."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def _values_of_all_ranks(one: Training) -> list[Any]:
    """Of the weights and the optimizer, in the order of a run in one process.

    Partitions follow each other as layers do; slots are behind what each optimizer has once.
    """
    mine = [np.array(each) for each in variables_of(one.optimizer)]
    of_ranks = smp.allgather(mine, smp.WORLD)
    once = 1 if LEGACY else 2  # iterations, and in Keras 3 the rate
    slots = [each for of_rank in of_ranks for each in of_rank[once:]]
    assert len(mine) < once + len(slots), "all slots are on one rank"
    return [*one.model.get_weights(), *mine[:once], *slots]
