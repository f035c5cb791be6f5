# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Pickles with the large blocks beside them, of any framework's pickler."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from smdistributed.modelparallel.job.pickling import LARGE_BYTES, dump, unpickling


def test_large_memory_stays_outside_and_is_the_objects_own() -> None:
    large = np.arange(LARGE_BYTES, dtype=np.uint8)
    stream, blocks = dump({"small": np.arange(3), "large": [large, large[1:]]}, pickle.Pickler)
    assert stream.nbytes < 2 * LARGE_BYTES
    [block] = blocks  # large[1:] is a byte too small
    assert np.shares_memory(np.frombuffer(block, np.uint8), large)
    back = pickle.loads(stream, buffers=blocks)
    assert np.array_equal(back["large"][0], large)
    assert np.array_equal(back["large"][1], large[1:])
    assert np.array_equal(back["small"], np.arange(3))


@pytest.mark.parametrize("value", [None, 0, "text", b"", np.zeros((0, 3)), np.float32(1.5), {}])
def test_small_things_are_the_pickle_alone(value: Any) -> None:
    stream, blocks = dump(value, pickle.Pickler)
    assert not blocks
    assert repr(pickle.loads(stream)) == repr(value)


class Refuses:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("on purpose")


def test_what_does_not_pickle_is_named() -> None:
    with pytest.raises(TypeError, match=r"Refuses does not pickle \(ZeroDivisionError: on purp"):
        dump([Refuses()][0], pickle.Pickler)


def test_what_does_not_unpickle_says_what_to_do() -> None:
    with (
        pytest.raises(TypeError, match=r"does not unpickle here \(UnpicklingError.*same script"),
        unpickling(),
    ):
        pickle.loads(b"no pickle")
