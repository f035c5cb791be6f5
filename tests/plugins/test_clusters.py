# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which tests share a worker for their cluster's sake."""

from __future__ import annotations

import pytest

from tests.plugins.clusters import group_of


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/clusters/test_ray.py::test_one", "ray"),
        ("tests/clusters/test_ray_jobs.py::test_one[x]", "ray"),
        ("tests/conformance/backends/test_backends.py::test_one[ray]", "ray"),
        ("tests/conformance/backends/test_backends.py::test_one[SIGKILL-ray]", "ray"),
        (
            "tests/conformance/backends/test_backends.py::test_one[slurm]",
            "tests/conformance/backends/test_backends.py",
        ),
        ("tests/unit/test_array.py::test_ray[array]", "tests/unit/test_array.py"),
    ],
)
def test_tests_of_ray_are_one_group(test: str, group: str) -> None:
    assert group_of(test) == group
