# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of docs/model_parallel_tensorflow.md: one Keras model, cut over two ranks.

Usage: smddprun -np 2 python tools/draw_cut.py [FOLDER]

Runs a training step of the network of examples/15_tensorflow_model_parallel, and writes what was
cut as `tensorflow_cut.svg` into docs/assets.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.decide.schedules.schedule import Phase
from smdistributed.modelparallel.tensorflow.graph.cutting import Plan, Segment, SegmentKey
from smdistributed.modelparallel.tensorflow.graph.nodes import Port
from smdistributed.modelparallel.tensorflow.graph.reading import Reader
from smdistributed.modelparallel.tensorflow.step import building

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"
PARTITIONS = 2
BATCH = 32  # of a microbatch
# Distinct for colour-blind readers; the same as in the other pictures.
COLOURS = {Phase.FORWARD: "#56b4e9", Phase.BACKWARD: "#e69f00"}
LABELS = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}
COLUMN, LANE, LINE, WIDTH = 250, 190, 16, 160  # pixels
LEFT, TOP = 90, 40
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"'
    ' orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker>'
)


def make_model() -> Any:
    """The network of the example's `automatic.py`."""
    layers = tf.keras.layers

    class Model(smp.DistributedModel):
        def __init__(self) -> None:
            super().__init__()
            self.all = [
                layers.Conv2D(16, 5, padding="same", activation="relu", name="conv1"),
                layers.MaxPooling2D(name="pool1"),
                layers.Conv2D(32, 5, padding="same", activation="relu", name="conv2"),
                layers.MaxPooling2D(name="pool2"),
                layers.Flatten(name="flatten"),
                layers.Dense(128, activation="relu", name="dense1"),
                layers.Dense(10, name="dense2"),
            ]

        def call(self, x: Any) -> Any:
            for layer in self.all:
                x = layer(x)
            return x

    return Model()


@dataclasses.dataclass
class Drawn:
    """What a picture shows: texts by segment, and by edge."""

    plan: Plan
    names: dict[SegmentKey, list[str]]
    tensors: list[str]


def cut_step() -> Drawn:
    """Runs a training step, and takes what was cut."""
    smp.init({"partitions": PARTITIONS, "microbatches": 1})
    model = make_model()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam()

    @smp.step
    def train(images: Any, labels: Any) -> Any:
        loss = loss_of(labels, model(images, training=True))
        return loss, optimizer.get_gradients(loss, model.trainable_variables)

    found: list[Any] = []

    class Builder(building._Builder):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    building._Builder = Builder
    train(tf.zeros([BATCH, 28, 28, 1]), tf.zeros([BATCH], tf.int64))
    (builder,) = found
    plan, reader, numbers = builder.plan, builder._reader, builder._common.numbers
    names = {key: _layers(each, numbers, reader) for key, each in plan.segments.items()}
    tensors = []
    for edge in plan.edges:
        tensor = reader.tensor(Port(numbers[edge.port.node], edge.port.output))
        size = tensor.shape.num_elements() * tensor.dtype.size
        tensors.append(f"{tensor.dtype.name} {tuple(tensor.shape)}, {size:,} bytes")
    return Drawn(plan, names, tensors)


def _layers(segment: Segment, numbers: list[int], reader: Reader) -> list[str]:
    """The layers of a segment, as they run; "loss" for what is outside of the model."""
    trace, found = reader.trace, []
    for node in segment.nodes:
        number = numbers[node]
        original = reader.originals[number]
        label = trace.labels[number if original is None else original]
        if label is not None and label.layer is not None:
            assert trace.collector is not None
            found.append(trace.collector.name_of(label))
        else:
            found.append("loss")
    return list(dict.fromkeys(found))


class Picture:
    """A lane for each rank; from left to right, what needs what."""

    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        columns = sorted({(key.level, key.phase_order) for key in drawn.plan.segments})
        self._x_of = {column: LEFT + place * COLUMN for place, column in enumerate(columns)}
        self._width = LEFT + COLUMN * len(columns) - (COLUMN - WIDTH) + 20
        self._height = TOP + LANE * PARTITIONS

    def svg(self) -> str:
        """The whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self._width}"'
            f' height="{self._height}" viewBox="0 0 {self._width} {self._height}"'
            ' font-family="sans-serif" font-size="12">'
        )
        paper = f'<rect width="{self._width}" height="{self._height}" fill="white"/>'
        lines = [head, TIP, paper, *self._lanes(), *self._boxes(), *self._arrows(), "</svg>", ""]
        return "\n".join(lines)

    def _lanes(self) -> Iterator[str]:
        for rank in range(PARTITIONS):
            y = TOP + rank * LANE
            yield f'<text x="10" y="{y + 18}" font-weight="bold">rank {rank}</text>'
            yield f'<text x="10" y="{y + 34}">partition {rank}</text>'

    def _boxes(self) -> Iterator[str]:
        for key, names in self._drawn.names.items():
            x, y = self._corner(key)
            yield (
                f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{self._height_of(key)}" rx="4"'
                f' fill="{COLOURS[key.phase]}"/>'
            )
            yield f'<text x="{x + 10}" y="{y + 18}" font-weight="bold">{LABELS[key.phase]}</text>'
            for line, name in enumerate(names, 1):
                yield f'<text x="{x + 10}" y="{y + 18 + line * LINE}">{name}</text>'

    def _arrows(self) -> Iterator[str]:
        segments = self._drawn.plan.segments.values()
        for edge, text in zip(self._drawn.plan.edges, self._drawn.tensors, strict=True):
            giver = next(
                each.key
                for each in segments
                if each.key.rank == edge.source and edge.port in each.outputs
            )
            taker = next(
                each.key
                for each in segments
                if each.key.rank == edge.destination and edge.port in each.inputs
            )
            (x1, y1), (x2, y2) = self._corner(giver), self._corner(taker)
            y1 += self._height_of(giver) if taker.rank > giver.rank else 0
            y2 += self._height_of(taker) if taker.rank < giver.rank else 0
            x1, x2 = x1 + WIDTH * 3 // 4, x2 + WIDTH // 4
            yield f'<path d="M{x1} {y1} L{x2} {y2}" stroke="black" marker-end="url(#tip)"/>'
            yield (
                f'<text x="{(x1 + x2) // 2 + 8}" y="{(y1 + y2) // 2}" paint-order="stroke"'
                f' stroke="white" stroke-width="4">{text}</text>'
            )
            yield f'<text x="{(x1 + x2) // 2 + 8}" y="{(y1 + y2) // 2}">{text}</text>'

    def _corner(self, key: SegmentKey) -> tuple[int, int]:
        return self._x_of[key.level, key.phase_order], TOP + key.rank * LANE

    def _height_of(self, key: SegmentKey) -> int:
        return LINE * (len(self._drawn.names[key]) + 1) + 14


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ASSETS
    drawn = cut_step()  # on both ranks
    if smp.rank() == 0:
        path = folder / "tensorflow_cut.svg"
        path.write_text(Picture(drawn).svg(), encoding="utf-8")
        print(f"wrote {path}")
