# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Names of the ranks' trace files."""

from pathlib import Path

import pytest

from smdistributed._common.trace_path import rank_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("trace.json", "trace.3.json"),
        ("runs/trace.json", "runs/trace.3.json"),
        ("/a/b.c/trace", "/a/b.c/trace.3"),
        ("my.first.trace.json", "my.first.trace.3.json"),
    ],
)
def test_the_rank_stands_before_the_suffix(path: str, expected: str) -> None:
    assert rank_path(path, 3) == Path(expected)
    assert rank_path(Path(path), 3) == Path(expected)
