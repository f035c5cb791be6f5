# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Source: launch specification, section 1, the row of `sagemaker.instance_group`."""

import pytest

from smdistributed.sagemaker.instance_group import InstanceGroup


def test_section_1_arguments_and_defaults() -> None:
    group = InstanceGroup()
    assert group.instance_group_name is None
    assert group.instance_type is None
    assert group.instance_count is None
    group = InstanceGroup(instance_group_name="g", instance_type="ml.c5.xlarge", instance_count=2)
    assert group == InstanceGroup("g", "ml.c5.xlarge", 2)


@pytest.mark.parametrize("count", [1, 2])
def test_entry_of_a_request(count: int) -> None:
    assert InstanceGroup("g", "ml.c5.xlarge", count).to_request_dict() == {
        "InstanceGroupName": "g",
        "InstanceType": "ml.c5.xlarge",
        "InstanceCount": count,
    }


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (InstanceGroup(), "instance_group_name of an instance group is None"),
        (InstanceGroup("", "t", 1), "instance_group_name of an instance group is ''"),
        (InstanceGroup("g", None, 1), "instance_type of an instance group is None"),
        (InstanceGroup("g", 5, 1), "instance_type of an instance group is 5"),  # type: ignore[arg-type]
        (InstanceGroup("g", "t"), "instance_count of the instance group 'g' is None"),
        (InstanceGroup("g", "t", 0), "is 0; expected an integer from 1"),
        (InstanceGroup("g", "t", True), "is True; expected an integer from 1"),
        (InstanceGroup("g", "t", "2"), "is '2'; expected an integer from 1"),  # type: ignore[arg-type]
    ],
)
def test_groups_that_no_request_can_hold(group: InstanceGroup, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        group.to_request_dict()
