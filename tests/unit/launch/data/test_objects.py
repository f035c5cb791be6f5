# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Keys, prefixes, shares, orders and manifests, without a file (launch specification, 5)."""

from __future__ import annotations

import json

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.objects import (
    DataObject,
    in_order,
    manifest_of,
    matching,
    require_places,
    share_of,
)

KEYS = ["b/x", "a-1/x", "a/x", "a/y/z", "a.csv", "aa"]


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("a/", {"x": "a/x", "y/z": "a/y/z"}),
        ("a/y", {"z": "a/y/z"}),
        ("a-", {"1/x": "a-1/x"}),
        ("a.", {"csv": "a.csv"}),
        ("a.csv", {"a.csv": "a.csv"}),
        ("a", {"-1/x": "a-1/x", ".csv": "a.csv", "x": "a/x", "y/z": "a/y/z", "a": "aa"}),
        ("", {key: key for key in KEYS}),
        ("nothing", {}),
    ],
)
def test_a_prefix_matches_as_text(prefix: str, names: dict[str, str]) -> None:
    """A prefix matches as text, not as a folder, and data lie there without the prefix."""
    found = matching(KEYS, prefix)
    assert {each.name: each.key for each in found} == names
    assert [each.key for each in found] == sorted(names.values())


def test_keys_are_sorted_by_their_bytes() -> None:
    keys = ["\uffff", "\U00010000", "a\udc80"]
    assert [each.key for each in matching(keys, "")] == ["a\udc80", "\uffff", "\U00010000"]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["a/x", "ax"], "both called 'x'"),
        (["a/x", "ax/y"], "is a file 'x' where the second needs a folder"),
        (["ax/y", "a/x"], "is a file 'x' where the second needs a folder"),
        (["a.."], "that is no path"),
        (["a../x"], "that is no path"),
    ],
)
def test_objects_that_cannot_be_below_one_folder(keys: list[str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        require_places("channel 'c'", matching(keys, "a"))


def test_shares_are_taken_modulo_the_number_of_hosts() -> None:
    objects = [DataObject(name, name) for name in "abcdefg"]
    shares = [share_of(objects, index, 3) for index in range(3)]
    assert ["".join(each.key for each in share) for share in shares] == ["adg", "be", "cf"]
    assert share_of(objects[:1], 1, 3) == []


def test_a_seed_gives_each_epoch_an_order_of_its_own() -> None:
    objects = [DataObject(str(number), str(number)) for number in range(50)]
    assert in_order(objects, None, 3) == objects
    orders = [in_order(objects, 7, epoch) for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[1]) == sorted(objects)
    assert in_order(objects, 8, 0) != orders[0]


def test_a_manifest_as_it_is_documented() -> None:
    text = json.dumps([{"prefix": "s3://b/some/prefix/"}, "relative/path/1", "2"])
    assert manifest_of(text, "m") == ("s3://b/some/prefix/", ["relative/path/1", "2"])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("{}", "begins with None"),
        ("[]", "begins with None"),
        ('["x"]', "begins with 'x'"),
        ('[{"prefix": ""}, "x"]', "begins with"),
        ('[{"prefix": 1}, "x"]', "begins with"),
        ('[{"prefix": "s3://b/", "more": 1}, "x"]', "begins with"),
        ('[{"prefix": "s3://b/"}, 1]', "has 1"),
        ('[{"prefix": "s3://b/"}, ""]', "has ''"),
        ('[{"prefix": "s3://b/"}, "x", "y", "x"]', "has 'x' twice"),
        ('[{"prefix": "s3://b/"}]', "lists nothing"),
    ],
)
def test_what_is_no_manifest(text: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"the manifest s3://b/m {what}.*; expected"):
        manifest_of(text, "s3://b/m")
