# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`resourceconfig.json`, written and read (launch specification, section 7.1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract.paths import Paths
from smdistributed.launch.contract.resources import InstanceGroup, Resources, host_names

TWELVE = Resources("algo-3", (InstanceGroup("homogeneousCluster", "local", host_names(12)),))


def test_hosts_are_sorted_as_text_and_the_group_keeps_its_order() -> None:
    document = TWELVE.to_json()
    assert document["hosts"][:4] == ["algo-1", "algo-10", "algo-11", "algo-12"]
    assert document["instance_groups"][0]["hosts"][:3] == ["algo-1", "algo-2", "algo-3"]
    assert document["current_host"] == "algo-3"
    assert document["current_group_name"] == "homogeneousCluster"
    assert "topology" not in document


@pytest.mark.parametrize("resources", [TWELVE, TWELVE._replace(topology={"racks": [1, 2]})])
def test_what_is_written_is_read(resources: Resources) -> None:
    assert Resources.of_json(json.dumps(resources.to_json())) == resources


@pytest.mark.parametrize("key", ["current_group_name", "current_instance_group"])
def test_a_file_without_groups(key: str) -> None:
    text = json.dumps({"current_host": "algo-1", "hosts": ["algo-1", "algo-2"], key: "mine"})
    (group,) = Resources.of_json(text).groups
    assert group == InstanceGroup("mine", "local", ("algo-1", "algo-2"))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"current_host": "a"}', '{"current_host": 1, "hosts": ["a"]}', "{"],
)
def test_what_is_no_such_file(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"resourceconfig.json cannot be read"):
        Resources.of_json(text)


def test_a_host_that_is_in_no_group() -> None:
    with pytest.raises(ConfigurationError, match="this host is 'algo-2'"):
        Resources.of_json('{"current_host": "algo-2", "hosts": ["algo-1"]}')


def test_the_layout_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "ml")
    paths.make()
    paths.make()
    for path in (paths.code, paths.data, paths.model, paths.output_data, paths.checkpoints):
        assert path.is_dir()
        assert path.stat().st_mode & 0o077 == 0
    assert paths.channel("train") == tmp_path / "ml" / "input" / "data" / "train"
