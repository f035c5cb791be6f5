# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.CheckpointManager`: what scripts call.

Source: TensorFlow modelparallel specification, section 5.5.
"""

from __future__ import annotations

import os
import time
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint.checkpoint_management import generate_checkpoint_state_proto

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.tensorflow.checkpoints import files
from smdistributed.modelparallel.tensorflow.checkpoints.contents import Contents
from smdistributed.modelparallel.tensorflow.checkpoints.restoring import Part, restore
from smdistributed.modelparallel.tensorflow.checkpoints.saving import gather
from smdistributed.modelparallel.tensorflow.checkpoints.together import (
    CheckpointError,
    meet,
    one_method,
    together,
    within,
)
from smdistributed.modelparallel.tensorflow.job.state import state

__all__ = ["CheckpointManager"]

_DIRECTORY = "/opt/ml/checkpoints"
# By directory, the times of all checkpoints that this process has listed there in this job.
_listed: dict[str, set[float]] = {}


class CheckpointManager(tf.train.CheckpointManager):  # type: ignore[misc] # no types
    """Keeps checkpoints of a model whose parts are on several ranks.

        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        manager = smp.CheckpointManager(checkpoint, "/opt/ml/checkpoints", max_to_keep=3)
        manager.restore()
        for batch in dataset:
            train_step(*batch)
            manager.save()

    A checkpoint has what a run in one process would have written, by the active Keras: plain
    TensorFlow restores it, and so does any number of partitions. All ranks make one and call its
    methods. It may be made before the model is built.

    Args:
        checkpoint: a `tf.train.Checkpoint`, with the same objects on all ranks.
        directory: of this host, or shared; is made by the first `save`.
        max_to_keep: how many; None for all.
        checkpoint_name: what their names begin with.
        **kwargs: as of `tf.train.CheckpointManager`.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        ValueError: `max_to_keep` is not positive, or the directory is on no file system.
    """

    _last_checkpoint_step: int | None  # of TensorFlow's class

    def __init__(
        self,
        checkpoint: Any,
        directory: str | os.PathLike[str] = _DIRECTORY,
        max_to_keep: int | None = None,
        checkpoint_name: str = "ckpt",
        **kwargs: Any,
    ) -> None:
        state.require("smp.CheckpointManager")
        files.require_local(os.fspath(directory))
        super().__init__(
            checkpoint,
            os.fspath(directory),
            max_to_keep=max_to_keep,
            checkpoint_name=checkpoint_name,
            **kwargs,
        )

    def save(
        self, checkpoint_number: Any = None, check_interval: bool = True, options: Any = None
    ) -> str | None:
        """Writes a checkpoint, on rank 0; a collective of all ranks. Blocks.

        When it returns the files are there and on the disk. Killed at any time, it leaves the
        checkpoint before as the latest; one of the same number, if there was one, is replaced.

        Args:
            checkpoint_number: of this one; else `save_counter` of the checkpoint counts.
            check_interval: whether `checkpoint_interval` of the manager may skip it.
            options: accepted, as of TensorFlow; devices and callbacks in it have no effect.

        Returns:
            The path; None if it was skipped.

        Raises:
            ModelNotPartitionedError: before the first step.
            CheckpointError: (a ValueError) something cannot be gathered, which it names; or another
                job saves to the directory, too.
            OSError: rank 0 cannot write; names the path and the free bytes.
            SMDDPMismatch, SMDDPTimeoutError, SMDDPPeerLost: another rank does not call it.
        """
        del options
        state.require("manager.save()")
        with one_method, within("manager.save()"):
            return self._save_together(checkpoint_number, check_interval)

    def restore(self, save_path: str | os.PathLike[str] | None = None) -> str | None:
        """Gives all objects the values of a checkpoint; a collective of all ranks (ours).

        Before the first step the model has no variables to restore. Its values, and those of the
        optimizer, are then taken up by that step; all others are restored at once.

        Args:
            save_path: of the checkpoint, as `save` returns it; the latest one by default. One rank
                must see its files at least, others are sent what they need.

        Returns:
            The path; None if no path was given and there is no checkpoint.

        Raises:
            FileNotFoundError: no rank sees the files.
            CheckpointError: (a ValueError) the checkpoint is one of other layers, shapes, another
                optimizer or Keras, or is damaged; names the first difference. Nothing was changed.
            SMDDPMismatch, SMDDPTimeoutError, SMDDPPeerLost: another rank does not call it.
        """
        state.require("manager.restore()")
        with one_method, within("manager.restore()"):
            return self._restore_together(None if save_path is None else os.fspath(save_path))

    def restore_or_initialize(self) -> str | None:
        """As `restore` of the latest; without one, `init_fn` is called, on each rank."""
        restored = self.restore()
        if restored is None and self._init_fn is not None:
            self._init_fn()
        return restored

    # ---- how -------------------------------------------------------------------------------------

    def _save_together(self, checkpoint_number: Any, check_interval: bool) -> str | None:
        if self._is_skipped(check_interval):
            skips = True
            number = 0
        else:
            skips = False
            number = int(checkpoint_number) if checkpoint_number is not None else -1
        brought = meet("manager.save()", (skips, number))
        if len(set(brought)) > 1:
            raise CheckpointError(
                f"manager.save() has been given {_by_rank(brought)}, as (skipped by the interval,"
                " number); expected the same on all ranks. Give all of them the same"
                " step_counter and checkpoint_number."
            )
        if skips:
            return None
        counter = self._checkpoint.save_counter
        counter.assign_add(1)
        try:
            return self._save(number if checkpoint_number is not None else int(counter))
        except BaseException:
            counter.assign_sub(1)
            raise

    def _is_skipped(self, check_interval: bool) -> bool:
        """As TensorFlow has it."""
        if self._checkpoint_interval is None:
            return False
        step = int(self._step_counter)
        last = self._last_checkpoint_step
        if last is not None and step < last + (self._checkpoint_interval if check_interval else 1):
            return True
        self._last_checkpoint_step = step
        return False

    def _restore_together(self, given: str | None) -> str | None:
        latest = self._newest()
        brought: list[tuple[str | None, str | None]] = meet("manager.restore()", (given, latest))
        if len({path for path, _ in brought}) > 1:
            raise CheckpointError(
                f"manager.restore() has been given {_by_rank([path for path, _ in brought])};"
                " expected the same path on all ranks. Pass the same, or none for the latest."
            )
        latest = next((each for _, each in brought if each is not None), None)
        prefix = latest if given is None else given
        if prefix is None:
            get_logger().info("No checkpoint in %s: nothing is restored", self.directory)
            return None
        # As TensorFlow does: made when it is first asked for, and restored only if it is there.
        # Without it the next save would count from 1 again, and replace what it came from.
        _ = self._checkpoint.save_counter
        contents = together(lambda: Contents(self._checkpoint))
        if contents.has_model and not contents.is_decided:
            self._restore(prefix, Part.BEFORE_THE_DECISION)
            contents.model._smp_when_decided(
                self, lambda: self._restore(prefix, Part.AT_THE_DECISION)
            )
        else:
            self._restore(prefix, Part.ALL)
        if given is None:
            self._latest_checkpoint = prefix
        self._go_on_from_what_is_there()
        if self._checkpoint_interval is not None:
            self._last_checkpoint_step = int(self._step_counter)
        return prefix

    def _newest(self) -> str | None:
        """What this host's file `checkpoint` says; another manager may have written it since."""
        found: str | None = self._latest_checkpoint
        if found is None:
            known = tf.train.get_checkpoint_state(self.directory)
            found = known.model_checkpoint_path if known else None
        return found

    def _restore(self, prefix: str, part: tuple[type, ...]) -> None:
        with within("manager.restore()", has_begun=True):
            restore(self._checkpoint, prefix, part)

    def _save(self, number: int) -> str:
        prefix = f"{self._prefix}-{number}"
        tensors = gather(self._checkpoint, "manager.save()")
        together(lambda: self._write(prefix, tensors))
        self._note(prefix)
        return prefix

    def _write(self, prefix: str, tensors: dict[str, dict[str, Any]] | None) -> None:
        """On rank 0: the files, then what says that they are there, then old ones go."""
        if tensors is None:
            return
        files.make_directory(os.path.dirname(prefix))
        self._require_no_other_job()
        before = dict(self._maybe_delete)
        if before.pop(prefix, None) is not None:  # it is about to be no whole checkpoint
            self._tell(before)
        files.write_checkpoint(os.path.abspath(prefix), tensors)
        self._tell({**before, prefix: time.time()})

    def _require_no_other_job(self) -> None:
        """Fails if another process has saved there since this one has saved or restored there."""
        mine = _listed.get(os.path.realpath(self.directory))
        known = tf.train.get_checkpoint_state(self.directory)
        times = known.all_model_checkpoint_timestamps if known else []
        if mine and times and times[-1] not in mine:
            raise CheckpointError(
                f"another process saves to {self.directory}, too: it has written"
                f" {known.model_checkpoint_path} since this job has saved there; expected one job"
                " in a directory, as jobs replace and remove each other's checkpoints. Give each"
                " job a directory of its own. Nothing was written."
            )

    def _go_on_from_what_is_there(self) -> None:
        """What was restored may be a copy that the script has put there, of another process."""
        mine = _listed.get(os.path.realpath(self.directory))
        known = tf.train.get_checkpoint_state(self.directory)
        if mine and known:
            mine.update(known.all_model_checkpoint_timestamps)

    def _note(self, prefix: str) -> None:
        """On every rank, so that all know which checkpoints there are; a collective."""
        self._maybe_delete.pop(prefix, None)
        self._maybe_delete[prefix] = time.time()
        self._latest_checkpoint = prefix
        dropped = self._dropped()
        together(lambda: self._remove(dropped) if state.job.rank == 0 else None)

    def _remove(self, dropped: list[str]) -> None:
        if dropped:
            self._tell(dict(self._maybe_delete))
        for each in dropped:
            files.remove_checkpoint(each)

    def _dropped(self) -> list[str]:
        """Takes those off the list that are too many."""
        dropped = []
        hours = self._keep_checkpoint_every_n_hours
        while self._max_to_keep and len(self._maybe_delete) > self._max_to_keep:
            prefix, timestamp = self._maybe_delete.popitem(last=False)
            if hours and timestamp - hours * 3600.0 >= self._last_preserved_timestamp:
                self._last_preserved_timestamp: float = timestamp
            else:
                dropped.append(prefix)
        return dropped

    def _tell(self, timestamps: dict[str, float]) -> None:
        """Writes the file `checkpoint`; without checkpoints there is none."""
        path = os.path.join(self.directory, "checkpoint")
        if not timestamps:
            if os.path.exists(path):
                os.unlink(path)
            return
        relative = [os.path.relpath(each, self.directory) for each in timestamps]
        told = generate_checkpoint_state_proto(
            # TensorFlow takes paths for those of the working directory where this one is relative.
            os.path.abspath(self.directory),
            relative[-1],
            all_model_checkpoint_paths=relative,
            all_model_checkpoint_timestamps=list(timestamps.values()),
            last_preserved_timestamp=self._last_preserved_timestamp,
        )
        if not _listed:
            state.call_at_reset(_listed.clear)
        # Before it is written: an interrupt may come just after that.
        _listed.setdefault(os.path.realpath(self.directory), set()).update(timestamps.values())
        files.write_state(self.directory, told)


def _by_rank(brought: list[Any]) -> str:
    return ", ".join(f"{value!r} on rank {rank}" for rank, value in enumerate(brought))
