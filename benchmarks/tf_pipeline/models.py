# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""GPTs of several depths, whole and cut into stages; the shapes of benchmarks/pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp

__all__ = ["SHAPES", "Gpt", "Shape", "Stage", "WholeGpt", "batch_of", "loss_of"]

VOCABULARY = 256
_layers = tf.keras.layers


@dataclass(frozen=True)
class Shape:
    """Of a model and its batches.

    Attributes:
        blocks: transformer blocks, all partitions together.
        width: of the embedding.
        length: tokens of a sequence.
        sequences: of a microbatch.
    """

    blocks: int
    width: int
    length: int
    sequences: int


SHAPES = {
    "gpt-4": Shape(4, 256, 128, 2),
    "gpt-8": Shape(8, 256, 128, 2),
    "tiny": Shape(4, 64, 16, 2),
}


class Block(_layers.Layer):  # type: ignore[misc] # Keras has no types
    """Attention and a network of two layers, both residual."""

    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heads = width // 32
        self.norm_1 = _layers.LayerNormalization()
        self.norm_2 = _layers.LayerNormalization()
        self.qkv, self.out = _layers.Dense(3 * width), _layers.Dense(width)
        self.up, self.down = _layers.Dense(4 * width, "gelu"), _layers.Dense(width)

    def call(self, x: Any) -> Any:
        """[sequences, length, width] to the same."""
        length, width = x.shape[1:]
        size = width // self.heads
        parts = tf.reshape(self.qkv(self.norm_1(x)), (-1, length, 3, self.heads, size))
        q, k, v = tf.unstack(tf.transpose(parts, (2, 0, 3, 1, 4)))
        scores = tf.matmul(q, k, transpose_b=True) * size**-0.5
        mask = tf.linalg.band_part(tf.ones((length, length)), -1, 0)
        weights = tf.nn.softmax(scores - 1e9 * (1 - mask))
        attended = tf.transpose(tf.matmul(weights, v), (0, 2, 1, 3))
        x = x + self.out(tf.reshape(attended, (-1, length, width)))
        return x + self.down(self.up(self.norm_2(x)))


class Entry(_layers.Layer):  # type: ignore[misc] # Keras has no types
    """Tokens to vectors."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = _layers.Embedding(VOCABULARY, shape.width)

    def build(self, _: Any) -> None:
        size = (self.shape.length, self.shape.width)
        self.positions = self.add_weight(shape=size, initializer="zeros", name="positions")

    def call(self, tokens: Any) -> Any:
        return self.tokens(tokens) + self.positions


class Exit(_layers.Layer):  # type: ignore[misc] # Keras has no types
    """Vectors to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = _layers.LayerNormalization(), _layers.Dense(VOCABULARY)

    def call(self, x: Any) -> Any:
        return self.head(self.norm(x))


def _make_parts(model: Any, shape: Shape) -> None:
    model.entry, model.exit = Entry(shape), Exit()
    model.blocks = [Block(shape.width) for _ in range(shape.blocks)]


class WholeGpt(tf.keras.Model):  # type: ignore[misc] # Keras has no types
    """All of it, by plain Keras."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        _make_parts(self, shape)

    def call(self, tokens: Any) -> Any:
        """[sequences, length] to [sequences, length, vocabulary]."""
        x = self.entry(tokens)
        for block in self.blocks:
            x = block(x)
        return self.exit(x)


class Gpt(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """The same, cut between blocks by hand."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        _make_parts(self, shape)

    def call(self, tokens: Any) -> Any:
        """[sequences, length] to [sequences, length, vocabulary]."""
        size = len(self.blocks) // smp.mp_size()
        with smp.partition(0):
            x = self.entry(tokens)
        for number, block in enumerate(self.blocks):
            with smp.partition(number // size):
                x = block(x)
        with smp.partition(smp.mp_size() - 1):
            return self.exit(x)


class Stage:
    """The work of one partition for a microbatch, forward and backward, by plain TensorFlow."""

    def __init__(self, shape: Shape, index: int, count: int) -> None:
        self._entry = Entry(shape) if index == 0 else None
        self._blocks = [Block(shape.width) for _ in range(shape.blocks // count)]
        self._exit = Exit() if index == count - 1 else None
        tokens, targets = batch_of(shape, 1)
        hidden = tf.ones((shape.sequences, shape.length, shape.width))
        given = [tokens if index == 0 else hidden, targets if index == count - 1 else hidden]
        self.work: Callable[[], Any] = lambda: self._work(*given)

    @tf.function(autograph=False)
    def _work(self, came: Any, other: Any) -> Any:
        """`other`: the targets, or the gradient of what the stage returns."""
        x = came if self._entry is None else self._entry(came)
        for block in self._blocks:
            x = block(x)
        result = x if self._exit is None else loss_of(self._exit(x), other)
        parts = [each for each in (self._entry, *self._blocks, self._exit) if each is not None]
        variables = [v for part in parts for v in part.trainable_variables]
        asked = [_tensor_of(each) for each in variables]
        if self._entry is None:
            asked.append(came)
        return tf.gradients(result, asked, None if self._exit is not None else other)


def _tensor_of(variable: Any) -> Any:
    """The variable of TensorFlow in one of Keras 3."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def loss_of(logits: Any, targets: Any) -> Any:
    """The mean over all tokens."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    )


def batch_of(shape: Shape, microbatches: int) -> tuple[Any, Any]:
    """Tokens and their successors, the same on all ranks."""
    size = (microbatches * shape.sequences, shape.length + 1)
    text = np.random.RandomState(1).randint(0, VOCABULARY, size).astype("int32")
    return tf.constant(text[:, :-1]), tf.constant(text[:, 1:])
