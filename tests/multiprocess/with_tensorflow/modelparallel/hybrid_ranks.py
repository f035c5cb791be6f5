# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_hybrid.py run: the documented training with `hvd`, on several partitions.

Beside it, in each rank, one process trains a plain model on the batches of all replicas together.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from heard import listen
from update_ranks import mean_of, scale_of, scaled_loss, unscaled
from with_tensorflow.tf_ranks import no_job as around_checks
from with_tensorflow.tf_ranks import raised

import smdistributed.compat.horovod.tensorflow as hvd
import smdistributed.dataparallel.tensorflow as sdp
import smdistributed.modelparallel.tensorflow as smp
from smdistributed.dataparallel.exceptions import SMDDPUnsupported

__all__ = ["around_checks"]

PARTITIONS = int(os.environ.get("SMP_TEST_PARTITIONS", "2"))
STEPS = 20
BATCH = 8  # of a replica
WORDS = 13
RELATIVE = 1e-5
CLIP_NORM = 0.05  # less than what comes
MICROBATCHES = 2
IS_KERAS_3 = not tf.keras.Model.__module__.startswith("tf_keras")
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd_with_momentum": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: tf.keras.optimizers.Adam(0.01),
    "adamw": lambda: tf.keras.optimizers.AdamW(0.01, weight_decay=0.02),
}


@contextlib.contextmanager
def a_job() -> Iterator[None]:
    """Replicas as many as fit."""
    tf.keras.utils.set_random_seed(1)
    smp.init({"partitions": PARTITIONS, "microbatches": MICROBATCHES, "horovod": True})
    try:
        yield
    finally:
        smp.reset()


def dense(base: Any) -> Any:
    """A model of numbers."""

    class Dense(base):  # type: ignore[misc] # Keras has no types
        def __init__(self) -> None:
            super().__init__()
            self.first = tf.keras.layers.Dense(16, activation="tanh")
            self.hidden = _hidden()
            self.last = tf.keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            x = self.first(x)
            for layer in self.hidden:
                x = layer(x)
            return self.last(x)

    return Dense()


def sparse(base: Any) -> Any:
    """A model of words, whose gradients have rows for those of the batch alone."""

    class Sparse(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = tf.keras.layers.Embedding(WORDS, 8)
            self.hidden = _hidden()
            self.last = tf.keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            x = tf.reduce_mean(self.words(x), axis=1)
            for layer in self.hidden:
                x = layer(x)
            return self.last(x)

    return Sparse()


def _hidden() -> list[Any]:
    """So many layers that each partition has some."""
    return [tf.keras.layers.Dense(8, activation="tanh") for _ in range(PARTITIONS - 1)]


def batch_of(kind: Any, step: int, replica: int) -> tuple[Any, Any]:
    """Of a replica; different ones have different ones, and different words in them."""
    drawn = np.random.RandomState(100 * step + replica)
    x: Any = drawn.standard_normal((BATCH, 6)).astype(np.float32)
    if kind is sparse:
        x = drawn.randint(0, WORDS - 2 - replica % 2, (BATCH, 4)).astype(np.int32)
    return tf.constant(x), tf.constant(drawn.standard_normal((BATCH, 3)).astype(np.float32))


def squared(predicted: Any, wanted: Any) -> Any:
    return tf.reduce_mean(tf.square(predicted - wanted))


def documented(kind: Any, optimizer: Any, clip: Any) -> tuple[Any, Callable[..., Any]]:
    """The model and the training step of the guide.

    Args:
        clip: what becomes of the gradients that were averaged over the replicas.
    """
    model = kind(smp.DistributedModel)

    @smp.step
    def forward_backward(x: Any, y: Any) -> Any:
        loss = squared(model(x), y)
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    @tf.function
    def train_step(x: Any, y: Any, first_batch: Any) -> Any:
        gradients, loss = forward_backward(x, y)
        if kind is sparse and smp.mp_rank() == 0:
            assert isinstance(gradients[0].accumulate(), tf.IndexedSlices)
        gradients = clip([hvd.allreduce(g.accumulate()) for g in gradients])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables(), root_rank=0)
        return hvd.allreduce(loss.reduce_mean())

    return model, train_step


def clipped_here(gradients: Any) -> Any:
    return smp.clip_by_global_norm(gradients, CLIP_NORM)[0]


def clipped_alone(gradients: Any) -> Any:
    """Of one process, which has as many slices as all replicas together."""
    found, norm = tf.clip_by_global_norm(gradients, CLIP_NORM)
    tf.debugging.assert_greater(norm, CLIP_NORM)
    return found


def as_it_is(gradients: Any) -> Any:
    return gradients


def plain(kind: Any, optimizer: Any, clip: Any) -> tuple[Any, Callable[..., Any]]:
    """One process of Keras."""
    model = kind(tf.keras.Model)

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model(x), y)
        gradients = clip(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return model, train_step


def _train_alike(kind: Any, optimizer: str, *, is_tensor: bool, clips: bool = False) -> None:
    mine_clips, theirs_clips = (clipped_here, clipped_alone) if clips else (as_it_is, as_it_is)
    with a_job():
        tf.keras.utils.set_random_seed(5)
        theirs, their_step = plain(kind, OPTIMIZERS[optimizer](), theirs_clips)
        theirs(batch_of(kind, 0, 0)[0])  # makes the variables
        tf.keras.utils.set_random_seed(5)
        mine, my_step = documented(kind, OPTIMIZERS[optimizer](), mine_clips)
        for step in range(STEPS):
            batches = [batch_of(kind, step, replica) for replica in range(smp.dp_size())]
            expected = their_step(*(tf.concat(each, 0) for each in zip(*batches, strict=True)))
            first = tf.constant(step == 0) if is_tensor else step == 0
            loss = my_step(*batches[smp.dp_rank()], first)
            np.testing.assert_allclose(loss, expected, rtol=RELATIVE, err_msg=f"step {step}")
        _require_equal_weights(mine, theirs)
        require_equal_replicas([np.asarray(each) for each in mine.variables])


def _require_equal_weights(mine: Any, theirs: Any) -> None:
    """Those of this rank: within the tolerance, of the largest one of a variable."""
    here = {id(each) for each in mine.variables}
    assert 0 < len(here) < len(theirs.variables)
    for one, other in zip(mine.smp_all_variables, theirs.variables, strict=True):
        if id(one) in here:
            one, other = np.asarray(one), np.asarray(other)
            bound = RELATIVE * np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=RELATIVE, atol=bound)


def require_equal_replicas(arrays: Sequence[Any]) -> None:
    """All ranks with this partition have the same bits."""
    bits = [each.tobytes() for each in arrays]
    assert all(each == bits for each in smp.allgather(bits, smp.DP_GROUP))


def check_sgd_with_momentum(rank: int, size: int) -> None:
    _train_alike(dense, "sgd_with_momentum", is_tensor=True)


def check_sgd_with_momentum_clipped(rank: int, size: int) -> None:
    _train_alike(dense, "sgd_with_momentum", is_tensor=False, clips=True)


def check_adam(rank: int, size: int) -> None:
    _train_alike(dense, "adam", is_tensor=False)


def check_adam_clipped(rank: int, size: int) -> None:
    _train_alike(dense, "adam", is_tensor=True, clips=True)


def check_adamw(rank: int, size: int) -> None:
    _train_alike(dense, "adamw", is_tensor=True)


def check_adamw_clipped(rank: int, size: int) -> None:
    _train_alike(dense, "adamw", is_tensor=False, clips=True)


def check_embeddings_with_sgd_with_momentum(rank: int, size: int) -> None:
    _train_alike(sparse, "sgd_with_momentum", is_tensor=False)


def check_embeddings_with_sgd_with_momentum_clipped(rank: int, size: int) -> None:
    _train_alike(sparse, "sgd_with_momentum", is_tensor=True, clips=True)


def check_embeddings_with_adam(rank: int, size: int) -> None:
    _train_alike(sparse, "adam", is_tensor=True)


def check_embeddings_with_adam_clipped(rank: int, size: int) -> None:
    _train_alike(sparse, "adam", is_tensor=False, clips=True)


def check_embeddings_with_adamw(rank: int, size: int) -> None:
    _train_alike(sparse, "adamw", is_tensor=False)


def check_embeddings_with_adamw_clipped(rank: int, size: int) -> None:
    _train_alike(sparse, "adamw", is_tensor=True, clips=True)


def check_clipped_before_the_average(rank: int, size: int) -> None:
    """By the norm of each replica: another training, but the same on all of them."""
    with a_job():
        optimizer = tf.keras.optimizers.Adam(0.01)
        model = dense(smp.DistributedModel)

        @smp.step
        def forward_backward(x: Any, y: Any) -> Any:
            return optimizer.get_gradients(squared(model(x), y), model.trainable_variables)

        @tf.function
        def train_step(x: Any, y: Any) -> Any:
            gradients = [each.accumulate() for each in forward_backward(x, y)]
            gradients, norm = smp.clip_by_global_norm(gradients, CLIP_NORM)
            gradients = [hvd.allreduce(each) for each in gradients]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return norm

        for step in range(5):
            norm = train_step(*batch_of(dense, step, smp.dp_rank()))
            assert len(set(smp.allgather(float(norm), smp.MP_GROUP))) == 1
            assert len(set(smp.allgather(float(norm), smp.DP_GROUP))) == smp.dp_size()
            require_equal_replicas([np.asarray(each) for each in model.variables])


# Replica and partition of the one rank where a gradient overflows, by step.
OVERFLOWS = {3: (1, 1), 7: (0, 0)}
SCALE = 64.0


def check_mixed_float16(rank: int, size: int) -> None:
    """What overflows on one rank of one replica, all skip; clipped by the norm of all."""
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with a_job():
            _train_scaled()
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def _train_scaled() -> None:
    tf.keras.utils.set_random_seed(5)
    theirs = dense(tf.keras.Model)
    theirs(batch_of(dense, 0, 0)[0])
    tf.keras.utils.set_random_seed(5)
    mine = dense(smp.DistributedModel)
    optimizers = [
        tf.keras.mixed_precision.LossScaleOptimizer(
            tf.keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=CLIP_NORM),
            initial_scale=SCALE,
            dynamic_growth_steps=1000,
        )
        for _ in range(2)
    ]
    if IS_KERAS_3:
        optimizers[1].build(theirs.trainable_variables)
    my_step = scaled_step(mine, optimizers[0])
    their_step = scaled_step_of_one_process(theirs, optimizers[1])
    for step in range(STEPS):
        batches = [batch_of(dense, step, replica) for replica in range(smp.dp_size())]
        overflows = OVERFLOWS.get(step)
        expected = their_step(batches, tf.constant(np.inf if overflows else 1.0))
        is_here = overflows == (smp.dp_rank(), smp.mp_rank())
        before = [np.asarray(each) for each in mine.variables]
        loss = my_step(*batches[smp.dp_rank()], tf.constant(np.inf if is_here else 1.0))
        np.testing.assert_allclose(loss, expected, rtol=RELATIVE, err_msg=f"step {step}")
        if overflows:
            for one, other in zip(before, mine.variables, strict=True):
                assert (one == np.asarray(other)).all(), f"step {step} was not skipped"
    _require_equal_weights(mine, theirs)
    require_equal_replicas([np.asarray(each) for each in mine.variables])
    ours, alone = ((int(np.array(each.iterations)), scale_of(each)) for each in optimizers)
    assert ours == alone  # tf-keras counts steps that are skipped, too
    assert ours[1] == SCALE / 4


def scaled_step(model: Any, optimizer: Any) -> Callable[..., Any]:
    """The guide's, with a factor for the last gradient of this rank."""

    @smp.step
    def forward_backward(x: Any, y: Any) -> Any:
        loss = squared(tf.cast(model(x), tf.float32), y)
        scaled = scaled_loss(optimizer, loss)
        gradients = optimizer.get_gradients(scaled, model.trainable_variables)
        return unscaled(optimizer, gradients), loss

    @tf.function
    def train_step(x: Any, y: Any, factor: Any) -> Any:
        gradients, loss = forward_backward(x, y)
        *gradients, last = [each.accumulate() for each in gradients]
        gradients = [hvd.allreduce(each) for each in (*gradients, last * factor)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return hvd.allreduce(loss.reduce_mean())

    return train_step


def scaled_step_of_one_process(model: Any, optimizer: Any) -> Callable[..., Any]:
    """On the same microbatches, as 16 bits do not add up alike in others."""

    def gradients_of(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(tf.cast(model(x), tf.float32), y)
            scaled = scaled_loss(optimizer, loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        return loss, *unscaled(optimizer, gradients)

    @tf.function
    def train_step(batches: Any, factor: Any) -> Any:
        found = [
            gradients_of(*piece)
            for x, y in batches
            for piece in zip(tf.split(x, MICROBATCHES), tf.split(y, MICROBATCHES), strict=True)
        ]
        loss, *gradients, last = (mean_of(each) for each in zip(*found, strict=True))
        gradients = [*gradients, last * factor]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


class Normalized(smp.DistributedModel):  # type: ignore[misc]
    """Statistics on both partitions, and a layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [
            [
                tf.keras.layers.Dense(6),
                tf.keras.layers.BatchNormalization(momentum=0.5),
                tf.keras.layers.Dense(6, trainable=False),
            ]
            for _ in range(2)
        ]

    def call(self, x: Any, training: Any = None) -> Any:
        for dense, norm, frozen in self.blocks:
            x = frozen(norm(dense(x), training=training))
        return x


def check_statistics_are_averaged_by_one_call(rank: int, size: int) -> None:
    assert "smp.init()" in raised(smp.SMPNotInitialized, smp.average_statistics, None)
    with a_job():
        model = Normalized()
        assert "before the first step" in raised(RuntimeError, smp.average_statistics, model)
        assert "got a Model" in raised(TypeError, smp.average_statistics, tf.keras.Model())

        @smp.step
        def forward(x: Any) -> Any:
            return tf.reduce_mean(model(x, training=True))

        @smp.step
        def averages_in_it(x: Any) -> Any:
            smp.average_statistics(model)
            return model(x)

        for in_graph in (False, True):
            forward(batch_of(dense, 3, smp.dp_rank())[0])
            before = [np.asarray(each) for each in model.non_trainable_variables]
            trained = [np.asarray(each) for each in model.trainable_variables]
            everyone = smp.allgather(before, smp.DP_GROUP)
            if in_graph:
                tf.function(lambda: smp.average_statistics(model))()
            else:
                smp.average_statistics(model)
            after = [np.asarray(each) for each in model.non_trainable_variables]
            parted = 0
            for mine, now, *theirs in zip(before, after, *everyone, strict=True):
                if all((each == mine).all() for each in theirs):
                    assert (now == mine).all(), "what does not differ stays as it is"
                    continue
                parted += 1
                np.testing.assert_allclose(now, np.mean(theirs, axis=0), rtol=1e-6, atol=1e-7)
            assert parted == 2, "a mean and a variance on each rank"
            require_equal_replicas(after)
            for one, other in zip(trained, model.trainable_variables, strict=True):
                assert (one == np.asarray(other)).all()
        x = batch_of(dense, 0, smp.dp_rank())[0]
        assert "in a function with @smp.step" in raised(SMDDPUnsupported, averages_in_it, x)


def check_one_replica_exchanges_nothing(rank: int, size: int) -> None:
    """The same script on as many processes as partitions; in a step it is refused there, too."""
    tf.keras.utils.set_random_seed(1)
    smp.init({"partitions": size, "microbatches": 2, "horovod": True})
    model = Normalized()

    @smp.step
    def forward(x: Any) -> Any:
        return tf.reduce_mean(model(x, training=True)) / hvd.size()

    x = batch_of(dense, 0, 0)[0]
    assert np.isfinite(float(forward(x).reduce_mean()))
    before = [np.asarray(each) for each in model.variables]
    smp.average_statistics(model)
    hvd.broadcast_variables(model.variables, root_rank=0)
    assert (hvd.rank(), hvd.size(), hvd.local_rank()) == (0, 1, 0)
    assert float(hvd.allreduce(tf.constant(3.0))) == 3.0
    for one, other in zip(before, model.variables, strict=True):
        assert (one == np.asarray(other)).all()
    for call in (
        lambda x: hvd.allreduce(x),
        lambda x: hvd.broadcast_variables([], 0),
        lambda x: hvd.barrier(),
    ):
        refusing = smp.step(lambda x, call=call: call(x), non_split_inputs=["call"])
        assert "in a function with @smp.step" in raised(SMDDPUnsupported, refusing, x)
    smp.reset()


def check_a_list_from_before_the_first_step(rank: int, size: int) -> None:
    """Its variables of other partitions are left out where gradients are exchanged and applied."""
    with a_job():
        model = dense(smp.DistributedModel)
        optimizer = tf.keras.optimizers.Adam(0.1)
        model.build((None, 6))
        if not model.variables:  # Keras 3 builds such models when they are called
            model(tf.keras.Input((6,)))
        everything = model.trainable_variables

        @smp.step
        def forward_backward(x: Any, y: Any) -> Any:
            return optimizer.get_gradients(squared(model(x), y), everything)

        gradients = forward_backward(*batch_of(dense, 0, smp.dp_rank()))
        gradients = [hvd.allreduce(each.accumulate()) for each in gradients]
        assert sum(each is not None for each in gradients) == len(model.trainable_variables)
        gradients, norm = smp.clip_by_global_norm(gradients, 1e-3)
        assert float(norm) > 1e-3
        logger, heard = logging.getLogger("smdistributed"), listen()
        level = logger.level
        logger.setLevel(logging.DEBUG)
        optimizer.apply_gradients(zip(gradients, everything, strict=True))
        logger.setLevel(level)
        logger.removeHandler(heard)
        mine = model.trainable_variables
        num_elsewhere = len(everything) - len(mine)
        assert num_elsewhere > 0
        said = f"{num_elsewhere} of {len(everything)} variables are on other ranks"
        assert any(said in text for text in heard.texts), heard.texts
        slots = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        of_model = sum(int(np.prod(each.shape)) for each in mine)
        assert sum(int(np.prod(each.shape)) for each in slots if each.shape.rank) == 2 * of_model
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(everything, root_rank=0)
        require_equal_replicas([np.asarray(each) for each in model.variables])
        assert sdp.is_initialized()
