# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Each message arrives as it was sent, whatever is in it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.torch.pipeline.messages import messages as m

INTS = st.integers(0, 1 << 40)
SIGNED = st.integers(-(1 << 62), 1 << 62)
ROWS = st.lists(INTS, max_size=4)
# The content of tensors is no matter of this file: wire.py packs them.
TENSORS = st.lists(st.one_of(st.none(), st.just(torch.zeros(2))), max_size=3)
TENSOR = st.one_of(st.none(), st.just(torch.ones(1)))
TASKS = st.builds(Task, st.sampled_from(Phase), INTS)
PICKLES = st.binary(max_size=8)
MODULE_CALLS = st.lists(
    st.builds(m.ModuleCall, SIGNED, st.booleans(), INTS, st.lists(SIGNED, max_size=3)), max_size=3
)


@st.composite
def calls(draw: st.DrawFn) -> m.Call:
    program = draw(INTS)
    slots = draw(st.lists(st.one_of(st.none(), st.builds(m.Origin, INTS, INTS, INTS)), max_size=4))
    inputs = [torch.zeros(1) for slot in slots if slot is None]
    pushes = [m.Push(program, *row) for row in draw(st.lists(st.tuples(INTS, INTS, INTS, INTS)))]
    wanted = draw(st.one_of(st.just([-1]), ROWS))
    task, seed, is_grad = draw(TASKS), draw(INTS), draw(st.booleans())
    rows = draw(MODULE_CALLS), wanted, draw(ROWS), pushes
    return m.Call(program, task, seed, is_grad, slots, inputs, *rows, draw(PICKLES))


@st.composite
def backwards(draw: st.DrawFn) -> m.Backward:
    values = draw(ROWS)
    gradients = [torch.zeros(()) for _ in values]
    return m.Backward(draw(INTS), draw(TASKS), draw(INTS), values, gradients, draw(ROWS))


@st.composite
def gradients(draw: st.DrawFn) -> m.Gradients:
    values = draw(ROWS)
    tensors = [torch.zeros(()) for _ in values]
    return m.Gradients(draw(INTS), draw(st.booleans()), draw(TENSORS), values, tensors)


MESSAGES = {
    m.Call: calls(),
    m.Return: st.builds(m.Return, INTS, TENSORS, PICKLES),
    m.Value: st.builds(m.Value, INTS, INTS, INTS, TENSOR),
    m.Fetch: st.builds(m.Fetch, INTS, ROWS),
    m.Push: st.builds(m.Push, INTS, INTS, INTS, INTS, INTS),
    m.Backward: backwards(),
    m.Gradient: st.builds(m.Gradient, INTS, INTS, INTS, TENSOR),
    m.Gradients: gradients(),
    m.Raise: st.builds(m.Raise, INTS, st.booleans(), PICKLES),
    m.Drop: st.builds(m.Drop, ROWS),
    m.ForwardsDone: st.builds(m.ForwardsDone),
    m.End: st.builds(m.End, st.booleans(), TENSORS, PICKLES),
    m.Abort: st.builds(m.Abort, st.text(max_size=5)),
    m.Leave: st.builds(m.Leave),
}


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return id(value) if isinstance(value, torch.Tensor) else value


def test_every_type_of_message_is_tried() -> None:
    assert set(MESSAGES) == set(m.Message.__subclasses__())


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_arrives_as_it_was_sent(kind: type[m.Message], data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    ints, tensors, pickled = message.encode()
    came = m.decode(message.number, tuple(map(int, ints)), list(tensors), pickled)
    assert type(came) is kind
    assert _plain(came) == _plain(message)
