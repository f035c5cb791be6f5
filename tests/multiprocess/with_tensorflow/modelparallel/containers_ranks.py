# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Of a rank: arguments of step functions and their results, with TensorFlow."""

from __future__ import annotations

import collections
import gc
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from smdistributed.modelparallel.tensorflow.containers.arguments import (
    ArgumentSplitter,
    BoundCall,
)
from smdistributed.modelparallel.tensorflow.containers.results import TracedResults, gather_outputs
from smdistributed.modelparallel.tensorflow.containers.step_output import StepOutput
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.unit.modelparallel.containers import rules

__all__ = ["around_checks"]

N = 4


def rows(count: int = 8, width: int = 3, dtype: Any = tf.float32) -> tf.Tensor:
    """Each element tells its row and column."""
    return tf.cast(np.arange(count)[:, None] * 100 + np.arange(width), dtype)


def step(images: Any, *rest: Any, **options: Any) -> None:
    """The step function of most checks."""


def bind(*args: Any, count: int = N, **options: Any) -> BoundCall:
    return ArgumentSplitter(step, **options).bind(args, {}, count)


def microbatches(call: BoundCall) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    return [call.rebuild(call.pieces(number)) for number in range(call.microbatches)]


class Pair(NamedTuple):
    first: Any
    second: Any


class Settings(collections.UserDict[str, Any]):
    pass


class Opaque:
    pass


class Boxes:
    """Cuts itself."""

    def __init__(self, table: Any, note: Any = "same") -> None:
        self.table, self.note = table, note

    def smp_slice(self, num_mb: int, mb: int, axis: int) -> Any:
        note = self.note if isinstance(self.note, str) else self.note[mb]
        return {"boxes": self.table[mb::num_mb], "note": note}


# ---- cutting -------------------------------------------------------------------------------------


def check_pieces_of_eager_tensors(rank: int, size: int) -> None:
    x = rows()
    call = bind({"ids": x, "more": [Pair(x, 1)]}, x[:, 0])
    assert [each.shape.as_list() for each in call.specs] == [[2, 3], [2, 3], [2]]
    assert call.axes == [0, 0, 0]
    for number, (args, _) in enumerate(microbatches(call)):
        np.testing.assert_array_equal(args[0]["ids"], x[2 * number : 2 * number + 2])
        assert type(args[0]["more"][0]) is Pair
        assert args[0]["more"][0].second == 1
        np.testing.assert_array_equal(args[1], x[2 * number : 2 * number + 2, 0])
    wide = bind(rows(3, 8), count=4, input_split_axes={"images": -1})
    assert wide.specs[0].shape.as_list() == [3, 2]
    np.testing.assert_array_equal(tf.concat([wide.pieces(i)[0] for i in range(4)], 1), rows(3, 8))


def check_dtypes_and_sizes(rank: int, size: int) -> None:
    for dtype in (tf.bool, tf.bfloat16, tf.float16, tf.uint8, tf.uint64, tf.complex64, tf.qint8):
        call = bind(tf.zeros(8, tf.int32) if dtype == tf.qint8 else tf.zeros(8, dtype))
        assert [call.pieces(i)[0].shape for i in range(N)] == [(2,)] * N
    assert bind(tf.constant(list("abcdefgh"))).pieces(1)[0].numpy().tolist() == [b"c", b"d"]
    assert bind(tf.zeros((0, 3))).pieces(3)[0].shape == (0, 3)
    x = rows(7)
    assert bind(x, count=1).pieces(0)[0] is x
    scalar = tf.constant(3.0)
    assert bind(scalar).pieces(2)[0] is scalar
    assert bind(scalar).axes == [None]


def check_arrays_become_tensors(rank: int, size: int) -> None:
    call = bind(np.arange(8), np.float32(2))
    assert [each.dtype for each in call.specs] == [tf.int64, tf.float32]
    assert call.signature == bind(np.arange(8) + 1, np.float32(3)).signature
    with pytest.raises(TypeError, match=r"Argument images of step is a ndarray .*no tensor"):
        bind(np.array([Opaque()] * 4))


def check_sizes_that_do_not_divide(rank: int, size: int) -> None:
    words = r"images: 30 elements along axis 0 .*by 4 microbatches.*drop_remainder=True"
    with pytest.raises(ValueError, match=words):
        bind(rows(30))
    with pytest.raises(ValueError, match=r"^images\['k'\]\[1\]: 6 elements"):
        bind({"k": (rows(), rows(6))})
    with pytest.raises(ValueError, match=r"Argument images of step .*no axis 2"):
        bind(rows(), input_split_axes={"images": 2})
    assert bind(rows(30), non_split_inputs=["images"]).pieces(0)[0].shape == (30, 3)

    # In a graph: known when it is traced, or when it runs.
    @tf.function
    def traced(x: tf.Tensor) -> Any:
        call = bind(x)
        assert call.specs[0].shape.as_list() == [x.shape[0] and x.shape[0] // N, 3]
        found = [call.pieces(i)[0] for i in range(N)]
        assert all(piece.shape.as_list() == call.specs[0].shape.as_list() for piece in found)
        return found

    assert [piece.shape for piece in traced(rows())] == [(2, 3)] * N
    with pytest.raises(ValueError, match=words):
        traced(rows(30))
    unknown = traced.get_concrete_function(tf.TensorSpec([None, 3]))
    np.testing.assert_array_equal(tf.concat(unknown(rows()), 0), rows())
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        unknown(rows(30))

    # Bound while it was not known, cut when it is.
    with tf.Graph().as_default():
        later = bind(tf.compat.v1.placeholder(tf.float32, [None, 3]), 7)
        no_rank = tf.compat.v1.placeholder(tf.float32)
        with pytest.raises(ValueError, match=r"Argument images of step has no known number"):
            bind(no_rank)
        assert bind(no_rank, non_split_inputs=["images"]).specs[0].shape.rank is None
    (second,) = later.cut([rows()])[1]
    np.testing.assert_array_equal(second, rows()[2:4])
    with pytest.raises(ValueError, match=words):
        later.cut([rows(30)])
    with pytest.raises(ValueError, match="2 tensors were given to a call of 1"):
        later.cut([rows(), rows()])
    assert later.describe() == ["images: float32 (None, 3)"]
    assert bind([rows(), 1], 2).describe() == ["images[0]: float32 (8, 3)"]


# ---- signatures ----------------------------------------------------------------------------------


def check_equal_signatures(rank: int, size: int) -> None:
    model = tf.Module()
    same = [
        (rows(), 1, "a", None, model, {"x": [0.5, float("nan")]}),
        (rows() + 1, 1, "a", None, model, {"x": [0.5, float("nan")]}),
    ]
    one, other = (bind(*args).signature for args in same)
    assert one == other
    assert hash(one) == hash(other)
    assert bind(model.with_name_scope).signature == bind(model.with_name_scope).signature
    assert bind(slice(1, 2), tf.float32).signature == bind(slice(1, 2), tf.float32).signature


def check_different_signatures(rank: int, size: int) -> None:
    values = [
        *(1, True, 1.0, 0, 0.0, -0.0, False, None, "a", b"a", 1j, ..., int),
        *(tf.Module(), tf.Module(), Opaque(), Opaque(), tf.float32, tf.int32, slice(1), range(2)),
        *([1], (1,), {1: 1}, {True: 1}, {"a": 1}, Settings(a=1), Settings(a=2), [], [[]]),
        *(rows(), rows(4), rows(8, 4), rows(dtype=tf.int32), rows(8)[:, 0], [rows()]),
        *(tf.constant(1.0), tf.constant(1), tf.Variable(1.0), tf.TensorShape([1])),
    ]
    signatures = [bind(value).signature for value in values]
    for index, signature in enumerate(signatures):
        assert signatures.index(signature) == index, values[index]
    assert len(set(signatures)) == len(values)
    assert bind(rows(), count=2).signature != bind(rows()).signature
    whole = bind(rows(2), non_split_inputs=["images"]).signature
    assert whole != bind(rows()).signature


def check_objects_are_not_kept(rank: int, size: int) -> None:
    signature = bind(Opaque()).signature
    gc.collect()
    assert not any(isinstance(each, Opaque) for each in gc.get_objects())
    assert signature != bind(Opaque()).signature


def check_tensors_are_inputs_wherever_they_are(rank: int, size: int) -> None:
    scale = tf.constant(2.0)
    settings = Settings(rate=0.1, scale=scale)
    settings.seen = [tf.range(3)]
    call = bind(settings, [scale], non_split_inputs=["rest"])
    assert call.axes == [None] * 3
    ((again, _), _) = call.rebuild([tf.constant(5.0), tf.range(2), scale])
    assert (again["rate"], again["scale"].numpy()) == (0.1, 5.0)
    assert again.seen[0].shape == (2,)
    plain = Settings(rate=0.1)
    assert bind(plain).rebuild([])[0][0] is plain
    for value in ([1], plain):
        assert bind(value, non_split_inputs=["images"]).rebuild([])[0][0] is value


def check_what_modules_wrap(rank: int, size: int) -> None:
    for module in (tf.Module(), *(keras.layers.Dense(1) for keras in _kerases())):
        module.batch = {"list": [rows(), None], "tuple": (rows(),)}
        call = bind(module.batch, module.batch["list"])
        for number, (args, _) in enumerate(microbatches(call)):
            part = rows()[2 * number : 2 * number + 2]
            for batch in (args[0]["list"], args[0]["tuple"], args[1]):
                np.testing.assert_array_equal(batch[0], part)
            assert args[0]["list"][1] is None
            assert set(args[0]) == {"list", "tuple"}
        assert len(call.specs) == 3


def check_objects_that_cut_themselves(rank: int, size: int) -> None:
    call = bind([Boxes(rows()), 1])
    assert call.specs[0].shape.as_list() == [2, 3]
    assert call.axes == [None]
    assert len(call.tensors) == N
    for number, (args, _) in enumerate(microbatches(call)):
        assert args[0][1] == 1
        assert args[0][0]["note"] == "same"
        np.testing.assert_array_equal(args[0][0]["boxes"], rows()[number::N])
    assert [len(row) for row in call.cut([tensor + 1 for tensor in call.tensors])] == [1] * N
    assert bind(Boxes(rows(6))).specs[0].shape.as_list() == [None, 3]
    with pytest.raises(TypeError, match=r"smp_slice of Argument images of step .*differ between"):
        bind(Boxes(rows(), note=[1, 2, 3, 4]))


def check_what_is_refused_or_whole(rank: int, size: int) -> None:
    dataset = tf.data.Dataset.range(8)
    for loader in (dataset, iter(dataset), dataset.batch(2), iter([1])):
        with pytest.raises(TypeError, match=r"Argument images of step .*pass the batches"):
            bind(loader)
    ragged = tf.ragged.constant([[1], [2, 3]])
    sparse = tf.sparse.from_dense([[1.0, 0.0]])
    for value in (ragged, sparse, tf.IndexedSlices(rows(), tf.range(8))):
        with pytest.raises(TypeError, match=r"Argument images\[0\] of step is a .*not cut"):
            bind([value])
        call = bind(value, non_split_inputs=["images"])
        again = call.rebuild(call.pieces(1))[0][0]
        assert type(again) is type(value)
    assert bind(ragged, non_split_inputs=["images"]).rebuild(
        tf.nest.flatten(tf.ragged.constant([[4, 5], [6]]), expand_composites=True)
    )[0][0].to_list() == [[4, 5], [6]]
    output = StepOutput([rows()])
    for options in ({}, {"non_split_inputs": ["images"]}):
        with pytest.raises(TypeError, match=r"Argument images of step is a StepOutput.*concat"):
            bind(output, **options)
    for keras in _kerases():
        for value in (
            keras.layers.Dense(1),
            keras.optimizers.SGD(),
            keras.metrics.Mean(),
            keras.losses.MeanSquaredError(),
            tf.Variable(rows()),
            keras.layers.Dense(1).add_weight(shape=(8,)),
            "text",
        ):
            call = bind(value)
            assert not call.tensors
            assert all(args[0] is value for args, _ in microbatches(call))


def _kerases() -> list[Any]:
    import keras
    import tf_keras

    return [keras, tf_keras]


def check_input_signatures(rank: int, size: int) -> None:
    def train(images: Any, labels: Any = 0) -> None: ...

    specs = [tf.TensorSpec([None, 3], tf.float64), tf.TensorSpec([None], tf.uint8)]
    splitter = ArgumentSplitter(train, input_signature=specs)
    one = splitter.bind((np.zeros((8, 3)), np.arange(8)), {}, N)
    assert one.specs == specs
    other = splitter.bind((), {"labels": np.ones(12), "images": tf.zeros((12, 3), tf.float64)}, N)
    assert one.signature == other.signature
    assert other.pieces(3)[0].shape == (3, 3)
    assert other.pieces(3)[1].dtype == tf.uint8
    for args, words in (
        ((np.zeros((6, 3)), np.ones(6)), r"images: 6 elements .*4 microbatches"),
        (
            (np.zeros((8, 2)), np.ones(8)),
            r"Argument images of .*train has shape \(8, 2\); expected",
        ),
        ((tf.zeros((8, 3)), np.ones(8)), r"Argument images of .*train is no tensor of float64"),
        (((np.zeros((8, 3)),), np.ones(8)), r"Argument images of .*train is nested otherwise"),
    ):
        with pytest.raises(ValueError, match=words):
            splitter.bind(args, {}, N)
    with pytest.raises(TypeError, match="expected the arguments"):
        splitter.bind((1, 2, 3), {}, N)
    fixed = ArgumentSplitter(
        train, input_signature=[{"a": tf.TensorSpec([3, 8])}], input_split_axes={"images": 1}
    )
    assert fixed.bind(({"a": tf.zeros((3, 8))},), {}, N).specs[0].shape == (3, 2)
    with pytest.raises(TypeError, match="expected one for each of the 1 specs"):
        fixed.bind(({"a": tf.zeros((3, 8))}, 2), {}, N)

    def many(a: Any, *rest: Any, more: Any = 1, **others: Any) -> None: ...

    splitter = ArgumentSplitter(many, input_signature=[tf.TensorSpec([None])] * 2)
    assert len(splitter.bind((tf.ones(8), np.ones(8)), {}, N).specs) == 2
    for args, kwargs in (
        ((tf.ones(8),), {}),
        ((tf.ones(8), tf.ones(8), tf.ones(8)), {}),
        ((tf.ones(8), tf.ones(8)), {"more": 2}),
        ((tf.ones(8), tf.ones(8)), {"other": 2}),
    ):
        with pytest.raises(TypeError, match="expected one for each of the 2 specs"):
            splitter.bind(args, kwargs, N)
    with pytest.raises(TypeError, match=r"input_signature holds 3; expected a tf.TensorSpec"):
        ArgumentSplitter(train, input_signature=[3])


# ---- StepOutput ----------------------------------------------------------------------------------


def _both_ways(check: Any, *tensors: tf.Tensor) -> None:
    """With eager tensors, and with symbolic ones."""
    expected = check(StepOutput(tensors))
    found = tf.function(lambda *symbolic: check(StepOutput(symbolic)))(*tensors)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def check_reductions(rank: int, size: int) -> None:
    one, other = rows(2), rows(2) + 1
    output = StepOutput([one, other])
    np.testing.assert_array_equal(output.reduce_mean(), one + 0.5)
    np.testing.assert_array_equal(output.reduce_sum(), one + other)
    np.testing.assert_array_equal(output.stack(), tf.stack([one, other]))
    for whole in (output.concat(), output.merge()):
        np.testing.assert_array_equal(whole, tf.concat([one, other], 0))
    for method in ("variable", "add_n", "accumulate_n"):
        np.testing.assert_array_equal(output.accumulate(method), one + 0.5)
    scalars = StepOutput([tf.constant(1.0), tf.constant(2.0)])
    assert scalars.concat().numpy().tolist() == [1, 2] == scalars.merge().numpy().tolist()
    ragged = StepOutput([rows(2), rows(1)])
    assert ragged.concat().shape == (3, 3)
    for operation in ("reduce_mean", "reduce_sum", "stack", "accumulate"):
        with pytest.raises(ValueError, match=rf"^{operation} of a StepOutput .*one shape"):
            getattr(ragged, operation)()
    for shape in ((2, 3), (2,), ()):
        with pytest.raises(ValueError, match=r"^concat of a StepOutput .*stack them"):
            StepOutput([tf.zeros((2, 2)), tf.zeros(shape)]).concat()
    for check in (
        lambda output: output.reduce_mean(),
        lambda output: output.reduce_sum(),
        lambda output: output.accumulate(),
        lambda output: output.accumulate("add_n"),
        lambda output: [output.stack(), output.concat(), output[0], len(output)],
    ):
        _both_ways(check, one, other)
    with pytest.raises(ValueError, match=r"'sum'.*expected one of 'variable', 'add_n'"):
        output.accumulate("sum")


def check_dtypes_of_reductions(rank: int, size: int) -> None:
    for dtype in (tf.bool, tf.int8, tf.uint8, tf.int16, tf.int32, tf.int64, tf.uint64):
        both = StepOutput([tf.cast([1, 1], dtype), tf.cast([0, 0], dtype)])
        for mean in (both.reduce_mean(), both.accumulate(), both.accumulate("add_n")):
            assert mean.dtype == tf.float32
            assert mean.numpy().tolist() == [0.5, 0.5]
        assert both.reduce_sum().numpy().tolist() == [1, 1]
    assert StepOutput([tf.constant(1), tf.constant(2)]).reduce_sum().dtype == tf.int32
    full = StepOutput([tf.cast([255], tf.uint8)] * 4)
    assert full.reduce_mean().numpy().tolist() == [255]
    assert full.reduce_sum().numpy().tolist() == [1020]
    odd = tf.constant([2**24 + 1])
    assert StepOutput([odd, -odd, odd - odd + 1]).reduce_mean().numpy()[0] == np.float32(1 / 3)
    for dtype in (tf.float16, tf.bfloat16, tf.float64, tf.complex64):
        both = StepOutput([tf.ones(2, dtype), tf.zeros(2, dtype)])
        for found in (both.reduce_mean(), both.reduce_sum(), both.accumulate()):
            assert found.dtype == dtype
    large = StepOutput([tf.cast([40000.0], tf.float16)] * 4)
    assert large.reduce_mean().numpy().tolist() == [40000]
    texts = StepOutput([tf.constant(["a"]), tf.constant(["b"])])
    assert texts.concat().numpy().tolist() == [b"a", b"b"]
    with pytest.raises(TypeError, match=r"^reduce_mean of a StepOutput of strings"):
        texts.reduce_mean()


def check_sums_are_in_order(rank: int, size: int) -> None:
    """Eagerly and in graphs they have the bits of a chain of additions."""
    for dtype in (np.float32, np.float64):
        for count, elements in ((2, 5), (3, 0), (3, 1), (8, 4099), (9, 257), (33, 13)):
            values = np.random.RandomState(count).randn(count, elements).astype(dtype)
            total = values[0]
            for value in values[1:]:
                total = total + value

            def mean_and_sum(*tensors: Any) -> list[Any]:
                output = StepOutput(tensors)
                return [output.reduce_mean(), output.accumulate(), output.reduce_sum(), tensors[0]]

            def mean_of_sum(*tensors: Any) -> list[Any]:
                ready = StepOutput(tensors).reduce_sum()
                output = StepOutput.summed(tensors, ready, lambda: None, lambda: None)
                return [output.reduce_mean(), output.accumulate(), output.reduce_sum(), tensors[0]]

            tensors = [tf.constant(value) for value in values]
            functions = mean_and_sum, tf.function(mean_and_sum), tf.function(mean_of_sum)
            for function in functions:
                mean, accumulated, summed, first = function(*tensors)
                np.testing.assert_array_equal(summed, total)
                np.testing.assert_array_equal(mean, total / dtype(count))
                np.testing.assert_array_equal(accumulated, mean)
                np.testing.assert_array_equal(first, values[0])  # nothing is added in its place


def check_sums_that_xla_compiles(rank: int, size: int) -> None:
    output = StepOutput([tf.constant([1.0, number]) for number in range(4)])
    found = tf.function(lambda: output.reduce_mean(), jit_compile=True)()
    np.testing.assert_array_equal(found, [1.0, 1.5])


def check_sums_have_gradients(rank: int, size: int) -> None:
    tensors = [tf.constant([1.0 + number, 2.0]) for number in range(4)]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = tf.reduce_sum(StepOutput(tensors).reduce_mean() * [1.0, 2.0])
    for gradient in tape.gradient(result, tensors):
        np.testing.assert_array_equal(gradient, [0.25, 0.5])


def check_sums_of_shapes_that_differ(rank: int, size: int) -> None:
    """Also where only the run tells: nothing is repeated to fit."""
    for dtype, count in ((tf.float32, 2), (tf.float32, 3), (tf.int64, 3)):

        @tf.function(input_signature=[tf.TensorSpec([None], dtype)] * count)
        def summed(*tensors: Any) -> Any:
            return StepOutput(tensors).reduce_sum()

        with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
            summed(*[tf.ones([1 + min(place, 1)], dtype) for place in range(count)])


def check_accumulation_into_a_variable(rank: int, size: int) -> None:
    output = StepOutput([rows(2), rows(2) + 1])
    variables = [tf.Variable(tf.ones((2, 3))), tf.Variable(tf.ones((2, 3), tf.float64))]
    variables += [keras.Variable(np.ones((2, 3), "float32")) for keras in _kerases()[:1]]
    for variable in variables:
        found = output.accumulate("variable", variable)
        np.testing.assert_array_equal(found, rows(2) + 0.5)
        np.testing.assert_array_equal(tf.convert_to_tensor(variable), rows(2) + 0.5)
    with pytest.raises(TypeError, match="variable of int32, which holds no mean"):
        output.accumulate(var=tf.Variable(tf.ones((2, 3), tf.int32)))
    output.accumulate("add_n", variables[0].assign_add(tf.ones((2, 3))))
    np.testing.assert_array_equal(variables[0], rows(2) + 1.5)

    @tf.function
    def in_graph() -> tf.Tensor:
        return StepOutput([rows(2), rows(2)]).accumulate(var=variables[0])

    np.testing.assert_array_equal(in_graph(), rows(2))
    np.testing.assert_array_equal(variables[0], rows(2))


def check_sparse_gradients(rank: int, size: int) -> None:
    slices = [tf.IndexedSlices(rows(2), tf.constant([1, 3]), tf.constant([4, 3]))] * 2
    output = StepOutput(slices)
    dense = tf.convert_to_tensor(slices[0])
    for mean in (output.reduce_mean(), output.accumulate(), output.accumulate("add_n")):
        assert isinstance(mean, tf.IndexedSlices)
        assert mean.indices.numpy().tolist() == [1, 3, 1, 3]
        np.testing.assert_array_equal(tf.convert_to_tensor(mean), dense)
    np.testing.assert_array_equal(tf.convert_to_tensor(output.reduce_sum()), 2 * dense)
    assert output.concat().shape == (8, 3)
    assert output.stack().shape == (2, 4, 3)
    table = tf.Variable(tf.zeros((4, 3)))
    np.testing.assert_array_equal(output.accumulate(var=table), dense)


def check_it_is_no_tensor(rank: int, size: int) -> None:
    output = StepOutput([tf.constant([1.0]), tf.constant([2.0])])
    uses = [
        lambda: tf.convert_to_tensor(output),
        lambda: tf.reduce_mean(output),
        lambda: output + tf.constant(1.0),
        lambda: tf.constant(1.0) * output,
        lambda: tf.stack([output, output]),
        lambda: tf.function(lambda x: tf.reduce_sum(x))(output),
        lambda: tf.Variable([1.0]).assign(output),
        lambda: tf.data.Dataset.from_tensors(output),
        lambda: np.asarray(output),
        lambda: np.mean(output),
    ]
    for keras in _kerases():
        uses += [
            lambda keras=keras: keras.losses.MeanSquaredError()([[1.0]], output),
            lambda keras=keras: keras.metrics.Mean()(output),
            lambda keras=keras: keras.metrics.SparseCategoricalAccuracy()([0], output),
            lambda keras=keras: keras.layers.Dense(1)(output),
        ]
    for number, use in enumerate(uses):
        # The metric of tf-keras makes a RuntimeError of it.
        with pytest.raises((TypeError, RuntimeError)) as error:
            use()
        assert "reduce_mean()" in str(error.value), (number, error.value)
    with pytest.raises(AttributeError, match=r"no attribute 'numpy'.*reduce_mean\(\)\.numpy"):
        output.numpy()
    assert repr(output).startswith("StepOutput(2 × tensor of shape (1,), float32: reduce_mean()")
    assert [each.numpy().tolist() for each in output] == [[1.0], [2.0]]
    with pytest.raises(TypeError, match="Output 0 of a StepOutput is a float"):
        StepOutput([1.0])


def check_gradients_of_other_ranks(rank: int, size: int) -> None:
    output = StepOutput.elsewhere(tf.TensorSpec([2, 3]), N)
    assert isinstance(output, StepOutput)
    assert not output.is_local
    assert StepOutput([rows()]).is_local
    assert output.accumulate() is output.reduce_mean() is output.reduce_sum() is None
    assert output.accumulate("add_n", tf.Variable(1.0)) is None
    assert output.stack().shape == (N, 2, 3)
    assert output.concat().shape == (2 * N, 3)
    assert len(output) == N == len(output.outputs)
    assert "of another rank" in repr(output)
    with pytest.raises(ValueError, match="expected one of 'variable'"):
        output.accumulate("sum")


# ---- results -------------------------------------------------------------------------------------


def check_results_of_a_trace(rank: int, size: int) -> None:
    variable = tf.Variable([1.0, 2.0])
    keras_variable = _kerases()[0].Variable([3.0])
    found: dict[str, TracedResults] = {}

    def body(x: tf.Tensor) -> list[tf.Tensor]:
        noted = Settings(a=x)
        noted.note = "kept"
        noted.table = x * 2
        far = tf.zeros((5,))
        slices = tf.IndexedSlices(x, tf.constant([0, 1]), tf.constant([4, 3]))
        value = {
            "loss": tf.reduce_sum(x),
            "all": Pair([variable, keras_variable], (1, 2.5, True, "text", np.arange(2))),
            "none": (None, slices, noted),
            "far": far,
        }
        found["results"] = TracedResults(value, "train", lambda tensor: tensor is far)
        return found["results"].tensors

    program = tf.function(body)
    made = [program(rows(2) * (number + 1)) for number in range(2)]
    gathered = found["results"].gather(made)
    assert gathered["loss"].reduce_sum().numpy() == 3 * tf.reduce_sum(rows(2)).numpy()
    assert type(gathered["all"]) is Pair
    assert [each.concat().numpy().tolist() for each in gathered["all"].first] == [
        [1.0, 2.0, 1.0, 2.0],
        [3.0, 3.0],
    ]
    one, half, yes, text, array = gathered["all"].second
    assert [each[0].dtype for each in (one, half, yes, text, array)] == [
        *(tf.int32, tf.float32, tf.bool, tf.string, tf.int64)
    ]
    assert text.concat().numpy().tolist() == [b"text"] * 2
    assert gathered["none"][0] is None
    assert isinstance(gathered["none"][1].reduce_mean(), tf.IndexedSlices)
    assert type(gathered["none"][2]) is Settings
    assert gathered["none"][2]["a"].concat().shape == (4, 3)
    assert gathered["none"][2].note == "kept"
    np.testing.assert_array_equal(gathered["none"][2].table, rows(2) * 2)
    assert not gathered["far"].is_local
    assert gathered["far"].stack().shape == (2, 5)


def check_results_that_are_refused(rank: int, size: int) -> None:
    for value, words in (
        (Opaque(), r"step function train returned a Opaque, which cannot leave a graph"),
        ([{1, 2}], r"train returned at \[0\] a set.*no order"),
        ({"a": tf.ragged.constant([[1]])}, r"returned at \['a'\] a RaggedTensor.*to_tensor"),
        (StepOutput([rows()]), r"returned a StepOutput; expected tensors of this microbatch"),
    ):
        with pytest.raises(TypeError, match=words):
            TracedResults(value, "train")
    with pytest.raises(RuntimeError, match=r"^The step function returned different containers"):
        gather_outputs([[rows()], [rows(), rows()]])


# ---- the rules of both frameworks ----------------------------------------------------------------


def check_the_shared_rules(rank: int, size: int) -> None:
    class TensorFlow(rules.Framework):
        def tensor(self, array: np.ndarray) -> tf.Tensor:
            return tf.constant(array)

        def is_tensor(self, value: Any) -> bool:
            return isinstance(value, tf.Tensor)

        def split(
            self, function: Any, args: Any, kwargs: Any, count: int, **options: Any
        ) -> list[Any]:
            return ArgumentSplitter(function, **options).split(args, kwargs, count)

        def gather(self, values: list[Any]) -> Any:
            return gather_outputs(values)

    for rule in rules.RULES:
        rule(TensorFlow())
