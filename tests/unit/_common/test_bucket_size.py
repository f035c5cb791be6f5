# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How large a bucket may be; `test_fusion.py` and `test_settings.py` have the two error texts.

Source: dataparallel specification, section 6.2.
"""

from __future__ import annotations

import fractions
import math
from typing import Any

import pytest

from smdistributed._common.bucket_size import bytes_of_mib, is_bucket_size


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [(25, 26214400), (0.5, 524288), (1 / 8192, 128), (fractions.Fraction(1, 4), 262144)],
)
def test_whole_bytes_are_an_int(value: Any, num_bytes: int) -> None:
    found = bytes_of_mib(value)
    assert found == num_bytes
    assert type(found) is int
    assert is_bucket_size(found)


@pytest.mark.parametrize("value", [True, False, "25", None, [25], 1j])
def test_what_is_no_number_has_no_bytes(value: Any) -> None:
    found = bytes_of_mib(value)
    assert math.isnan(found)
    assert not is_bucket_size(found)


@pytest.mark.parametrize("value", [0, -1, 1 / 3, 1 / (1024 * 1024), math.nan, math.inf, 1e308])
def test_numbers_that_no_bucket_can_have(value: float) -> None:
    assert not is_bucket_size(bytes_of_mib(value))
