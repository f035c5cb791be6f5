# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Names that are made are valid, whatever they are made of."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.jobs.names import (
    base_name_of_image,
    check_name,
    later_names,
    made_name,
)

NOW = dt.datetime(2026, 11, 27, 13, 5, 9, 7_999, tzinfo=dt.UTC)


def test_a_made_name_is_the_base_and_the_time_in_utc() -> None:
    assert made_name("pytorch-training", NOW) == "pytorch-training-2026-11-27-13-05-09-007"
    elsewhere = NOW.astimezone(dt.timezone(dt.timedelta(hours=9)))
    assert made_name("a", elsewhere) == "a-2026-11-27-13-05-09-007"


def test_a_long_base_is_cut() -> None:
    name = made_name("x" * 200, NOW)
    assert name == "x" * 39 + "-2026-11-27-13-05-09-007"
    assert len(name) == 63


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        made_name("a", NOW.replace(tzinfo=None))


@given(
    st.text(),
    st.datetimes(timezones=st.just(dt.UTC), min_value=dt.datetime(2000, 1, 1)),
)
def test_every_made_name_is_valid(base: str, now: dt.datetime) -> None:
    assert check_name(made_name(base, now))


def test_names_of_the_next_milliseconds_differ_also_over_a_second() -> None:
    names = later_names("a", NOW.replace(microsecond=998_000), 4)
    assert [name[-6:] for name in names] == ["09-998", "09-999", "10-000", "10-001"]


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a--b", "A9", "x" * 63])
def test_valid(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "a_b", "a b", "a/b", "../a", "ä", "x" * 64, "a\n", "a.b"]
)
def test_not_valid(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of an endpoint"):
        check_name(name, "an endpoint")


@pytest.mark.parametrize(
    ("image", "base"),
    [
        (
            "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.0.1-gpu-py310",
            "pytorch-training",
        ),
        ("localhost:5000/team/mine", "mine"),
        ("mine", "mine"),
        ("mine:latest", "mine"),
        ("registry/mine@sha256:0123", "mine"),
        ("registry/mine:1@sha256:0123", "mine"),
    ],
)
def test_the_base_of_an_image(image: str, base: str) -> None:
    assert base_name_of_image(image) == base


@pytest.mark.parametrize("image", ["", "registry/", ":tag"])
def test_what_is_no_image_is_refused(image: str) -> None:
    with pytest.raises(ConfigurationError, match="image_uri is"):
        base_name_of_image(image)
