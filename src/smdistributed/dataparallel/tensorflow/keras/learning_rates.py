# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Callbacks that set the learning rate while `model.fit` trains.

They are classes without a base: `callbacks` gives them the `Callback` of the Keras in use.

Momentum correction. The optimizers that have a momentum keep a sum of past updates, each made with
the learning rate of its step. Where the rate changes from one batch to the next, that sum is
multiplied by new rate / old rate once, as if all its updates had been made with the new rate. For
plain momentum this is the same arithmetic as a momentum that is changed for one batch; Keras has
compiled that number into its step, so it could not be changed.

Source: our choice: Horovod's names and documented rates; see docs/tensorflow.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import resolve_group

__all__ = ["LearningRateSchedule", "LearningRateWarmup"]


class LearningRateSchedule:
    """Sets the learning rate to `initial_lr * multiplier` in some epochs.

    With `staircase` at the beginning of an epoch, `multiplier(epoch)` with an int; else at the
    beginning of every batch (or of every `steps_per_execution` batches), with the float
    `epoch + batch / steps_per_epoch`. At the end of an epoch `logs["lr"]` is the rate.

    Args:
        initial_lr: the rate that is multiplied. Required.
        multiplier: a function of the epoch; or a number: `multiplier ** (epoch - start_epoch)`.
        start_epoch, end_epoch: epochs from the first one on and before the other one; None: to the
            end. In other epochs the rate is left as it is.
        staircase: as above.
        momentum_correction: where the optimizer has a momentum, multiply its sums of past updates
            by new rate / old rate.
        steps_per_epoch: batches of an epoch; default: what Keras knows. Without `staircase` only.

    Raises:
        SMDDPConfigInvalid: (a ValueError) no `initial_lr`; when training begins: Keras does not
            know the number of batches.
        SMDDPUnsupported: when training begins: a rate that cannot be set, since it is a schedule
            itself; an optimizer made of several; `momentum_correction` of an optimizer with a
            momentum that is neither SGD nor RMSprop.

    Source: our choice; see docs/tensorflow.md.
    """

    params: dict[str, Any]  # of Keras's Callback
    model: Any

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[Any], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise SMDDPConfigInvalid(
                f"{type(self).__name__} got initial_lr=None; expected the learning rate that it is"
                " to multiply. Pass the rate that the optimizer was made with."
            )
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else _powers(multiplier, start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Looks whether the rate can be set, and how many batches an epoch has."""
        _require_settable(self._optimizer(), type(self).__name__)
        if self.momentum_correction:
            _require_correctable(self._optimizer(), type(self).__name__)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._steps_that_keras_knows()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate, if it is time."""
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._set_rate(self.initial_lr * self.multiplier(epoch + batch / self.steps_per_epoch))
        elif batch == 0:
            self._set_rate(self.initial_lr * self.multiplier(epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the rate."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _optimizer(self) -> Any:
        optimizer = self.model.optimizer
        inner = getattr(optimizer, "inner_optimizer", None)  # of one that scales losses
        return optimizer if inner is None else inner

    def _rate(self) -> float:
        return float(np.asarray(self._optimizer().learning_rate))

    def _set_rate(self, rate: float) -> None:
        optimizer, before = self._optimizer(), self._rate()
        optimizer.learning_rate = rate
        # Updates that were made with a rate of 0 have left nothing to correct.
        if self.momentum_correction and before and rate != before:
            for update in _past_updates(optimizer):
                update.assign(update * tf.cast(rate / before, update.dtype))

    def _steps_that_keras_knows(self) -> int:
        steps = self.params.get("steps")
        if not steps and self.params.get("samples") and self.params.get("batch_size"):
            steps = self.params["samples"] // self.params["batch_size"]
        if not steps:
            raise SMDDPConfigInvalid(
                f"{type(self).__name__} sets a rate for each batch, and Keras does not know how"
                " many batches an epoch has; expected a number. Pass steps_per_epoch= to the"
                " callback, or to fit()."
            )
        return int(steps)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from `initial_lr / size()` to `initial_lr`, batch by batch.

    With a group, `size()` is that of the group, here and below.

    At the end of batch number b of epoch e, both from 0, of s batches an epoch, with w
    `warmup_epochs`, the rate is that of t = e + (b + 1) / s epochs:

        initial_lr / size() * (1 + t * (size() - 1) / w)

    Args:
        initial_lr: the rate to reach: usually that of one process times `size()`. Required.
        warmup_epochs: how many epochs it takes.
        momentum_correction, steps_per_epoch: as for `LearningRateScheduleCallback`.
        verbose: 1: rank 0, of the group if there is one, prints a line when it is done.
        group: of `new_group`, whose ranks train together; None: all ranks.

    Raises:
        As `LearningRateScheduleCallback`.
        SMDDPNotInitialized: when training begins: before `init()`.
        SMDDPConfigInvalid: (a ValueError) when training begins: this process is not in the group.

    Source: our choice; see docs/tensorflow.md.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *,
        group: Group | None = None,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch
            done, size = epoch + 1 / self.steps_per_epoch, self._among().size()
            return (1 + done * (size - 1) / warmup_epochs) / size

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose
        self.group = group

    def _among(self) -> Group:
        return resolve_group(self.group, type(self).__name__)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the rate; says so after the last epoch of the warm-up."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch == epoch + 1 and self.verbose > 0 and self._among().rank() == 0:
            print(f"\nEpoch {epoch + 1}: the learning rate has warmed up to {self._rate():g}.")


def _powers(base: float, start: int) -> Callable[[Any], float]:
    return lambda epoch: float(base ** (epoch - start))


def _require_settable(optimizer: Any, caller: str) -> None:
    if not tf.executing_eagerly():
        raise SMDDPUnsupported(
            f"{caller} sets the learning rate while TensorFlow executes nothing eagerly; expected"
            " eager execution. Leave out tf.compat.v1.disable_eager_execution(), or write a"
            " callback that calls tf.keras.backend.set_value(model.optimizer.lr, rate)."
        )
    parts = getattr(optimizer, "optimizers", None)
    if parts:
        raise SMDDPUnsupported(
            f"{caller} got a {type(optimizer).__name__} of {len(parts)} optimizers; expected one"
            " with one learning rate. Train with one optimizer, or give each a schedule of"
            " tf.keras.optimizers.schedules."
        )
    hyperparameters = getattr(optimizer, "_hyper", None) or {}
    rate = hyperparameters.get("learning_rate", getattr(optimizer, "_learning_rate", None))
    if callable(rate) and not hasattr(rate, "assign"):
        raise SMDDPUnsupported(
            f"{caller} got an optimizer whose learning rate is {type(rate).__name__}, which sets"
            " the rate itself; expected a number. Make the optimizer with a number, or leave out"
            " the callback."
        )


def _require_correctable(optimizer: Any, caller: str) -> None:
    if _has_momentum(optimizer) and not _multiplies_updates(optimizer):
        raise SMDDPUnsupported(
            f"{caller} got {type(optimizer).__name__}, of which it does not know how its momentum"
            " depends on the learning rate; expected SGD or RMSprop. Pass"
            " momentum_correction=False."
        )


def _has_momentum(optimizer: Any) -> bool:
    momentum = getattr(optimizer, "momentum", None)
    return momentum is not None and bool(np.asarray(momentum) != 0)


def _multiplies_updates(optimizer: Any) -> bool:
    """Whether what it keeps are updates, made with a learning rate, and not gradients."""
    return bool({"SGD", "RMSprop"} & {base.__name__ for base in type(optimizer).__mro__})


def _past_updates(optimizer: Any) -> list[Any]:
    """TensorFlow's variables in which an optimizer with a momentum sums up its updates."""
    if not _has_momentum(optimizer):
        return []
    if hasattr(optimizer, "get_slot_names"):  # the legacy ones of tf-keras
        return [each for each in optimizer.variables() if "/momentum" in each.name]
    found = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or ()
    return [each if isinstance(each, tf.Variable) else each.value for each in found]
