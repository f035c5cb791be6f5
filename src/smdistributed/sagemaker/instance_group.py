# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A part of a cluster whose instances have different types.

Source: launch specification, section 1.
"""

import dataclasses

__all__ = ["InstanceGroup"]


@dataclasses.dataclass
class InstanceGroup:
    """Instances of one type, under a name.

    Attributes:
        instance_group_name: a distribution and an input channel refer to the group by it.
        instance_type: such as `ml.p4d.24xlarge`.
        instance_count: how many instances.
    """

    instance_group_name: str | None = None
    instance_type: str | None = None
    instance_count: int | None = None

    def to_request_dict(self) -> dict[str, str | int]:
        """Returns the entry of `InstanceGroups` in the request `CreateTrainingJob`.

        Raises:
            ValueError: a value is missing, or has the wrong type.
        """
        name, kind, count = self.instance_group_name, self.instance_type, self.instance_count
        # `object`, since a user's values may be anything.
        texts: dict[str, object] = {"instance_group_name": name, "instance_type": kind}
        for key, value in texts.items():
            if not isinstance(value, str) or not value:
                raise ValueError(
                    f"{key} of an instance group is {value!r}; expected a string that is not "
                    f"empty. Give InstanceGroup() a {key}."
                )
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(
                f"instance_count of the instance group {name!r} is {count!r}; expected an integer "
                "from 1. Give InstanceGroup() an instance_count."
            )
        return {"InstanceGroupName": str(name), "InstanceType": str(kind), "InstanceCount": count}
