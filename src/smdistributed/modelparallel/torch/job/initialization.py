# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.init()`: from parameters and environment to ranks and process groups, and `smp.reset()`.

Importing this module registers the backend `smddp` and exports what discovery found, as the import
of the data parallel library does: scripts ask for a GPU, or for `LOCAL_RANK`, before `smp.init()`.

Source: modelparallel specification, sections 1.1, 1.4, 2 and 4.1.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from smdistributed._common.discovery import (
    Membership,
    complete_membership,
    discover,
    export_membership,
    host_identity,
)
from smdistributed._common.errors import ConfigurationError
from smdistributed._common.log import get_logger
from smdistributed._common.settings import process_settings
from smdistributed.dataparallel.torch.exchange import store_exchange
from smdistributed.dataparallel.torch.group_creation import discover_membership
from smdistributed.dataparallel.torch.registration import register
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.job.agreement import (
    check_equal,
    comparable,
    tell,
    tell_of_another_call,
)
from smdistributed.modelparallel.torch.delayed_initialization import (
    record_until_wrapped,
    stop_recording,
)
from smdistributed.modelparallel.torch.job.process_groups import (
    check_adoptable,
    make_default_group,
    make_mesh_groups,
)
from smdistributed.modelparallel.torch.job.state import Job, state

__all__ = ["init", "is_initialized", "reset", "shutdown"]

# Trainers believe the first of these that they find, and `register` would say "data parallel".
_FRAMEWORK_PARAMS = '{"sagemaker_mpi_enabled": true}'


def init(config: Mapping[str, Any] | None = None) -> None:
    """Find out which rank this is, and make the process groups; blocks until all ranks have met.

    The first call counts. Later ones warn and do nothing: where a launcher's `SM_HP_MP_PARAMETERS`
    is set, importing transformers makes the first one.

    Args:
        config: the parameters; those in the environment variable `SM_HP_MP_PARAMETERS`, a JSON
            object, go before them, key by key. What neither names has its default; a process that
            no launcher started is a job of one rank.

    A default group of torch that exists is used as it is, whatever its backend, if it has all ranks
    of the job. Otherwise one is made, with the backend that `ddp_dist_backend` names.

    Raises:
        ConfigError: (a ValueError) the parameters cannot work, alone, together, with so many
            processes or with those of another rank; the text names them.
        SMDDPConfigInvalid: (a ValueError) a variable has a value that cannot work.
        SMDDPTimeoutError, SMDDPPeerLost: the ranks did not all meet; torch's `DistStoreError` or
            `DistNetworkError` where they did not even reach rank 0's address.

    Source: modelparallel specification, sections 1 and 4.1.
    """
    if state.initialized:
        tell_of_another_call(
            state.rank,
            config,
            "call it once, before importing what calls it too (transformers, where"
            " SM_HP_MP_PARAMETERS is set), or give the parameters in SM_HP_MP_PARAMETERS.",
        )
        _keep_accelerate_apart()
        return
    parameters = Config.parse(config, os.environ)
    membership = discover_membership()
    is_adopted = dist.is_initialized()
    if is_adopted:
        check_adoptable(membership)
    topology = parameters.topology(dist.get_world_size() if is_adopted else membership.world_size)
    with contextlib.ExitStack() as leaving:
        if not is_adopted:
            make_default_group(parameters, membership, leaving)
        membership = _agree(parameters, membership)
        groups = make_mesh_groups(topology, leaving)
        job = Job(
            config=parameters,
            topology=topology,
            rank=membership.rank,
            local_rank=membership.local_rank or 0,
            local_size=membership.local_world_size or 1,
            device=_device(membership.local_rank or 0),
            groups=groups.by_kind,
            message_group=groups.message_group,
        )
        state.enter(job, leaving.pop_all())
    _keep_accelerate_apart()
    if parameters.delayed_parameter_initialization:
        record_until_wrapped()
        state.call_at_reset(stop_recording)
    tell(job)
    get_logger().debug("device %s", job.device)


def is_initialized() -> bool:
    """Whether `smp.init()` has run in this process, and no `smp.reset()` since."""
    return state.initialized


def reset() -> None:
    """End what `smp.init()` has made; it may then be called again. Without it, does nothing.

    Ends the groups of the mesh, and torch's default group if `smp.init()` made it, and with that
    all groups of the process. Says goodbye to the other ranks and waits for none: a rank that still
    waits for this one gets an error. Whoever holds a rank, a group or a model from before must
    not use it again. At the exit of a process it is called by itself.

    Source: our choice; the original has nothing of the kind.
    """
    state.reset()


shutdown = reset


def _agree(config: Config, membership: Membership) -> Membership:
    """Compare the parameters of all ranks, and find out who is on which host; a collective.

    Returns:
        Where this rank is, nothing of it unknown.

    Raises:
        ConfigError: the parameters differ between ranks; the same on all of them.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    store = PrefixStore("smp/init/", dist.distributed_c10d._get_default_store())
    exchange = store_exchange(store, rank, size, process_settings().timeout_s)
    mine = {"host": host_identity(os.environ), "parameters": comparable(config)}
    everyone = [json.loads(each) for each in exchange("ranks", json.dumps(mine).encode())]
    check_equal([each["parameters"] for each in everyone])
    if (membership.rank, membership.world_size) != (rank, size):  # the script numbers its ranks
        membership = dataclasses.replace(
            membership,
            rank=rank,
            world_size=size,
            local_rank=None,
            local_world_size=None,
            node_rank=None,
            num_nodes=None,
            source="none",
        )
    membership = complete_membership(membership, [each["host"] for each in everyone])
    export_membership(dataclasses.replace(membership, warnings=()))  # told at the import
    return membership


def _keep_accelerate_apart() -> None:
    """Where transformers has called `init`, its Trainer finds no `LOCAL_RANK` from now on.

    Trainer gets its batches through Accelerate, to which that variable means, on GPUs, data
    parallelism over all ranks: those of a pipeline would be given different batches, and an
    evaluation would compare the results of one with the labels of another. The original's launcher
    did not set it.
    """
    asked: Any = sys.modules.get("transformers.utils.import_utils")
    if "transformers.training_args" in sys.modules and asked.is_sagemaker_mp_enabled():
        os.environ.pop("LOCAL_RANK", None)


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # A launcher may show each rank its own GPU only.
    return torch.device("cuda", local_rank % torch.cuda.device_count())


_leave_at_exit = state.reset_at_exit


def prepare() -> None:
    """What the import of the package does, once its modules are there."""
    with contextlib.suppress(ConfigurationError):  # which `register` raises as its own
        if discover().source != "none":
            os.environ.setdefault("SM_FRAMEWORK_PARAMS", _FRAMEWORK_PARAMS)
    register()
    atexit.register(_leave_at_exit)  # after `register`, hence before what that leaves
