# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What this process knows of its job: the one object `smp.state`.

`smp.init()` puts a `Job` into it, which then stays as it is until `smp.reset()`. The rest of the
library adds what it makes later: the model.

Source: modelparallel specification, section 5; TensorFlow modelparallel specification, section 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from smdistributed.collectives import Communicator
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.job.state import BaseJob, BaseState

__all__ = ["Job", "State", "state"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(BaseJob):
    """What `smp.init()` has found out and made.

    Attributes:
        seed: of what the library draws, such as first values of variables; the same on all ranks.
        communicators: by kind, the group that this rank is in; its ranks are those of `rank_in`.
            Kinds with the same members share one; a group of one rank has none. For objects,
            barriers and agreements, outside of steps.
        pipeline_channel: the MP group once more, for the messages of steps alone; there for a group
            of one rank too.
        pipeline_group: the MP group for operations of `dataparallel.tensorflow`; None for one rank.
        horovod_group: the DP group for operations of `dataparallel.tensorflow`, which may be in
            graphs; without replicas this rank alone.
    """

    seed: int
    communicators: Mapping[GroupKind, Communicator]
    pipeline_channel: Communicator
    pipeline_group: Group | None
    horovod_group: Group

    @property
    def replica_group(self) -> Group | None:
        """The same; None without `horovod: True`."""
        return self.horovod_group if self.config.horovod else None


class State(BaseState[Job]):
    """The one object of this class is `state`."""


state = State()
