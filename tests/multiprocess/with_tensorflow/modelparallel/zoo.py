# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Small models, and a step of each, that cutting has to leave as they are.

Each function here that is marked as a case takes the class of which models are made, a plain Keras
model or a `DistributedModel`, and returns a `Case`. The same code runs on one process, and cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.modelparallel.tensorflow.graph.labels import current_labels, partition

BATCH = 16

Gradients = Callable[[Any, Any], list[Any]]


@dataclasses.dataclass
class Case:
    """A model and what is done with it.

    Attributes:
        model: not built.
        batch: the arguments of the step, `BATCH` elements each.
        step: called as step(gradients, *batch): its results by name. Under a name that begins with
            "gradients" there is one for each trainable variable of the model here.
        metrics: that the step updates; their variables are to be the same on all ranks.
        evaluate: another step of the same model, to be called before the other; or None.
        tolerance: relative.
    """

    model: Any
    batch: list[Any]
    step: Callable[..., dict[str, Any]]
    metrics: tuple[Any, ...] = ()
    evaluate: Callable[..., dict[str, Any]] | None = None
    tolerance: float = 1e-5


CASES: dict[str, Callable[[Any], Case]] = {}

BY_HAND = {"auto_partition": False, "default_partition": 0}
"""Parameters of cases that place their parts themselves."""


def parameters_of(name: str) -> dict[str, Any]:
    """What a case needs besides what it is run with."""
    return dict(BY_HAND) if name == "contexts" else {}


def case(function: Callable[[Any], Case]) -> Callable[[Any], Case]:
    CASES[function.__name__] = function
    return function


def _numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.RandomState(seed).randn(BATCH, *shape).astype(np.float32)


def _labels(classes: int, *shape: int, seed: int = 1) -> Any:
    return np.random.RandomState(seed).randint(0, classes, (BATCH, *shape)).astype(np.int64)


def _cross_entropy(labels: Any, logits: Any) -> Any:
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(tf.cast(loss, tf.float32))


def _squares(value: Any) -> Any:
    return tf.reduce_mean(tf.square(value))


def _classifier(model: Any, x: Any, classes: int, **kwargs: Any) -> Case:
    """A case whose loss compares logits with labels."""

    def step(gradients: Gradients, x: Any, labels: Any) -> dict[str, Any]:
        logits = model(x, training=True)
        loss = _cross_entropy(labels, logits)
        for each in model.losses:
            loss += each
        found = gradients(loss, model.trainable_variables)
        return {"loss": loss, "logits": logits, "gradients": found}

    def evaluate(gradients: Gradients, x: Any, labels: Any) -> dict[str, Any]:
        return {"loss": _cross_entropy(labels, model(x, training=False))}

    return Case(model, [x, _labels(classes)], step, evaluate=evaluate, **kwargs)


def _regression(model: Any, *batch: Any, **kwargs: Any) -> Case:
    """A case whose loss is of the only output."""

    def step(gradients: Gradients, *batch: Any) -> dict[str, Any]:
        output = model(*batch, training=True)
        loss = _squares(output)
        found = gradients(loss, model.trainable_variables)
        return {"loss": loss, "output": output, "gradients": found}

    return Case(model, list(batch), step, **kwargs)


def last_partition() -> int:
    """Its index, in a step; outside it does not matter."""
    labels = current_labels()
    return 0 if labels is None else labels._partitions - 1


def rewind(model: Any) -> None:
    """The next trace of a model has the seeds of the first: tf-keras counts its traces."""
    for layer in model._flatten_layers():
        generator = getattr(layer, "_random_generator", None)
        if hasattr(generator, "make_legacy_seed"):
            first = generator.__dict__.setdefault("_first_seed", generator._seed)
            generator._seed = first


# --- plain layers -------------------------------------------------------------------------------


@case
def mlp(base: Any) -> Case:
    layers = tf.keras.layers

    class Mlp(base):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [layers.Dense(12, activation="tanh") for _ in range(4)]
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            for part in self.parts:
                x = part(x)
            return self.head(x)

    return _classifier(Mlp(), _numbers(6), 3)


@case
def cnn_batchnorm(base: Any) -> Case:
    layers = tf.keras.layers

    class CnnBatchnorm(base):
        def __init__(self) -> None:
            super().__init__()
            self.convolutions = [layers.Conv2D(4, 3, padding="same") for _ in range(3)]
            self.norms = [layers.BatchNormalization() for _ in range(3)]
            self.pool = layers.MaxPooling2D()
            self.flat = layers.Flatten()
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            for convolution, norm in zip(self.convolutions, self.norms, strict=True):
                x = tf.nn.relu(norm(convolution(x), training=training))
            return self.head(self.flat(self.pool(x)))

    return _classifier(CnnBatchnorm(), _numbers(6, 6, 2), 3)


@case
def residual_cnn(base: Any) -> Case:
    layers = tf.keras.layers

    class ResidualCnn(base):
        def __init__(self) -> None:
            super().__init__()
            self.stem = layers.Conv2D(4, 3, padding="same")
            self.blocks = [layers.Conv2D(4, 3, padding="same") for _ in range(4)]
            self.norms = [layers.BatchNormalization(momentum=0.5) for _ in range(4)]
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            x = first = self.stem(x)
            for block, norm in zip(self.blocks, self.norms, strict=True):
                x = x + tf.nn.relu(norm(block(x), training=training))
            return self.head(tf.reduce_mean(x + first, [1, 2]))

    return _classifier(ResidualCnn(), _numbers(5, 5, 2), 3)


@case
def tied_transformer(base: Any) -> Case:
    layers = tf.keras.layers

    class TiedTransformer(base):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = layers.Embedding(11, 8)
            # No biases: the gradient of a key's is zero, and what is computed for it is rounding.
            self.attentions = [layers.MultiHeadAttention(2, 4, use_bias=False) for _ in range(2)]
            self.norms = [layers.LayerNormalization() for _ in range(4)]
            self.wide = [layers.Dense(16, activation="gelu") for _ in range(2)]
            self.narrow = [layers.Dense(8) for _ in range(2)]

        def call(self, tokens: Any, training: Any = None) -> Any:
            x = self.embedding(tokens)
            for block in range(2):
                y = self.norms[2 * block](x)
                x = x + self.attentions[block](y, y, use_causal_mask=True)
                y = self.norms[2 * block + 1](x)
                x = x + self.narrow[block](self.wide[block](y))
            table = tf.convert_to_tensor(self.embedding.embeddings)
            return tf.einsum("bth,vh->btv", x, table)

    model = TiedTransformer()

    def step(gradients: Gradients, tokens: Any) -> dict[str, Any]:
        logits = model(tokens, training=True)
        loss = _cross_entropy(tokens[:, 1:], logits[:, :-1])
        found = gradients(loss, model.trainable_variables)
        return {"loss": loss, "logits": logits, "gradients": found}

    return Case(model, [_labels(11, 6)], step)


@case
def gru(base: Any) -> Case:
    layers = tf.keras.layers

    class Gru(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.GRU(5, return_sequences=True)
            self.second = layers.GRU(4, reset_after=False)
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            return self.head(self.second(self.first(x)))

    return _classifier(Gru(), _numbers(4, 3), 3)


@case
def embedding_slices(base: Any) -> Case:
    layers = tf.keras.layers

    class EmbeddingSlices(base):
        def __init__(self) -> None:
            super().__init__()
            self.words = layers.Embedding(20, 5)
            self.places = layers.Embedding(4, 5)
            self.middle = layers.Dense(5, activation="tanh")
            self.head = layers.Dense(3)

        def call(self, tokens: Any, training: Any = None) -> Any:
            x = self.words(tokens) + self.places(tf.range(tf.shape(tokens)[1]))
            return self.head(tf.reduce_sum(self.middle(x), 1))

    return _classifier(EmbeddingSlices(), _labels(20, 4, seed=4), 3)


@case
def dropout(base: Any) -> Case:
    layers = tf.keras.layers

    class Dropout(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(12)
            self.drop = layers.Dropout(0.4, seed=5)
            self.second = layers.Dense(12, activation="tanh")
            self.drop_again = layers.Dropout(0.3, seed=6)
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            x = self.drop(self.first(x), training=training)
            x = self.drop_again(self.second(x), training=training)
            return self.head(self.drop(x, training=training))

    return _classifier(Dropout(), _numbers(6), 3)


# --- the shape of the graph ---------------------------------------------------------------------


@case
def two_inputs_dict_outputs(base: Any) -> Case:
    layers = tf.keras.layers

    class TwoInputsDictOutputs(base):
        def __init__(self) -> None:
            super().__init__()
            self.of_image = layers.Dense(6, activation="relu")
            self.of_text = layers.Embedding(9, 6)
            self.join = layers.Concatenate()
            self.shared = layers.Dense(6, activation="tanh")
            self.classes = layers.Dense(3)
            self.value = layers.Dense(1)
            self.unused_by_loss = layers.Dense(2, trainable=False)

        def call(self, inputs: Any, training: Any = None) -> Any:
            both = self.join([self.of_image(inputs["image"]), self.of_text(inputs["text"])])
            x = self.shared(both)
            return {
                "classes": self.classes(x),
                "more": [self.value(x), (self.unused_by_loss(both), None)],
            }

    model = TwoInputsDictOutputs()

    def step(gradients: Gradients, image: Any, text: Any, labels: Any) -> dict[str, Any]:
        outputs = model({"image": image, "text": text}, training=True)
        value, (unused, _) = outputs["more"]
        loss = _cross_entropy(labels, outputs["classes"]) + 0.1 * _squares(value)
        found = gradients(loss, model.trainable_variables)
        return {"loss": loss, "value": value, "unused": unused, "gradients": found}

    return Case(model, [_numbers(5), _labels(9, seed=3), _labels(3)], step)


@case
def layer_reuse(base: Any) -> Case:
    layers = tf.keras.layers

    class LayerReuse(base):
        def __init__(self) -> None:
            super().__init__()
            self.again = layers.Dense(6, activation="tanh")
            self.between = layers.Dense(6, activation="tanh")
            self.norm = layers.BatchNormalization()
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            for _ in range(2):
                x = self.norm(self.between(self.again(x)), training=training)
            return self.head(self.again(x))

    return _classifier(LayerReuse(), _numbers(6), 3)


@case
def bare_operations(base: Any) -> Case:
    class BareOperations(base):
        def __init__(self) -> None:
            super().__init__()
            make = tf.keras.initializers.RandomNormal(seed=1)
            self.first = self.add_weight(name="first", shape=(6, 8), initializer=make)
            self.bias = self.add_weight(name="bias", shape=(8,), initializer="ones")
            self.second = self.add_weight(name="second", shape=(8, 3), initializer=make)
            self.count = self.add_weight(
                name="count", shape=(), initializer="zeros", trainable=False
            )
            self.middle = tf.keras.layers.Dense(8)

        def call(self, x: Any, training: Any = None) -> Any:
            x = tf.nn.relu(tf.matmul(x, tf.convert_to_tensor(self.first)) + self.bias)
            self.count.assign_add(1.0)
            x = self.middle(x) * tf.convert_to_tensor(self.count)
            x = tf.split(x, 2, axis=1)
            x = tf.concat([x[1], tf.sin(x[0])], axis=1)
            return tf.matmul(x, tf.convert_to_tensor(self.second))

    return _classifier(BareOperations(), _numbers(6), 3)


@case
def integer_output(base: Any) -> Case:
    layers = tf.keras.layers

    class IntegerOutput(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(6, activation="relu")
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            logits = self.head(self.first(x))
            classes = tf.argmax(logits, -1)
            return logits, classes, classes > 0, tf.strings.as_string(classes)

    model = IntegerOutput()

    def step(gradients: Gradients, x: Any, labels: Any) -> dict[str, Any]:
        logits, classes, are_positive, words = model(x, training=True)
        loss = _cross_entropy(labels, logits)
        right = tf.reduce_sum(tf.cast(classes == labels, tf.int32))
        found = gradients(loss, model.trainable_variables)
        return {
            "loss": loss,
            "right": right,
            "classes": classes,
            "positive": are_positive,
            "words": words,
            "gradients": found,
        }

    return Case(model, [_numbers(6), _labels(3)], step)


@case
def no_variables_between(base: Any) -> Case:
    layers = tf.keras.layers

    class NoVariablesBetween(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(6)
            self.act = layers.Activation("relu")
            self.shape = layers.Reshape((2, 3))
            self.flat = layers.Flatten()
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            return self.head(self.flat(self.shape(self.act(self.first(x)))))

    return _classifier(NoVariablesBetween(), _numbers(6), 3)


@case
def nested_containers(base: Any) -> Case:
    layers = tf.keras.layers

    class Block(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(6, activation="tanh")
            self.norm = layers.BatchNormalization()

        def call(self, x: Any, training: Any = None) -> Any:
            return x + self.norm(self.dense(x), training=training)

    class NestedContainers(base):
        def __init__(self) -> None:
            super().__init__()
            self.sequence = tf.keras.Sequential([layers.Dense(6), Block(), layers.Dense(6)])
            inputs = tf.keras.Input((6,))
            outputs = layers.Dense(6, activation="tanh")(layers.Dense(6)(inputs) + inputs)
            self.functional = tf.keras.Model(inputs, outputs)
            self.block = Block()
            self.head = tf.keras.Sequential([layers.Dense(3)])

        def call(self, x: Any, training: Any = None) -> Any:
            x = self.functional(self.sequence(x, training=training), training=training)
            return self.head(self.block(x, training=training))

    return _classifier(NestedContainers(), _numbers(6), 3)


@case
def called_twice(base: Any) -> Case:
    layers = tf.keras.layers

    class CalledTwice(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(6)
            self.norm = layers.BatchNormalization()
            self.head = layers.Dense(6)

        def call(self, x: Any, training: Any = None) -> Any:
            return self.head(tf.nn.relu(self.norm(self.first(x), training=training)))

    model = CalledTwice()

    def step(gradients: Gradients, x: Any) -> dict[str, Any]:
        once = model(x, training=True)
        twice = model(once, training=True)
        loss = _squares(twice) + _squares(once)
        found = gradients(loss, model.trainable_variables)
        return {"loss": loss, "output": twice, "gradients": found}

    return Case(model, [_numbers(6)], step)


@case
def two_losses(base: Any) -> Case:
    layers = tf.keras.layers

    class TwoLosses(base):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = layers.Dense(6, activation="tanh")
            self.more = layers.Dense(6, activation="tanh")
            self.heads = [layers.Dense(2), layers.Dense(2)]

        def call(self, x: Any, training: Any = None) -> Any:
            x = self.more(self.trunk(x))
            return self.heads[0](x), self.heads[1](x)

    model = TwoLosses()

    def step(gradients: Gradients, x: Any) -> dict[str, Any]:
        one, two = model(x, training=True)
        first = _squares(one) + 0.1 * _squares(two)
        second = _squares(two - 1.0) + tf.reduce_mean(tf.abs(one))
        return {
            "loss": first + second,
            "gradients of first": gradients(first, model.trainable_variables),
            "gradients of second": gradients(second, model.trainable_variables),
        }

    return Case(model, [_numbers(6)], step)


# --- control flow and functions -----------------------------------------------------------------


@case
def control_flow(base: Any) -> Case:
    layers = tf.keras.layers

    class ControlFlow(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(6)
            self.yes = layers.Dense(6, activation="tanh")
            self.no = layers.Dense(6, activation="relu")
            self.loop = layers.Dense(6, activation="tanh")
            self.head = layers.Dense(3)

        def build(self, shape: Any) -> None:
            # Variables cannot be made in a branch.
            for layer in (self.first, self.yes, self.no, self.loop, self.head):
                if not layer.built:
                    layer.build((None, 6))

        def call(self, x: Any, training: Any = None) -> Any:
            x = self.first(x)
            x = tf.cond(tf.reduce_sum(x) > 0, lambda: self.yes(x), lambda: self.no(x))
            _, x = tf.while_loop(
                lambda i, _: i < 3, lambda i, x: (i + 1, self.loop(x)), (tf.constant(0), x)
            )
            return self.head(x)

    return _classifier(ControlFlow(), _numbers(6), 3)


@case
def function_in_layer(base: Any) -> Case:
    layers = tf.keras.layers

    class Inner(layers.Layer):
        def build(self, shape: Any) -> None:
            self.matrix = self.add_weight(name="matrix", shape=(6, 6))
            self.count = self.add_weight(
                name="count", shape=(), initializer="zeros", trainable=False
            )
            super().build(shape)

        def work(self, x: Any) -> Any:
            self.count.assign_add(1.0)
            return tf.tanh(tf.matmul(x, tf.convert_to_tensor(self.matrix))) * self.count

        def call(self, x: Any) -> Any:
            # Made here: Keras 3 traces `call` once with other variables, to learn shapes.
            return tf.function(self.work)(x)

    class FunctionInLayer(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(6)
            self.inner = Inner()
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            return self.head(self.inner(self.first(x)))

    return _classifier(FunctionInLayer(), _numbers(6), 3)


@case
def custom_gradient(base: Any) -> Case:
    layers = tf.keras.layers

    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        scale = tf.reduce_max(tf.abs(x)) + 1.0
        return tf.sin(x) / scale, lambda dy: tf.clip_by_value(dy * tf.cos(x), -0.01, 0.01) / scale

    class Clipped(layers.Layer):
        def call(self, x: Any) -> Any:
            return clipped(x)

    class CustomGradient(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(6)
            self.clipped = Clipped()
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            x = tf.stop_gradient(x) * 2.0 + x
            return self.head(clipped(self.clipped(self.first(x))))

    return _classifier(CustomGradient(), _numbers(6), 3)


@case
def contexts(base: Any) -> Case:
    """`smp.partition` around layers, bare operations and variables; one inside of another.

    Regularized layers are in several partitions; their losses are summed outside of the model.
    """
    layers = tf.keras.layers

    class Contexts(base):
        def __init__(self) -> None:
            super().__init__()
            squares = tf.keras.regularizers.L2(0.1)
            self.first = layers.Dense(6, activation="tanh", kernel_regularizer=squares)
            self.second = layers.Dense(6, activation="tanh", kernel_regularizer=squares)
            self.third = layers.Dense(6)
            self.table = self.add_weight(name="table", shape=(6, 6), initializer="ones")
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            with partition(last_partition()):
                x = self.first(x) * 2.0
                with partition(0):
                    y = self.second(x) + 1.0
                x = self.third(x) + y
            with partition(last_partition() // 2):
                x = tf.tanh(tf.matmul(x, tf.convert_to_tensor(self.table)))
            return self.head(x)

    return _classifier(Contexts(), _numbers(6), 3)


@case
def lists_between_layers(base: Any) -> Case:
    """A tensor array that layers of several partitions write to; loops over elements."""
    layers = tf.keras.layers

    class ListsBetweenLayers(base):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [layers.Dense(6, activation="tanh") for _ in range(3)]
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            array = tf.TensorArray(tf.float32, 3, element_shape=(None, 6), clear_after_read=False)
            for place, part in enumerate(self.parts):
                x = part(x + (array.read(place - 1) if place else 0.0))
                array = array.write(place, x)
            x = tf.map_fn(lambda each: each * 2.0, array.stack())
            x = tf.scan(lambda total, each: tf.sin(total) + each, x)
            return self.head(x[-1])

    return _classifier(ListsBetweenLayers(), _numbers(6), 3)


@case
def tables_and_ragged(base: Any) -> Case:
    """Words that are looked up, rows of different lengths, checks and prints in `call`."""
    layers = tf.keras.layers

    class TablesAndRagged(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Embedding(5, 4)
            self.second = layers.Embedding(5, 4)
            self.head = layers.Dense(3)
            keys, values = tf.constant(["a", "b", "c"]), tf.constant([1, 2, 3], tf.int64)
            self.table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(keys, values), 4
            )

        def call(self, words: Any, training: Any = None) -> Any:
            numbers = self.table.lookup(words)
            tf.debugging.assert_less(numbers, tf.constant(5, tf.int64))
            rows = tf.RaggedTensor.from_tensor(self.first(numbers), lengths=numbers[:, 0])
            x = tf.reduce_sum(rows, axis=1)
            again = self.table.lookup(tf.strings.lower(tf.strings.upper(words)))
            return self.head(x + tf.reduce_mean(self.second(again), axis=1))

    words = np.random.RandomState(5).choice(["a", "b", "d"], (BATCH, 3)).astype(object)
    return _classifier(TablesAndRagged(), words, 3)


@case
def regularized(base: Any) -> Case:
    """Losses that layers add, of variables and of activations."""
    layers = tf.keras.layers

    class Regularized(base):
        def __init__(self) -> None:
            super().__init__()
            squares = tf.keras.regularizers.L2(0.1)
            self.first = layers.Dense(6, kernel_regularizer=squares, activation="tanh")
            self.second = layers.Dense(6, activity_regularizer=squares, activation="tanh")
            self.head = layers.Dense(3, bias_regularizer=squares)

        def call(self, x: Any, training: Any = None) -> Any:
            return self.head(self.second(self.first(x)))

    model = Regularized()

    def step(gradients: Gradients, x: Any, labels: Any) -> dict[str, Any]:
        loss = _cross_entropy(labels, model(x, training=True))
        for each in model.losses:
            loss += each
        return {"loss": loss, "gradients": gradients(loss, model.trainable_variables)}

    return Case(model, [_numbers(6), _labels(3)], step)


@case
def generators(base: Any) -> Case:
    """Random numbers with states of several kinds."""

    class Generators(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = tf.keras.layers.Dense(6)
            self.noise = tf.keras.layers.GaussianNoise(0.5, seed=3)
            self.second = tf.keras.layers.Dense(6)
            self.head = tf.keras.layers.Dense(3)
            self.state = self.add_weight(
                name="state", shape=(2,), dtype="int32", initializer="ones", trainable=False
            )

        def call(self, x: Any, training: Any = None) -> Any:
            x = self.noise(self.first(x), training=training)
            for _ in range(2):
                seed = tf.convert_to_tensor(self.state)
                x = self.second(x) * tf.random.stateless_uniform(tf.shape(x), seed)
                self.state.assign(seed * 3 + 1)
            return self.head(x)

    return _classifier(Generators(), _numbers(6), 3)


# --- dtypes -------------------------------------------------------------------------------------


@case
def mixed_bfloat16(base: Any) -> Case:
    layers = tf.keras.layers
    policy = "mixed_bfloat16"

    class MixedBfloat16(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(8, activation="relu", dtype=policy)
            self.norm = layers.BatchNormalization(dtype=policy)
            self.second = layers.Dense(8, activation="tanh", dtype=policy)
            self.head = layers.Dense(3, dtype="float32")

        def call(self, x: Any, training: Any = None) -> Any:
            return self.head(self.second(self.norm(self.first(x), training=training)))

    return _classifier(MixedBfloat16(), _numbers(6), 3, tolerance=2e-2)


@case
def float64_inputs(base: Any) -> Case:
    layers = tf.keras.layers

    class Float64Inputs(base):
        def __init__(self) -> None:
            super().__init__()
            self.scale = layers.Rescaling(0.5)
            self.first = layers.Dense(6, activation="relu")
            self.head = layers.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            return self.head(self.first(self.scale(tf.cast(x, tf.float32))))

    case = _classifier(Float64Inputs(), _numbers(6).astype(np.float64), 3)
    case.batch[1] = case.batch[1].astype(np.uint8)
    plain = case.step

    def step(gradients: Gradients, x: Any, labels: Any) -> dict[str, Any]:
        return plain(gradients, x, tf.cast(labels, tf.int32))

    case.step, case.evaluate = step, None
    return case


# --- what a step does besides -------------------------------------------------------------------


@case
def nothing_of_the_model(base: Any) -> Case:
    case = mlp(base)
    model = case.model

    def step(gradients: Gradients, x: Any, labels: Any) -> dict[str, Any]:
        model(x, training=True)
        return {"of arguments": tf.reduce_sum(x), "constant": tf.constant(3)}

    case.step, case.evaluate = step, None
    return case


@case
def norms_without_results(base: Any) -> Case:
    case = cnn_batchnorm(base)
    model = case.model

    def step(gradients: Gradients, x: Any, labels: Any) -> dict[str, Any]:
        model(x, training=True)
        return {"labels": labels}

    case.step, case.evaluate = step, None
    return case


@case
def metrics_in_evaluation(base: Any) -> Case:
    case = mlp(base)
    model = case.model
    mean = tf.keras.metrics.Mean(name="mean")
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    def evaluate(gradients: Gradients, x: Any, labels: Any) -> dict[str, Any]:
        logits = model(x, training=False)
        loss = _cross_entropy(labels, logits)
        mean(loss)
        accuracy(labels, logits)
        return {"loss": loss}

    case.evaluate, case.metrics = evaluate, (mean, accuracy)
    return case


@case
def weight_decay_and_clipping(base: Any) -> Case:
    """Variables read outside of the model too, and gradients that are worked on."""
    case = mlp(base)
    model = case.model

    def step(gradients: Gradients, x: Any, labels: Any) -> dict[str, Any]:
        logits = model(x, training=True)
        loss = _cross_entropy(labels, logits)
        found = gradients(loss, model.trainable_variables)
        found = [tf.clip_by_norm(each, 0.05) * 2.0 for each in found]
        return {"loss": loss, "gradients": found}

    case.step = step
    return case


@case
def side_branches(base: Any) -> Case:
    """Outputs of several partitions, one used twice outside; a skipped middle."""
    layers = tf.keras.layers

    class SideBranches(base):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [layers.Dense(6, activation="tanh") for _ in range(4)]

        def call(self, x: Any, training: Any = None) -> Any:
            outputs = [x]
            for part in self.parts:
                outputs.append(part(outputs[-1] + (outputs[-3] if len(outputs) > 2 else 0.0)))
            return outputs

    model = SideBranches()

    def step(gradients: Gradients, x: Any) -> dict[str, Any]:
        outputs = model(x, training=True)
        loss = tf.reduce_mean(outputs[1] * outputs[-1])
        for each in outputs:  # AddN adds in any order
            loss += _squares(each)
        found = gradients(loss, model.trainable_variables)
        return {"loss": loss, "last": outputs[-1], "second": outputs[2], "gradients": found}

    return Case(model, [_numbers(6)], step)
