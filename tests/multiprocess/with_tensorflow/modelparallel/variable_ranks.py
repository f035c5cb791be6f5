# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process of test_variables.py."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from with_tensorflow.tf_ranks import no_job, raised

from smdistributed.dataparallel.tensorflow import patching
from smdistributed.modelparallel.tensorflow.variables import (
    Book,
    Record,
    State,
    VariableElsewhereError,
    VariableWithoutValueError,
    is_elsewhere,
    mark_elsewhere,
    raw,
    tracing,
    without_values,
)

K = tf.keras
IS_KERAS_3 = not K.Model.__module__.startswith("tf_keras")
around_checks = no_job


class Small(K.Model):
    """Of every kind of variable one."""

    def __init__(self, in_reverse: bool = False) -> None:
        super().__init__(name="small")
        makers = {
            "conv": lambda: K.layers.Conv2D(4, 3, name="conv"),
            "norm": lambda: K.layers.BatchNormalization(name="norm"),
            "dropout": lambda: K.layers.Dropout(0.5, name="dropout"),
            "table": lambda: K.layers.Embedding(7, 6, name="table"),
            "gru": lambda: K.layers.GRU(4, name="gru"),
            "lstm": lambda: K.layers.LSTM(4, name="lstm"),
            "attention": lambda: K.layers.MultiHeadAttention(2, 3, name="attention"),
            "layer_norm": lambda: K.layers.LayerNormalization(name="layer_norm"),
            "inner": lambda: K.Sequential(
                [K.layers.Input((8,)), K.layers.Dense(3, name="in_inner")], name="inner"
            ),
            "custom": lambda: Custom(name="custom"),
        }
        for name in reversed(makers) if in_reverse else makers:
            setattr(self, name, makers[name]())
        self.flatten = K.layers.Flatten()
        self.head = K.layers.Dense(3, name="head")
        self.seen = K.metrics.Mean(name="seen")
        self.optimizer_inside = K.optimizers.Adam(0.5)

    def call(self, images: Any, training: bool = True) -> Any:
        x = self.flatten(self.norm(self.conv(images), training=training))
        y = self.table(tf.cast(images[:, :3, 0, 0] * 6, tf.int32))
        y = self.layer_norm(self.attention(y, y))
        y = tf.concat([self.gru(y), self.lstm(y)], -1)
        return self.custom(self.dropout(self.head(x), training=training) + self.inner(y))


class Custom(K.layers.Layer):
    """Its own variables, by all ways that scripts have."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.of_a_function = tf.Variable(
            lambda: tf.random.normal([3]), trainable=True, name="of_a_function"
        )
        self.of_a_tensor = tf.Variable(tf.ones([3]), trainable=True, name="of_a_tensor")

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(
            name="scale", shape=(3,), initializer=K.initializers.RandomNormal(), trainable=True
        )
        self.zero_d = self.add_weight(name="zero_d", shape=(), initializer="ones")
        self.frozen = self.add_weight(
            name="frozen", shape=(2,), initializer="zeros", trainable=False, dtype="int32"
        )
        super().build(shape)

    def call(self, x: Any) -> Any:
        return x * self.scale * self.zero_d + self.of_a_function * self.of_a_tensor


IMAGES = np.linspace(0, 1, 2 * 6 * 6 * 1, dtype=np.float32).reshape(2, 6, 6, 1)


def made(
    book: Book,
    make: Callable[[], Any] = Small,
    shape: Any = (None, 6, 6, 1),
    with_gradients: bool = False,
) -> Any:
    """A model that was made and traced without values, and the trace: loss, and gradients."""
    with without_values(book):
        model = make()

        def step(images: Any) -> Any:
            loss = tf.reduce_sum(tf.square(model(images)))
            variables = [raw(each) for each in model.trainable_variables]
            return [loss, *(tf.gradients(loss, variables) if with_gradients else [])]

        with tracing():
            traced = tf.compat.v1.wrap_function(step, [tf.TensorSpec(shape)])
    return model, traced


def with_fresh_names() -> None:
    """Names of Keras begin as in a new process. Makes Keras 3 forget its seed."""
    K.backend.clear_session()


def values(book: Book) -> dict[str, bytes]:
    """By path, the bits of the values that are here."""
    found: dict[str, bytes] = {}
    for record in book.records:
        if record.raw.state is State.HERE:
            assert record.path not in found, record.path
            found[record.path] = record.raw.numpy().tobytes()
    return found


def forget_seeds() -> None:
    tf.random.set_seed(None)
    if IS_KERAS_3:
        from keras.src.backend.common import global_state

        global_state.set_global_attribute("global_random_seed", None)
    else:
        from tf_keras.src import backend

        backend._SEED_GENERATOR.generator = None


def resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Wide(K.Model):
    def __init__(self) -> None:
        super().__init__(name="wide")
        self.first = K.layers.Dense(8000, name="first")
        self.last = K.layers.Dense(2, name="last")

    def call(self, x: Any) -> Any:
        return self.last(self.first(x))


def check_building_and_tracing_take_no_memory(rank: int, size: int) -> None:
    made(Book(0), with_gradients=True)  # what TensorFlow itself loads and compiles
    book = Book(0)
    before = resident_mib()
    model, _ = made(book, Wide, (None, 8000), with_gradients=True)
    grown = resident_mib() - before
    assert sum(record.nbytes for record in book.records) > 244 * 2**20
    assert grown < 8, grown

    before = resident_mib()
    book.allocate(lambda record: "first/kernel" not in record.path)
    K.optimizers.Adam().build(
        [each for each in model.trainable_variables if not is_elsewhere(each)]
    )
    grown = resident_mib() - before
    assert grown < 8, grown


def check_memory_of_a_value_that_was_assigned_is_freed(rank: int, size: int) -> None:
    book = Book(0)
    model, _ = made(book, Wide, (None, 8000))
    before = resident_mib()
    model.first.kernel.assign(tf.ones([8000, 8000]))
    assert resident_mib() - before > 200
    book.allocate(lambda record: "first/kernel" not in record.path)
    dropped = resident_mib()
    again = tf.ones([8000, 8000])  # finds its place, though the system may not have it back
    assert resident_mib() - min(dropped, before + 244) < 24, (before, dropped, resident_mib())
    del again


def check_what_is_recorded(rank: int, size: int) -> None:
    book = Book(0)
    model, _ = made(book)
    by_path = {record.path: record for record in book.records}
    assert len(by_path) == len(book.records), book.records
    expected = {id(raw(each)) for each in model.variables} - {
        id(raw(each)) for each in model.seen.variables
    }
    recorded = {id(record.raw) for record in book.records}
    # Keras does not know of a tf.Variable in a layer (Keras 3), and has the metrics' variables.
    assert expected <= recorded, by_path
    assert len(recorded - expected) == (2 if IS_KERAS_3 else 0)

    kernel = book.record_of(model.conv.kernel)
    assert kernel is not None
    assert kernel.path.endswith("conv/kernel")
    assert (kernel.shape, kernel.dtype, kernel.nbytes) == ([3, 3, 1, 4], tf.float32, 144)
    assert kernel.trainable
    assert kernel.variable is model.conv.kernel
    assert kernel.raw.state is State.WITHOUT_VALUE
    assert book.record_of(kernel.raw) is book.record_of(kernel.raw.handle) is kernel
    assert book.record_of(tf.Variable(1.0)) is None
    frozen = book.record_of(model.custom.frozen)
    assert frozen is not None
    assert (frozen.dtype, frozen.shape, frozen.trainable) == (tf.int32, [2], False)
    zero_d = book.record_of(model.custom.zero_d)
    assert zero_d is not None
    assert (zero_d.shape, zero_d.nbytes) == ([], 4)
    mean = book.record_of(model.norm.moving_mean)
    assert mean is not None
    assert not mean.trainable
    seeds = [path for path in by_path if "seed_generator" in path]
    assert bool(seeds) == IS_KERAS_3

    assert model.count_params() == sum(
        int(np.prod(each.shape)) for each in model.weights if "seed" not in each.name
    )
    model.summary(print_fn=lambda *_, **__: None)
    assert "conv" in repr(model.conv.kernel)


def check_metrics_and_optimizers_work(rank: int, size: int) -> None:
    class Counting(K.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="counting")
            self.count = tf.Variable(lambda: 2.0)

        def update_state(self, *_: Any, **__: Any) -> None:
            self.count.assign_add(1.0)

        def result(self) -> Any:
            return self.count.read_value()

    book = Book(0)
    with without_values(book):
        mean, counting = K.metrics.Mean(), Counting()
        optimizer = K.optimizers.Adam(0.5)
        other = tf.Variable([1.0, 2.0])
        gradient_free = [tf.Variable(3.0, name="taught")]
        own = len(book.records)

        @tf.function
        def update() -> Any:
            accuracy.update_state([1], [1])
            return accuracy.result()

        accuracy = K.metrics.MeanIoU(2)
        mean.update_state([1.0, 3.0])
        counting.update_state()
        assert float(update()) > 0.99
    assert float(mean.result()) == 2.0
    assert float(counting.result()) == 3.0
    assert float(np.array(optimizer.learning_rate)) == 0.5
    assert len(book.records) == own == 2  # the two that belong to nobody
    book.allocate(lambda record: True)
    assert other.numpy().tolist() == [1, 2]
    optimizer.apply_gradients([(tf.constant(1.0), gradient_free[0])])
    assert abs(float(gradient_free[0]) - 2.5) < 1e-3


def check_values_do_not_depend_on_who_owns_them(rank: int, size: int) -> None:
    forget_seeds()

    def drawn(owns: Callable[[int, Record], bool], **kwargs: Any) -> dict[str, bytes]:
        random.seed(os.urandom(8))  # ranks are not seeded alike
        with_fresh_names()
        book = Book(5)
        made(book, lambda: Small(**kwargs))
        numbers = {id(record): number for number, record in enumerate(book.records)}
        book.allocate(lambda record: owns(numbers[id(record)], record))
        return values(book)

    whole = drawn(lambda number, _: True)
    halves = [drawn(lambda number, _, half=half: number % 2 == half) for half in (0, 1)]  # type: ignore[misc]
    assert not set(halves[0]) & set(halves[1])
    together = {**halves[0], **halves[1]}
    changed = [path for path in whole if together.get(path) != whole[path]]
    assert not changed, changed
    assert together.keys() == whole.keys()
    assert drawn(lambda number, _: True, in_reverse=True) == whole
    with_fresh_names()
    other = Book(6)
    made(other)
    other.allocate(lambda record: True)
    different = [path for path, bits in values(other).items() if bits != whole[path]]
    assert any("conv/kernel" in path for path in different)
    assert any("of_a_function" in path for path in different)
    assert not any("norm" in path for path in different)
    assert any("seed_generator" in path for path in different) == IS_KERAS_3
    kernels = [bits for path, bits in whole.items() if path.endswith("kernel")]
    assert len(set(kernels)) == len(kernels)


def check_a_seed_of_keras_counts_on_other_threads(rank: int, size: int) -> None:
    """Keras keeps by thread that it is seeded. Until 2026-11 such a build drew other values."""

    def values_of(model: Any, build: Callable[[], Any]) -> list[bytes]:
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
        return [np.array(each).tobytes() for each in model.weights]

    def first() -> None:
        with without_values(book), tracing():
            tf.compat.v1.wrap_function(lambda x: ours(x), [tf.TensorSpec((None, 6, 6, 1))])
        book.allocate(lambda record: True)

    def make() -> Any:
        return K.Sequential([K.layers.Flatten(), K.layers.Dense(4), K.layers.Dense(3)])

    K.utils.set_random_seed(3)
    plain = make()
    expected = values_of(plain, lambda: plain(IMAGES))
    K.utils.set_random_seed(3)
    book = Book(5)
    with without_values(book):
        ours = make()
    assert values_of(ours, first) == expected


def check_variables_of_one_name_are_drawn_apart(rank: int, size: int) -> None:
    forget_seeds()
    book = Book(5)
    with without_values(book):
        for _ in range(2):
            tf.Variable(lambda: tf.random.normal([4]), name="w")
    book.allocate(lambda record: True)
    first, second = book.records
    assert first.path == second.path == "w"
    assert first.raw.numpy().tolist() != second.raw.numpy().tolist()


def check_seeds_of_the_script_count(rank: int, size: int) -> None:
    def plain(make: Callable[[], Any]) -> list[Any]:
        model = make()
        model(IMAGES, training=False)
        return [np.array(each) for each in model.weights if "of_a_function" not in each.name]

    def ours(make: Callable[[], Any]) -> list[Any]:
        book = Book(5)
        model, _ = made(book, make)
        book.allocate(lambda record: True)
        return [np.array(each) for each in model.weights if "of_a_function" not in each.name]

    forget_seeds()
    with_fresh_names()
    K.utils.set_random_seed(3)
    expected = plain(Small)
    K.utils.set_random_seed(3)
    for here, there in zip(ours(Small), expected, strict=True):
        np.testing.assert_array_equal(here, there)
    forget_seeds()
    assert any((here != there).any() for here, there in zip(ours(Small), expected, strict=True))

    def seeded() -> Any:
        initializer = K.initializers.HeNormal(seed=11)
        return K.Sequential(
            [K.layers.Flatten(), K.layers.Dense(3, kernel_initializer=initializer)], name="seeded"
        )

    assert plain(seeded)[0].tolist() == ours(seeded)[0].tolist()

    with_fresh_names()
    tf.random.set_seed(9)
    first = ours(Small)
    with_fresh_names()
    tf.random.set_seed(9)
    for here, there in zip(ours(Small), first, strict=True):
        np.testing.assert_array_equal(here, there)
    forget_seeds()


def check_drawing_leaves_the_script_s_generators_alone(rank: int, size: int) -> None:
    forget_seeds()
    K.utils.set_random_seed(1)
    tf.random.normal([2])
    book = Book(5)
    made(book)
    states = random.getstate(), np.random.get_state()[1].tolist()
    book.allocate(lambda record: True)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    following = tf.random.normal([2]).numpy()
    tf.random.set_seed(1)
    tf.random.normal([2])
    assert tf.random.normal([2]).numpy().tolist() == following.tolist()
    forget_seeds()


def check_values_that_were_assigned_count(rank: int, size: int) -> None:
    book = Book(0)
    model, _ = made(book)
    model.head.bias.assign([1.0, 2.0, 3.0])
    assert model.head.bias.numpy().tolist() == [1, 2, 3]
    model.head.bias.assign_add([1.0, 1.0, 1.0])
    model.inner.set_weights([np.full((8, 3), 7.0), np.full(3, 8.0)])
    elsewhere = model.conv.bias
    elsewhere.assign(tf.ones([4]))
    book.allocate(lambda record: record.variable is not elsewhere)
    assert model.head.bias.numpy().tolist() == [2, 3, 4]
    assert float(model.inner.get_weights()[0][0, 0]) == 7.0
    raised(VariableElsewhereError, elsewhere.numpy)
    # Once more is no harm.
    book.allocate(lambda record: pytest.fail("asked again"))

    whole = Book(1)
    source, _ = made(whole)
    whole.allocate(lambda record: True)
    with tempfile.TemporaryDirectory() as folder:
        source.save_weights(f"{folder}/all.weights.h5")
        loaded_book = Book(2)
        loaded, _ = made(loaded_book)
        loaded.load_weights(f"{folder}/all.weights.h5")
        loaded_book.allocate(lambda record: True)
        assert loaded.conv.kernel.numpy().tolist() == source.conv.kernel.numpy().tolist()

        path = tf.train.Checkpoint(model=source).write(f"{folder}/ckpt")
        restored_book = Book(3)
        restored, _ = made(restored_book)
        tf.train.Checkpoint(model=restored).read(path).expect_partial()
        restored_book.allocate(lambda record: True)
        assert restored.conv.kernel.numpy().tolist() == source.conv.kernel.numpy().tolist()


def check_state_that_begins_with_a_constant_may_be_read(rank: int, size: int) -> None:
    book = Book(0)
    with without_values(book):
        normalization = K.layers.Normalization()  # it reads its mean while it is built
        inputs = K.Input((2,))
        model = K.Model(inputs, K.layers.Dense(3, use_bias=True)(normalization(inputs)))
    dense = model.layers[-1]
    for trained in (dense.kernel, dense.bias):
        raised(VariableWithoutValueError, trained.numpy)
    book.allocate(lambda record: True)
    found = model(tf.constant([[2.0, 3.0]]))
    expected = tf.matmul([[2.0, 3.0]], raw(dense.kernel))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def check_state_that_begins_with_a_constant_is_taken_away(rank: int, size: int) -> None:
    book = Book(0)
    with without_values(book):
        norm = K.layers.BatchNormalization()
        norm.build((None, 2))
    np.testing.assert_array_equal(norm.moving_variance.numpy(), [1.0, 1.0])
    book.allocate(lambda record: False)
    raised(VariableElsewhereError, norm.moving_variance.numpy)


def check_variables_that_were_made_before_may_be_adopted(rank: int, size: int) -> None:
    dense = K.layers.Dense(2, use_bias=False, name="before")
    dense.build((None, 2))
    dense.kernel.assign([[1.0, 2.0], [3.0, 4.0]])
    plain, other = tf.Variable(5.0, name="plain"), tf.Variable(6, name="other")
    book = Book(0)
    for variable in (dense.kernel, plain, other, plain):
        book.adopt(variable)
    assert len(book.records) == 3
    assert [record.nbytes for record in book.records] == [16, 4, 4]
    assert float(plain) == 5.0, "it has its value until the decision"
    book.allocate(lambda record: record.raw is not plain)
    np.testing.assert_array_equal(dense(tf.eye(2)), [[1.0, 2.0], [3.0, 4.0]])
    plain_path = raised(VariableElsewhereError, plain.numpy).split()[0]
    assert plain_path == "plain", plain_path
    mark_elsewhere(other, 1, 3)
    assert "rank 3" in raised(VariableElsewhereError, lambda: other.assign(1))
    dense.kernel.assign_add(tf.ones([2, 2]))
    assert float(dense.kernel.numpy()[1, 1]) == 5.0


def check_reads_of_what_has_no_value(rank: int, size: int) -> None:
    book = Book(0)
    model, _ = made(book)
    kernel, bias = model.head.kernel, model.head.bias

    @tf.function
    def in_a_function() -> Any:
        return kernel + 1.0

    @tf.function
    def assigned_in_a_function() -> Any:
        return bias.assign([1.0, 2.0, 3.0])

    reads: list[Callable[[], Any]] = [
        lambda: kernel.numpy(),
        lambda: np.array(kernel),
        lambda: raw(kernel).read_value(),
        lambda: raw(kernel).value(),
        lambda: raw(kernel).sparse_read([0]),
        lambda: raw(kernel).gather_nd([[0, 0]]),
        lambda: tf.gather(kernel, [0]),
        lambda: tf.identity(kernel),
        lambda: kernel + 1.0,
        lambda: model.head.get_weights(),
        lambda: model.head(tf.zeros([1, 64])),
        lambda: kernel.assign_add(tf.zeros_like(IMAGES[0, 0, 0, 0]) + tf.zeros(kernel.shape)),
        lambda: raw(kernel).scatter_update(tf.IndexedSlices([[1.0, 2.0, 3.0]], [0])),
        lambda: in_a_function(),
        lambda: tf.train.Checkpoint(v=raw(kernel)).write(tempfile.gettempdir() + "/at_all"),
        lambda: K.optimizers.Adam().build([kernel]),
    ]
    for number, read in enumerate(reads):
        text = raised(VariableWithoutValueError, read)
        assert "head/kernel" in text, (number, text)
        assert "call one first" in text
    raised(VariableWithoutValueError, assigned_in_a_function)
    assert raw(bias).state is State.WITHOUT_VALUE
    assert not is_elsewhere(kernel)

    book.allocate(lambda record: record.raw is not raw(kernel) and record.raw is not raw(bias))
    assert "on another rank" in raised(VariableElsewhereError, reads[0])
    mark_elsewhere(kernel, 1, 3)
    mark_elsewhere(bias, 1, 3)
    assert is_elsewhere(kernel)
    assert not is_elsewhere(model.conv.kernel)
    for number, read in enumerate([*reads, lambda: kernel.assign(tf.zeros(kernel.shape))]):
        text = raised(VariableElsewhereError, read)
        assert "head/kernel is on rank 3 (partition 1)" in text, (number, text)
        assert "if smp.pp_rank() == 1:" in text
    raised(VariableElsewhereError, assigned_in_a_function)
    raised(VariableElsewhereError, model.get_weights)
    with tracing():
        raised(VariableElsewhereError, reads[0])  # eagerly
        tf.function(lambda: tf.identity(kernel)).get_concrete_function()
    raised(VariableElsewhereError, tf.function(lambda: tf.identity(kernel)).get_concrete_function)
    assert model.count_params() > 0
    model.summary(print_fn=lambda *_, **__: None)
    raised(ValueError, mark_elsewhere, tf.Variable(1.0), 0, 0)
    assert not is_elsewhere(tf.constant(1.0))


def check_training_is_that_of_a_plain_model(rank: int, size: int) -> None:
    book = Book(4)
    model, traced = made(book, with_gradients=True)
    book.allocate(lambda record: True)
    plain = Small()
    plain(IMAGES)
    pairs = list(zip(plain.trainable_variables, model.trainable_variables, strict=True))
    for there, here in zip(plain.variables, model.variables, strict=True):
        there.assign(here.numpy())
    plain.custom.of_a_function.assign(model.custom.of_a_function)  # not in Keras 3's list

    def gradients(of: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(of(IMAGES, training=False)))
        return tape.gradient(loss, [raw(each) for each in of.trainable_variables])

    optimizers = {id(model): K.optimizers.Adam(0.1), id(plain): K.optimizers.Adam(0.1)}
    for _ in range(2):
        for each in (model, plain):
            found = zip(gradients(each), each.trainable_variables, strict=True)
            optimizers[id(each)].apply_gradients(found)
    for there, here in pairs:
        np.testing.assert_allclose(here.numpy(), there.numpy(), rtol=1e-5, atol=1e-6)
    outputs = traced(tf.constant(IMAGES))
    assert len(outputs) == 1 + len(model.trainable_variables)
    assert outputs[1].shape == model.trainable_variables[0].shape


def check_variables_of_all_kinds(rank: int, size: int) -> None:
    book = Book(0)
    with without_values(book):
        flag = tf.Variable(True, trainable=False)
        text = tf.Variable("text", trainable=False)
        empty = tf.Variable(lambda: tf.zeros([0, 3]))
        half = tf.Variable(lambda: tf.zeros([2], tf.bfloat16) + 1)
        grows = tf.Variable(lambda: [1.0], shape=tf.TensorShape([None]))
        source = tf.Variable(lambda: tf.fill([2], 3.0), name="source")
        twice = tf.Variable(lambda: source * 2)
        integers = tf.Variable(lambda: np.arange(3), dtype=tf.int64, trainable=False)
        old = tf.compat.v1.Variable(lambda: [5.0])
        given = tf.Variable(np.float64(2.0))

        @tf.function
        def made_in_a_function() -> Any:
            if not kept:
                kept.append(tf.Variable(lambda: tf.ones([2])))
                kept.append(tf.Variable([7.0]))
            return tf.constant(0)

        kept: list[Any] = []
        made_in_a_function()
        with tf.__internal__.FuncGraph("build").as_default():
            placeholder = tf.compat.v1.placeholder(tf.float32, [2])
            assert "lambda" in raised(ValueError, tf.Variable, placeholder * 2)
            constant = (K.Variable if IS_KERAS_3 else tf.Variable)(0.5, name="constant")
            taken = tf.Variable(tf.fill([2], 4.0))
    elsewhere = tf.Variable(1.0)
    assert [record.raw for record in book.records][-4:-2] == kept
    assert all(record.raw is not elsewhere for record in book.records)
    assert (empty.shape, half.dtype, grows.shape) == ([0, 3], tf.bfloat16, [None])
    raised(VariableWithoutValueError, half.numpy)
    book.allocate(lambda record: True)
    assert bool(flag.numpy())
    assert (float(constant), taken.numpy().tolist()) == (0.5, [4, 4])
    assert text.numpy() == b"text"
    assert empty.numpy().shape == (0, 3)
    assert half.numpy().tolist() == [1, 1]
    assert grows.assign([1.0, 2.0]).numpy().tolist() == [1, 2]
    assert twice.numpy().tolist() == [6, 6]
    assert integers.numpy().tolist() == [0, 1, 2]
    assert old.numpy().tolist() == [5]
    assert (given.dtype, float(given)) == (tf.float64, 2.0)
    assert [each.numpy().tolist() for each in kept] == [[1, 1], [7]]


def check_mixed_precision(rank: int, size: int) -> None:
    K.mixed_precision.set_global_policy("mixed_float16")
    try:
        book = Book(0)
        model, _ = made(book, lambda: K.Sequential([K.layers.Flatten(), K.layers.Dense(2)]))
        layer = model.layers[1]
        record = book.record_of(layer.kernel)
        assert record is not None
        assert record.dtype == tf.float32
        assert raw(layer.kernel) is record.raw
        book.allocate(lambda each: each is record)
        mark_elsewhere(layer.bias, 0, 2)
        assert is_elsewhere(layer.bias)
        assert layer.kernel.numpy().dtype == np.float32
        raised(VariableElsewhereError, layer, tf.zeros([1, 36]))
    finally:
        K.mixed_precision.set_global_policy("float32")


def check_other_threads_are_left_alone(rank: int, size: int) -> None:
    found: list[Any] = []
    with without_values(Book(0)):
        thread = threading.Thread(target=lambda: found.append(tf.Variable([1.0]).numpy()))
        thread.start()
        thread.join()
    assert [each.tolist() for each in found] == [[1.0]]
    assert K.layers.Dense(2)(tf.zeros([1, 2])).shape == [1, 2]


def is_marked(owner: Any, name: str) -> bool:
    attribute = vars(owner).get(name)
    return hasattr(getattr(attribute, "fget", attribute), patching.MARK)


def check_patches_may_be_removed(rank: int, size: int) -> None:
    with without_values(Book(0)):
        pass
    patching.REMEDIES.remove()
    changed = patching.RULES.changed()
    assert changed
    assert all(is_marked(owner, name) for owner, name in changed)
    patching.RULES.remove()
    assert not any(is_marked(owner, name) for owner, name in changed)
    patching.RULES.allow()
    book = Book(0)
    made(book)  # puts them back
    assert book.records
