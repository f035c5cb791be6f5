# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects as bytes, and in their place why there are none."""

from __future__ import annotations

import pytest

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.pickled import pickled, unpickled


def test_objects_arrive() -> None:
    for obj in (None, {"a": [1, 2.5]}, b"x" * 1000):
        content, problem = pickled(obj, 0, "f()")
        assert problem is None
        assert unpickled(content, "f()") == obj


def test_the_reason_travels_where_an_object_cannot() -> None:
    content, problem = pickled((number for number in range(3)), 2, "f()")
    assert isinstance(problem, SMDDPConfigInvalid)
    assert isinstance(problem.__cause__, TypeError)
    with pytest.raises(SMDDPConfigInvalid) as raised:
        unpickled(content, "f()")
    assert str(raised.value) == str(problem)
    assert str(problem).startswith("f(): the object of rank 2 cannot be pickled (TypeError: ")


def test_what_an_object_itself_raises_is_a_reason() -> None:
    class Closed:
        def __reduce__(self) -> str:
            raise OSError("closed")

    content, problem = pickled(Closed(), 0, "f()")
    assert "(OSError: closed)" in str(problem)
    with pytest.raises(SMDDPConfigInvalid, match=r"\(OSError: closed\)"):
        unpickled(content, "f()")
