# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.init()`: from parameters and environment to ranks and groups, and `smp.reset()`.

Source: modelparallel specification, sections 1.1, 1.4 and 2; TensorFlow modelparallel
specification, sections 2 and 5.1.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

from smdistributed import collectives
from smdistributed.collectives import Communicator, _native
from smdistributed.dataparallel.engine_errors import ENGINE_ERRORS, documented_errors
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import UNEVEN_BATCHES
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.job.agreement import (
    check_equal,
    comparable,
    tell,
    tell_of_another_call,
)
from smdistributed.modelparallel.tensorflow.job.devices import pin_gpu
from smdistributed.modelparallel.tensorflow.job.groups import (
    exchange,
    make_communicators,
    make_group_of_operations,
    make_pipeline_channel,
)
from smdistributed.modelparallel.tensorflow.job.horovod import tell_horovod
from smdistributed.modelparallel.tensorflow.job.state import Job, state

__all__ = ["init", "is_initialized", "reset", "shutdown"]


def init(config: Mapping[str, Any] | None = None) -> None:
    """Find out which rank this is, and make the groups; blocks until all ranks have met.

    The first call counts. Later ones warn and do nothing. If there are several GPUs, and the script
    has chosen none, TensorFlow sees the one of this local rank from now on.

    Args:
        config: the parameters; those in the environment variable `SM_HP_MP_PARAMETERS`, a JSON
            object, go before them, key by key. What neither names has its default; a process that
            no launcher started is a job of one rank.

    With several partitions, and with `horovod: True`, the job of
    `smdistributed.dataparallel.tensorflow` begins too, unless the script has begun it.

    Raises:
        ConfigError: (a ValueError) the parameters cannot work, alone, together, with so many
            processes or with those of another rank; the text names them.
        SMDDPConfigInvalid: (a ValueError) a variable has a value that cannot work.
        SMDDPTimeoutError, SMDDPPeerLost: the ranks did not all meet.

    Source: modelparallel specification, section 1; TensorFlow modelparallel specification, section
    5.1.
    """
    if state.initialized:
        tell_of_another_call(
            state.rank,
            config,
            "call it once, or give the parameters in SM_HP_MP_PARAMETERS.",
        )
        return
    parameters = Config.parse(config, os.environ, "tensorflow")
    _native.set_uneven_batches_advice(UNEVEN_BATCHES)
    with contextlib.ExitStack() as leaving:
        with documented_errors():
            world = collectives.init(name="smp", errors=ENGINE_ERRORS)
        leaving.callback(world.close)
        seed = _agree(parameters, world)
        job = _make_job(parameters, seed, world, leaving)
        tell_horovod(job, leaving)
        state.enter(job, leaving.pop_all())
    tell(job)


def is_initialized() -> bool:
    """Whether `smp.init()` has run in this process, and no `smp.reset()` since."""
    return state.initialized


def reset() -> None:
    """End what `smp.init()` has made; it may then be called again. Without it, does nothing.

    Says goodbye to the other ranks and waits for none: a rank that still waits for this one gets an
    error. Whoever holds a model from before must not use it again. At the exit of a process it is
    called by itself.

    Source: our choice; the original has nothing of the kind.
    """
    state.reset()


shutdown = reset


def _agree(config: Config, world: Communicator) -> int:
    """Compares the parameters of all ranks; a collective.

    Returns:
        A seed, drawn by rank 0.

    Raises:
        ConfigError: they differ; the same on all of them.
    """
    mine = {"parameters": comparable(config), "seed": secrets.randbits(63)}
    everyone = [json.loads(each) for each in exchange(world, json.dumps(mine).encode())]
    check_equal([each["parameters"] for each in everyone])
    return int(everyone[0]["seed"])


def _make_job(config: Config, seed: int, world: Communicator, leaving: contextlib.ExitStack) -> Job:
    topology = config.topology(world.world_size)
    is_alone = world.world_size == 1  # then nobody may have said which rank of its host it is
    local_rank = 0 if is_alone else int(os.environ["LOCAL_RANK"])
    pin_gpu(local_rank)

    def operations(kind: GroupKind) -> Group:
        return make_group_of_operations(topology.members(kind, world.rank), leaving)

    return Job(
        config=config,
        topology=topology,
        seed=seed,
        rank=world.rank,
        local_rank=local_rank,
        local_size=1 if is_alone else int(os.environ["LOCAL_WORLD_SIZE"]),
        communicators=make_communicators(topology, world, leaving),
        pipeline_channel=make_pipeline_channel(topology, world, leaving),
        pipeline_group=operations(GroupKind.MP) if config.partitions > 1 else None,
        horovod_group=operations(GroupKind.DP),
    )


atexit.register(state.reset_at_exit)
