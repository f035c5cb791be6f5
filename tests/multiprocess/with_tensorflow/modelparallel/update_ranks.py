# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_updates.py run: rules of optimizers that look at all gradients at once.

The model is on the first and the last rank; with three, the one between them has no variable. Each
rank trains the same network as a whole model of plain Keras beside it, whose optimizers ask nobody.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.graph import reading
from tests.multiprocess.with_tensorflow.tf_ranks import raised

K = tf.keras
IS_KERAS_3 = not K.Model.__module__.startswith("tf_keras")
MICROBATCHES = 2
NUM_STEPS = 4
IDS = np.array([[0, 1], [2, 2], [3, 1], [0, 5]])
LABELS = np.array([0, 1, 2, 1])


def layers() -> list[Any]:
    """A sparse gradient on the first rank, dense ones on both."""
    return [
        K.layers.Embedding(6, 3, name="embedding"),
        K.layers.Flatten(),
        K.layers.Dense(5, activation="relu", name="hidden"),
        K.layers.Dense(3, name="last", dtype="float32"),
    ]


class Model(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """On the first and the last rank."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers()

    def call(self, x: Any) -> Any:
        with smp.partition(0):
            for layer in self.inner[:-1]:
                x = layer(x)
        with smp.partition(smp.mp_size() - 1):
            return self.inner[-1](x)


class Cut:
    """The cut model, and a variable beside it that all ranks have."""

    def __init__(self) -> None:
        self.model = Model()
        self.beside = tf.Variable(1.0, name="beside")

    @property
    def variables(self) -> list[Any]:
        return [*self.model.trainable_variables, self.beside]

    def loss(self, x: Any, y: Any, penalty: Any) -> Any:
        return penalty(loss_of(self.model(x), y, self.beside), self.variables)


class Whole:
    """The same in one process, of plain Keras."""

    def __init__(self) -> None:
        self.model = K.Sequential([K.layers.Input((2,)), *layers()])
        self.beside = tf.Variable(1.0, name="beside")

    @property
    def variables(self) -> list[Any]:
        return [*self.model.trainable_variables, self.beside]

    def train(self, optimizer: Any, spoil: Any, clip: Any, penalty: Any) -> None:
        """The steps, without the library: gradients are added up by microbatch."""
        raws = [each if isinstance(each, tf.Variable) else each.value for each in self.variables]
        cut = zip(np.split(IDS, MICROBATCHES), np.split(LABELS, MICROBATCHES), strict=True)
        batches = list(cut)
        for step in range(NUM_STEPS):
            pieces = []
            for x, y in batches:
                with tf.GradientTape() as tape:
                    loss = penalty(loss_of(self.model(x), y, self.beside), raws)
                    scaled = scaled_loss(optimizer, loss)
                pieces.append(unscaled(optimizer, tape.gradient(scaled, raws)))
            gradients = [mean_of(each) for each in zip(*pieces, strict=True)]
            gradients = spoil(step, gradients, self.variables)
            optimizer.apply_gradients(zip(clip(gradients), self.variables, strict=True))


def loss_of(logits: Any, labels: Any, beside: Any) -> Any:
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32) * beside)
    )


def mean_of(gradients: Any) -> Any:
    if isinstance(gradients[0], tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([each.values for each in gradients], 0) / len(gradients),
            tf.concat([each.indices for each in gradients], 0),
            gradients[0].dense_shape,
        )
    return tf.add_n(gradients) / len(gradients)


def scaled_loss(optimizer: Any, loss: Any) -> Any:
    if hasattr(optimizer, "get_scaled_loss"):
        return optimizer.get_scaled_loss(loss)
    return optimizer.scale_loss(loss) if IS_KERAS_3 else loss


def unscaled(optimizer: Any, gradients: Any) -> Any:
    if hasattr(optimizer, "get_unscaled_gradients"):
        return optimizer.get_unscaled_gradients(gradients)
    return gradients


def scale_of(optimizer: Any) -> float:
    scale = optimizer.dynamic_scale if IS_KERAS_3 else optimizer.loss_scale
    return float(np.array(scale))


def names_of(variables: Any) -> list[str]:
    """The last two parts of their paths."""
    paths = [str(getattr(each, "path", each.name)).partition(":")[0] for each in variables]
    return ["/".join(path.split("/")[-2:]) for path in paths]


def values_of(variables: Any) -> dict[str, Any]:
    """By name."""
    return {name: np.array(each) for name, each in zip(names_of(variables), variables, strict=True)}


def begin(variables: Any) -> None:
    """Gives variables values that their names and shapes tell."""
    for each in variables:
        elements = int(np.prod(each.shape))
        each.assign((np.sin(np.arange(1, elements + 1) * 1.7) * 0.9).reshape(each.shape))


def as_they_are(gradients: Any) -> Any:
    return gradients


def no_penalty(loss: Any, variables: Any) -> Any:
    return loss


def nothing(step: int, gradients: Any, variables: Any) -> Any:
    return gradients


def overflow(step: int, gradients: Any, variables: Any) -> list[Any]:
    """In the second step, the bias of the last layer: on one rank alone."""
    factor = tf.where(tf.equal(step, 1), np.inf, 1.0)
    return [
        each * tf.cast(factor, each.dtype) if name == "last/bias" else each
        for name, each in zip(names_of(variables), gradients, strict=True)
    ]


@contextlib.contextmanager
def around_checks(rank: int, size: int) -> Iterator[tuple[Cut, Whole]]:
    """One job and one cut model for all checks."""
    smp.init(
        {
            "partitions": size,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    cut, whole = Cut(), Whole()
    smp.step(lambda x: cut.model(x))(IDS)  # decides
    assert len(cut.model.trainable_variables) == (3 if rank == 0 else 2 if rank == size - 1 else 0)
    yield cut, whole
    smp.reset()


def require_alike(
    cut: Cut,
    whole: Whole,
    make: Callable[[], Any],
    spoil: Any = nothing,
    clip: tuple[Any, Any] = (as_they_are, as_they_are),
    penalty: Any = no_penalty,
    rtol: float = 1e-5,
) -> Any:
    """Trains both, and compares weights, steps and scales."""
    begin(whole.variables)
    begin(cut.variables)
    mine, theirs = make(), make()
    of_cut, of_whole = clip

    @smp.step
    def forward_backward(x: Any, y: Any) -> Any:
        loss = scaled_loss(mine, cut.loss(x, y, penalty))
        return unscaled(mine, mine.get_gradients(loss, cut.variables)), loss

    @tf.function
    def train_step(x: Any, y: Any, step: Any) -> Any:
        gradients, loss = forward_backward(x, y)
        gradients = spoil(step, [each.accumulate() for each in gradients], cut.variables)
        mine.apply_gradients(zip(of_cut(gradients), cut.variables, strict=True))
        return loss.reduce_mean()

    for step in range(NUM_STEPS):
        train_step(IDS, LABELS, tf.constant(step))
    if IS_KERAS_3 and isinstance(theirs, K.mixed_precision.LossScaleOptimizer):
        theirs.build(whole.variables)
    whole.train(theirs, spoil, of_whole, penalty)
    expected = values_of(whole.variables)
    for name, value in values_of(cut.variables).items():
        np.testing.assert_allclose(value, expected[name], rtol=rtol, atol=rtol / 10, err_msg=name)
    assert int(np.array(mine.iterations)) == int(np.array(theirs.iterations))
    if spoil is overflow:
        assert scale_of(mine) == scale_of(theirs)
        assert scale_of(theirs) == 64, "halved once, and doubled after two steps"
    return mine


CLIPPED = {"global_clipnorm": 0.1}


def check_global_clipnorm(cut: Cut, whole: Whole) -> None:
    require_alike(cut, whole, lambda: K.optimizers.SGD(0.5, momentum=0.9, **CLIPPED))
    require_alike(cut, whole, lambda: K.optimizers.AdamW(0.01, weight_decay=0.1, **CLIPPED))
    if not IS_KERAS_3:
        require_alike(cut, whole, lambda: K.optimizers.legacy.SGD(0.5, **CLIPPED))


def check_average_weights(cut: Cut, whole: Whole) -> None:
    def make() -> Any:
        average = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
        return K.optimizers.Adam(0.05, **average, **CLIPPED)

    require_alike(cut, whole, make)


def check_gradients_of_several_steps(cut: Cut, whole: Whole) -> None:
    if IS_KERAS_3:
        accumulated = {"gradient_accumulation_steps": 2, **CLIPPED}
        dense = lambda gradients: [tf.convert_to_tensor(each) for each in gradients]  # noqa: E731
        require_alike(cut, whole, lambda: K.optimizers.SGD(0.5, **accumulated), clip=(dense, dense))


def check_a_scaled_loss_that_overflows_on_one_rank(cut: Cut, whole: Whole) -> None:
    def make(inner: Any = K.optimizers.SGD) -> Any:
        return K.mixed_precision.LossScaleOptimizer(
            inner(0.5, **CLIPPED), initial_scale=64.0, dynamic_growth_steps=2
        )

    require_alike(cut, whole, make, spoil=overflow)
    if not IS_KERAS_3:
        legacy = functools.partial(make, K.optimizers.legacy.SGD)
        require_alike(cut, whole, legacy, spoil=overflow)


def check_clip_by_global_norm(cut: Cut, whole: Whole) -> None:
    norms: list[Any] = []
    beside = len(cut.variables) - 1

    def of_cut(gradients: Any) -> Any:
        # The variable beside the model is on every rank: one of them counts it.
        counted = [
            each if place != beside or smp.mp_rank() == 0 else None
            for place, each in enumerate(gradients)
        ]
        _, norm = smp.clip_by_global_norm(counted, 0.1)
        return smp.clip_by_global_norm(gradients, 0.1, use_norm=norm)[0]

    def of_whole(gradients: Any) -> Any:
        found, norm = tf.clip_by_global_norm(gradients, 0.1)
        norms.append(norm)
        return found

    require_alike(cut, whole, lambda: K.optimizers.SGD(0.5), clip=(of_cut, of_whole))


def numbers_of(gradient: Any) -> Any:
    return tf.cast(getattr(gradient, "values", gradient), tf.float64).numpy()


def check_clipped_gradients(cut: Cut, whole: Whole) -> None:
    """Every kind of entry, eagerly and in a graph; the same bits on all ranks."""
    rank, size = smp.mp_rank(), smp.mp_size()
    kinds = [
        tf.fill([2, 2], tf.cast(rank + 1, tf.float32)),
        None,
        tf.IndexedSlices(tf.fill([2, 3], rank + 1.0), tf.constant([1, 1]), tf.constant([4, 3])),
        tf.cast(tf.fill([], rank + 1.0), tf.bfloat16),
        tf.zeros([0]),
        tf.cast(tf.fill([2], 300.0), tf.float16),  # whose squares overflow
    ]
    mine = [] if rank == 1 else kinds
    square = sum(11 * (each + 1) ** 2 + 180_000 for each in range(size) if each != 1)
    for call in (smp.clip_by_global_norm, tf.function(smp.clip_by_global_norm)):
        found, norm = call(mine, 2.0)
        np.testing.assert_allclose(norm, np.sqrt(square), rtol=1e-6)
        assert len(set(smp.allgather(np.asarray(norm).tobytes(), smp.MP_GROUP))) == 1
        assert [type(each) for each in found] == [type(each) for each in mine]
        for before, after in zip(mine, found, strict=True):
            if before is not None:
                assert (before.dtype, before.shape) == (after.dtype, after.shape)
                given, got = numbers_of(before), numbers_of(after)
                np.testing.assert_allclose(got, given * 2.0 / np.sqrt(square), rtol=1e-2)
    kept, norm = smp.clip_by_global_norm(mine[:1], 1e9)
    assert all((np.asarray(each) == rank + 1).all() for each in kept)
    zeros, norm = smp.clip_by_global_norm([tf.zeros([3], tf.float64)], tf.constant(1.0))
    assert (np.asarray(zeros[0]).tolist(), float(norm), norm.dtype) == ([0] * 3, 0, tf.float64)
    spoiled, norm = smp.clip_by_global_norm([tf.fill([1], np.inf if rank == 0 else 1.0)], 1.0)
    assert np.isinf(norm)
    assert np.isnan(spoiled[0]).all()
    assert "accumulate" in raised(TypeError, smp.clip_by_global_norm, iter([]), 1.0)
    step = smp.step(lambda x: smp.clip_by_global_norm([x], 1.0)[1])
    text = raised(Exception, step, np.ones((2, 1), np.float32))
    assert "was called in a step, where every microbatch would be clipped by itself" in text


def square_of(variable: Any) -> Any:
    return tf.nn.l2_loss(variable)


def check_losses_with_terms_over_variables(cut: Cut, whole: Whole) -> None:
    """Gradients are those of the whole sum; of the loss each rank has its own part."""
    decay = tf.Variable(0.03, trainable=False)

    def beside(loss: Any, variables: Any) -> Any:
        """The variable that all ranks have counts in the loss of each."""
        return loss + 0.02 * sum(square_of(each) for each in variables)

    def many(loss: Any, variables: Any) -> Any:
        squares = tf.add_n([decay * square_of(each) for each in variables])
        return 2.0 * (squares - (-loss) / 0.5) - 0.25

    def crossed(loss: Any, variables: Any) -> Any:
        return loss + sum(tf.reduce_sum(tf.abs(each)) ** 1.5 for each in variables[:-1]) * 0.01

    for penalty in (beside, many, crossed):
        require_alike(cut, whole, lambda: K.optimizers.SGD(0.05), penalty=penalty)

    def scaled() -> Any:
        return K.mixed_precision.LossScaleOptimizer(
            K.optimizers.SGD(0.5, **CLIPPED), initial_scale=64.0, dynamic_growth_steps=2
        )

    require_alike(cut, whole, scaled, spoil=overflow, penalty=many)
    begin(cut.variables)

    @smp.step
    def losses(x: Any, y: Any) -> Any:
        plain = loss_of(cut.model(x), y, cut.beside)
        loss = crossed(plain, cut.variables)
        K.optimizers.SGD(0.1).get_gradients(loss, cut.variables)
        return loss - plain, plain

    mine, plain = (float(each.reduce_mean()) for each in losses(IDS, LABELS))
    assert len(set(smp.allgather(plain, smp.MP_GROUP))) == 1
    begin(whole.variables)
    expected = crossed(0.0, [tf.convert_to_tensor(each) for each in whole.variables])
    np.testing.assert_allclose(sum(smp.allgather(mine, smp.MP_GROUP)), expected, rtol=1e-5)

    @smp.step
    def refused(x: Any, y: Any) -> Any:
        loss = tf.sqrt(cut.loss(x, y, many))
        return cut_optimizer.get_gradients(loss, cut.variables)

    @smp.step
    def shared(x: Any, y: Any) -> Any:
        loss = cut.loss(x, y, no_penalty)
        loss += sum(cut.beside * square_of(each) for each in cut.variables[:-1])
        return cut_optimizer.get_gradients(loss, cut.variables)

    def total(variables: Any) -> Any:
        return sum((square_of(each) for each in variables), 0.0)

    def root(variables: Any) -> Any:
        return tf.sqrt(total(variables))

    def weighted(variables: Any) -> Any:
        return total(variables) / (len(variables) + 1)

    def all_but_the_last(variables: Any) -> Any:
        return total(variables[:-1])

    cut_optimizer = K.optimizers.SGD(0.1)

    @smp.step
    def not_recorded(x: Any, y: Any) -> Any:
        variables = cut.model.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            plain = cut.loss(x, y, no_penalty)
            with tape.stop_recording():
                constant = 0.5 * total(variables)
                constant -= 2.0 * tf.stop_gradient(total(variables))
            loss = plain + constant
        return [tape.gradient(each, variables) for each in (plain, loss)]

    for one, other in zip(*not_recorded(IDS, LABELS), strict=True):
        one, other = one.accumulate(), other.accumulate()
        np.testing.assert_array_equal(tf.convert_to_tensor(one), tf.convert_to_tensor(other))

    for other_than_in_one_process in (root, weighted, all_but_the_last):

        @smp.step
        def of_the_list(x: Any, y: Any, penalty: Any) -> Any:
            variables = cut.model.trainable_variables
            loss = cut.loss(x, y, no_penalty) + 0.01 * penalty(variables)
            return cut_optimizer.get_gradients(loss, variables)

        text = raised(Exception, of_the_list, IDS, LABELS, other_than_in_one_process)
        assert "which are not those that it has in one process" in text, text

    text = raised(Exception, shared, IDS, LABELS)
    assert "A term of the loss depends on beside" in text, text
    text = raised(Exception, refused, IDS, LABELS)
    assert "ranks of one replica have traced different steps" in text
    assert "as model.trainable_variables does: terms over these may be added" in text


def check_the_penalty_of_the_guide(cut: Cut, whole: Whole) -> None:
    """Over the model's variables alone, where these are too large to be made again unasked."""
    optimizer = K.optimizers.SGD(0.1)

    @smp.step
    def gradients(x: Any, y: Any) -> Any:
        variables = cut.model.trainable_variables
        loss = loss_of(cut.model(x), y, 1.0) + 1e-4 * sum(tf.nn.l2_loss(v) for v in variables)
        return optimizer.get_gradients(loss, variables), loss

    with mock.patch.object(reading, "_SMALL", 1):
        found, _ = gradients(IDS, LABELS)
    assert len(found) == len(cut.model.trainable_variables)


def check_mixed_precision(cut: Cut, whole: Whole) -> None:
    """The scale comes down from where 16 bits overflow, on all ranks in the same steps."""
    rank, size = smp.mp_rank(), smp.mp_size()
    smp.reset()
    K.mixed_precision.set_global_policy("mixed_float16")
    try:
        with around_checks(rank, size) as (half, plain):
            mine = require_alike(
                half,
                plain,
                lambda: K.mixed_precision.LossScaleOptimizer(
                    K.optimizers.SGD(0.1, **CLIPPED), initial_scale=2.0**20
                ),
                rtol=1e-3,
            )
            assert 1 < scale_of(mine) < 2.0**20
    finally:
        K.mixed_precision.set_global_policy("float32")
