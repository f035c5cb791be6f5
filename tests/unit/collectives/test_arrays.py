# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of a collective become addresses and counts, or an error before anybody is asked."""

import numpy as np
import pytest

from smdistributed.collectives import _native, arrays

WORLD_SIZE = 3


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_a_list_gives_address_and_count_of_each() -> None:
    given = [np.zeros(count, np.float32) for count in (4, 0, 7)]
    parts = arrays.list_parts("all_gather", given, WORLD_SIZE, _native.FLOAT32, writable=True)
    assert parts.counts == [4, 0, 7]
    assert parts.pointers[0] == address(given[0])
    assert parts.pointers[2] == address(given[2])
    assert parts.dtype == _native.FLOAT32


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "i4", "f8", "c8", "c16"])
def test_an_array_is_cut_at_element_boundaries(dtype: str) -> None:
    array = np.zeros(9, dtype)
    start, size = address(array), array.itemsize
    equal = arrays.cut("input", array, None, WORLD_SIZE, writable=False)
    assert equal.counts == [3, 3, 3]
    assert equal.pointers == [start, start + 3 * size, start + 6 * size]
    uneven = arrays.cut("input", array, [2, 0, 7], WORLD_SIZE, writable=False)
    assert uneven.counts == [2, 0, 7]
    assert uneven.pointers == [start, start + 2 * size, start + 2 * size]


@pytest.mark.parametrize("splits", [[3, 3], [3, 3, 2], [-1, 5, 5], []])
def test_splits_that_do_not_fit_are_refused(splits: list[int]) -> None:
    with pytest.raises(ValueError, match=r"output_splits=.*does not cut 9 .*expected 3 sizes >= 0"):
        arrays.cut("output", np.zeros(9), splits, WORLD_SIZE, writable=True)


def test_what_cannot_be_shared_equally_asks_for_splits() -> None:
    with pytest.raises(ValueError, match=r"input has 8 elements.*multiple of 3. Pass input_splits"):
        arrays.cut("input", np.zeros(8), None, WORLD_SIZE, writable=False)


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"input: a list of 2 arrays.*per rank, 3. Give each rank"):
        arrays.cut("input", [np.zeros(1)] * 2, None, WORLD_SIZE, writable=False)
    with pytest.raises(ValueError, match=r"list of 0 arrays"):
        arrays.cut("input", [], None, WORLD_SIZE, writable=False)


def test_a_list_of_several_element_types_is_refused() -> None:
    given = [np.zeros(1, "f4"), np.zeros(1, "f4"), np.zeros(1, "i4")]
    with pytest.raises(ValueError, match=r"different element types.*Convert one"):
        arrays.cut("input", given, None, WORLD_SIZE, writable=False)


def test_what_is_written_to_must_be_writable() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    arrays.cut("input", array, None, WORLD_SIZE, writable=False)
    with pytest.raises(ValueError, match="read-only"):
        arrays.cut("output", array, None, WORLD_SIZE, writable=True)


def test_only_the_root_has_parts() -> None:
    def parts(array: object, *, is_root: bool) -> arrays.Parts:
        return arrays.root_parts(
            "scatter", "input", array, WORLD_SIZE, _native.FLOAT64, is_root=is_root, writable=False
        )

    assert parts(None, is_root=False) == ([], [], _native.FLOAT64)
    assert parts(np.zeros(6), is_root=True).counts == [2, 2, 2]
    with pytest.raises(ValueError, match=r"scatter: input=None on the root.*others may pass None"):
        parts(None, is_root=True)
    with pytest.raises(ValueError, match="different element types"):
        parts(np.zeros(6, np.float32), is_root=True)


def test_a_number_of_elements_that_does_not_fit_says_which_one_would() -> None:
    arrays.require_count("all_gather", "output", 6, 6)
    with pytest.raises(ValueError, match=r"output has 5 elements; expected 6.*Change one of the"):
        arrays.require_count("all_gather", "output", 5, 6)
