# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_lost_ranks.py run: one of them is killed, and the others go on without it.

They meet again as a smaller job, in which the next one is killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from with_tensorflow.modelparallel.fit_fault_ranks import told_by

VICTIM_OF_A_SAVE = 1
"""An owner of values; the last rank is another one."""


def run_faults(rank: int, size: int, faults: Sequence[str], ports: Sequence[int]) -> list[Any]:
    """By fault, class, text and seconds of what a rank was told that lives on."""
    from with_tensorflow.modelparallel import kept

    told: list[Any] = []
    for number, (fault, port) in enumerate(zip(faults, ports, strict=True)):
        _meet(rank, size - number, port)
        folder = kept.shared_folder(fault)
        with kept.training(folder, size - number) as one:
            one.steps(1)
            told.append(globals()[f"_{fault}"](rank, size - number - 1, one, folder))
    return told


def _meet(rank: int, size: int, port: int) -> None:
    """The next job's are these ranks."""
    for name in ("RANK", "LOCAL_RANK"):
        os.environ[name] = str(rank)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ[name] = str(size)
    os.environ["MASTER_PORT"] = str(port)


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _evaluate(rank: int, last: int, one: Any, folder: Path) -> Any:
    """After the second batch of Keras' `evaluate`."""
    import tensorflow as tf
    from with_tensorflow.modelparallel import kept

    class Dying(tf.keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1 and rank == last:
                _die()

    one.model.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    arguments = {"batch_size": 2, "verbose": 0, "callbacks": [Dying()]}
    return told_by(lambda: one.model.evaluate(kept.X, kept.Y, **arguments))


def _evaluation_step(rank: int, last: int, one: Any, folder: Path) -> Any:
    """In a step that goes forward only, when it has sent nothing yet."""
    from with_tensorflow.modelparallel import kept

    from smdistributed.modelparallel.tensorflow.run.driver import Driver

    one.predict(kept.X)
    if rank == last:
        with mock.patch.object(Driver, "_run_turns", _die):
            one.predict(kept.X)
    return told_by(lambda: one.predict(kept.X))


def _sender_of_a_save(rank: int, last: int, one: Any, folder: Path) -> Any:
    return _in_a_save(rank == VICTIM_OF_A_SAVE, "saving.send_value", one, folder)


def _writer_of_a_save(rank: int, last: int, one: Any, folder: Path) -> Any:
    return _in_a_save(rank == 0, "files.tf.raw_ops.SaveV2", one, folder)


def _in_a_save(is_victim: bool, where: str, one: Any, folder: Path) -> Any:
    """Where a function would run; the checkpoint before is there and whole."""
    import tensorflow as tf
    from with_tensorflow.modelparallel import kept

    first = one.manager.save()
    before = kept.content(first)
    one.steps(1)
    if is_victim:
        room = "smdistributed.modelparallel.tensorflow.checkpoints"
        with mock.patch(f"{room}.{where}", _die):
            one.manager.save()
    told = told_by(one.manager.save)
    assert tf.train.latest_checkpoint(str(folder)) == one.manager.latest_checkpoint == first
    kept.assert_same(kept.content(first), before)
    return told
