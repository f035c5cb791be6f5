# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Slurm's compressed notations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed._common.discovery.slurm import expand_nodelist, expand_tasks_per_node
from smdistributed._common.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("4", [4]),
        ("8(x2),4", [8, 8, 4]),
        ("1,2(x1), 3(x3)", [1, 2, 3, 3, 3]),
    ],
)
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert expand_tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "x", "4(2)", "4(x0)", "4,,2", "-1", "4(x999999999)"])
def test_tasks_per_node_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigurationError, match="SLURM_STEP_TASKS_PER_NODE"):
        expand_tasks_per_node(text)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b-1.c", ["a", "b-1.c"]),
        ("a[1-3]", ["a1", "a2", "a3"]),
        ("a[01-03,7],b", ["a01", "a02", "a03", "a7", "b"]),
        ("a[098-101]", ["a098", "a099", "a100", "a101"]),
        ("r[1-2]n[1-2]x", ["r1n1x", "r1n2x", "r2n1x", "r2n2x"]),
    ],
)
def test_nodelist(text: str, hosts: list[str]) -> None:
    assert expand_nodelist(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "a,", "a[", "a]", "a[1", "a[[1]]", "a[]", "a[3-1]", "a[x]", "a[1-9999999]"]
)
def test_a_nodelist_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigurationError, match="SLURM_STEP_NODELIST"):
        expand_nodelist(text)


@given(st.text(alphabet="an019[]-,(x) ", max_size=30))
def test_no_text_leads_to_another_error(text: str) -> None:
    for expand in (expand_nodelist, expand_tasks_per_node):
        try:
            assert len(expand(text)) >= 1
        except ConfigurationError:
            continue
