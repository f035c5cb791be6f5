# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_fit_saves.py run: callbacks of Keras that save the model in `fit`.

The reference is plain Keras with the same callbacks, whose files are in another folder.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fit_ranks as fits
import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

LEGACY = tf.keras.Model.__module__.startswith("tf_keras")
FOLDER = Path(os.environ["TEST_FOLDER"], os.environ["TF_USE_LEGACY_KERAS"])
KERAS = tf.keras.callbacks
ROWS = 2 * fits.BATCH  # two batches
ARGUMENTS = {"batch_size": fits.BATCH, "verbose": 0, "shuffle": False}


def _fit(model: Any, epochs: int, *callbacks: Any) -> Any:
    mine = slice(ROWS * smp.dp_rank(), ROWS * (smp.dp_rank() + 1))
    x, y = fits.X[mine], fits.Y[mine]
    return model.fit(
        x, y, epochs=epochs, validation_data=(x, y), callbacks=list(callbacks), **ARGUMENTS
    )


def _saver(path: Path, **arguments: Any) -> Any:
    if "weights" in path.name or arguments.pop("only", False):
        arguments["save_weights_only"] = True
    return KERAS.ModelCheckpoint(str(path), **arguments)


def _savers(folder: Path) -> list[Any]:
    """Of all kinds, each with files of its own."""
    made = [
        _saver(folder / "epochs" / "{epoch:02d}-{val_loss:.2f}.weights.h5"),
        _saver(folder / "best.keras", save_best_only=True),
        _saver(folder / "worst.weights.h5", save_best_only=True, monitor="val_loss", mode="max"),
        _saver(folder / "{epoch}-{batch}.weights.h5", save_freq=3),
    ]
    if LEGACY:
        made += [
            _saver(folder / "checkpoint-{epoch}", only=True),
            _saver(folder / "saved-model"),
            _saver(folder / "old.h5", only=True),
        ]
    return made


def _files(folder: Path) -> list[str]:
    names = (str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
    return sorted(each for each in names if not each.startswith("saved-model/variables"))


def check_files_are_those_of_keras(rank: int, size: int) -> None:
    """Rank 0's folder has what plain Keras writes; the others' are not even made."""
    with fits.models(size) as (model, reference):
        plain, mine = (FOLDER / f"{name}-{rank}" for name in ("plain", "mine"))
        expected, savers = _savers(plain), _savers(mine)
        history = _fit(reference, 4, *expected).history
        np.savez(FOLDER / f"history-{rank}.npz", **history)
        np.savez(FOLDER / f"weights-{rank}.npz", *reference.get_weights())
        _fit(model, 4, *savers)
        for each in smp.allgather([each.best for each in savers], smp.WORLD):
            assert each == [each.best for each in savers], each
        for one, other in zip(savers, expected, strict=True):
            assert (one.best is None) == (other.best is None)
            if one.best is not None:
                np.testing.assert_allclose(one.best, other.best, 1e-5)
        if rank > 0:
            assert not mine.exists()
        else:
            assert _files(mine) == _files(plain)
            for name in _files(mine):
                if name.endswith(".weights.h5"):
                    _require_same_weights(reference, plain / name, mine / name)
            if LEGACY:
                _require_same_weights(reference, plain / "checkpoint-2", mine / "checkpoint-2")
                one, other = (
                    tf.saved_model.load(str(each / "saved-model")) for each in (plain, mine)
                )
                for a, b in zip(one.variables, other.variables, strict=True):
                    np.testing.assert_allclose(a, b, 1e-5, 1e-6)
        smp.barrier()


def _require_same_weights(model: Any, one: Path, other: Path) -> None:
    values = []
    for each in (one, other):
        model.load_weights(str(each))
        slots = model.optimizer.variables
        slots = slots() if callable(slots) else slots
        values.append([np.array(each) for each in [*model.variables, *slots]])
    for a, b in zip(*values, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6, err_msg=str(other))


class _Calling(KERAS.Callback):  # type: ignore[misc,name-defined]
    """A user's own."""

    def __init__(self, call: Callable[[Any], None]) -> None:
        super().__init__()
        self.call = call

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """At the end of the second epoch."""
        if epoch == 1:
            self.call(self.model)


class _OnRank0(KERAS.ModelCheckpoint):  # type: ignore[misc,name-defined]
    def on_epoch_end(self, *args: Any) -> None:
        if smp.rank() == 0:
            super().on_epoch_end(*args)


class _OnAll(KERAS.ModelCheckpoint):  # type: ignore[misc,name-defined]
    told = 0

    def on_epoch_end(self, *args: Any) -> None:
        super().on_epoch_end(*args)
        self.told += 1


def check_what_fails_does_so_on_all_ranks(rank: int, size: int) -> None:
    folder = FOLDER / "full"
    with fits.models(size) as (model, _):
        for name in ("one.weights.h5", "two.keras"):
            path = folder / name
            saver = _saver(path)
            _fit(model, 1, saver)
            before = path.read_bytes() if rank == 0 else b""
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)
            if rank == 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
            try:
                text = raised(OSError, _fit, model, 1, saver)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            assert f"{name} could not be written: File too large" in text, text
            assert "bytes are free" in text, text
            if rank == 0:
                assert path.read_bytes() == before
            _fit(model, 1, saver)
        if rank == 0:
            assert _files(folder) == ["one.weights.h5", "two.keras"]
            assert path.read_bytes() != before
        smp.barrier()
        raised(OSError, _fit, model, 1, _saver(path / "below.weights.h5"))
        _require_that_one_rank_alone_is_named(rank, model)


def _require_that_one_rank_alone_is_named(rank: int, model: Any) -> None:
    path = str(FOLDER / "alone.weights.h5")

    def save(model: Any) -> None:
        if rank == 0:
            model.save_weights(path)

    text = raised(Exception, _fit, model, 3, _Calling(save))
    assert "calls model.save_weights() (call it on all ranks)" in text, text
    last = raised(Exception, _fit, model, 2, _Calling(save))  # no step comes behind it
    assert "calls model.save_weights() (call it on all ranks)" in last, last
    text = raised(Exception, _fit, model, 2, _OnRank0(path, save_weights_only=True))
    assert "calls _OnRank0.on_epoch_end() (call it on all ranks)" in text, text
    saver = _saver(Path(path))
    text = raised(Exception, _fit, model, 2, *([saver] if rank == 0 else []))
    assert "some ranks have 1 callbacks ModelCheckpoint and others 0" in text, text
    assert not Path(path).exists()
    saver = _OnAll(path, save_weights_only=True)
    _fit(model, 2, saver)
    assert saver.told == 2
    model.save_weights(path)


class _Stopping(KERAS.Callback):  # type: ignore[misc,name-defined]
    """Stops a training in its third epoch, as a failure would."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Raises on all ranks."""
        if self.epochs == 3:
            raise InterruptedError("as if this process had ended")

    epochs = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts."""
        self.epochs += 1


def check_a_training_is_interrupted(rank: int, size: int) -> None:
    """It leaves what `check_it_goes_on` takes up, in other processes."""
    with fits.models(size) as (model, _):
        raised(InterruptedError, _fit, model, 4, *_backups(str(FOLDER / "backup")), _Stopping())
    assert (FOLDER / "backup").exists()


def check_it_goes_on(rank: int, size: int) -> None:
    with fits.models(size) as (model, _):
        folder = FOLDER / f"backup-for-{size}"
        if rank == 0:
            shutil.copytree(FOLDER / "backup", folder)
        found = _fit(model, 4, *_backups(str(folder))).history
        expected = np.load(FOLDER / "history-0.npz")
        for name, values in found.items():
            np.testing.assert_allclose(values, expected[name][2:], 1e-5, 1e-6, err_msg=name)
        weights = np.load(FOLDER / "weights-0.npz")
        for a, b in zip(model.get_weights(), weights.values(), strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6)
        smp.barrier()
        assert not _files(folder)


class _Noting(KERAS.Callback):  # type: ignore[misc,name-defined]
    """Keeps what is logged of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Of this replica."""
        self.losses.append(float(logs["loss"]))


def check_replicas_keep_one_copy(rank: int, size: int) -> None:
    """With one partition the callback may be on rank 0 alone, as scripts for Horovod have it."""
    partitions = fits.PARTITIONS
    joined = size // partitions
    folder = FOLDER / f"{partitions}x{joined}-of-{rank}"
    backup = str(FOLDER / f"{partitions}x{joined}")
    with fits.models(size, joined=joined, norm=False) as (model, _):
        saver = _saver(
            folder / "{epoch}-{batch}.weights.h5", save_freq=3, save_best_only=True, monitor="loss"
        )
        whole = _saver(folder / "whole.keras")
        noting = _Noting()
        savers = [saver, whole] if rank == 0 or partitions > 1 else []
        _fit(model, 3, noting, *savers)
        everyones = smp.allgather((smp.dp_rank(), noting.losses, saver.best), smp.WORLD)
        if partitions > 1:
            by_replica = {replica: losses for replica, losses, _ in everyones}
            assert len({losses[0] for losses in by_replica.values()}) == joined, "equal data"
            best = min(np.mean(list(by_replica.values()), axis=0)[2::3])
            for _, _, of_rank in everyones:
                np.testing.assert_allclose(of_rank, best, 1e-6)
        assert folder.exists() == (rank == 0)
        if rank == 0:
            assert (folder / "whole.keras").exists()
            assert list(folder.glob("*.weights.h5"))
        # What all must have is on one of them only.
        text = raised(Exception, _fit, model, 1, *_backups(backup, rank == 0))
        assert "some ranks have 1 callbacks BackupAndRestore and others 0" in text, text


def check_replicas_go_on(rank: int, size: int) -> None:
    joined = size // fits.PARTITIONS
    backup = str(FOLDER / f"{fits.PARTITIONS}x{joined}")
    histories, weights = [], []
    for stops in (False, True):
        with fits.models(size, joined=joined, norm=False) as (model, _):
            if stops:
                raised(InterruptedError, _fit, model, 4, *_backups(backup), _Stopping())
            else:
                histories.append(_fit(model, 4).history)
                weights.append([np.array(each) for each in model.variables])
    with fits.models(size, joined=joined, norm=False) as (model, _):
        found = _fit(model, 4, *_backups(backup)).history
        for name, values in found.items():
            np.testing.assert_allclose(values, histories[0][name][2:], 1e-5, 1e-6, err_msg=name)
        for a, b in zip(model.variables, weights[0], strict=True):
            np.testing.assert_allclose(np.array(a), b, 1e-5, 1e-6)


def _backups(folder: str, is_here: bool = True) -> list[Any]:
    return [KERAS.BackupAndRestore(folder)] if is_here else []
