# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Making a communicator from the environment, under any launcher."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence

from smdistributed._common.discovery import complete_membership, discover, export_membership
from smdistributed._common.discovery import host_identity as this_host
from smdistributed._common.engine_options import EngineOptions
from smdistributed._common.errors import ConfigurationError
from smdistributed._common.host_names import require_resolvable
from smdistributed._common.settings import process_settings
from smdistributed.collectives.communicator import Communicator
from smdistributed.collectives.job import another_job, own_job
from smdistributed.collectives.rendezvous import Rendezvous
from smdistributed.collectives.rendezvous.mpi_host import host_of_rank_zero

__all__ = ["init"]


def init(
    *,
    name: str = "default",
    timeout_s: float | None = None,
    errors: Mapping[str, type[Exception]] | None = None,
) -> Communicator:
    """Join the communicator of all processes of this job.

    Finds out who this process is (torchrun, Open MPI, PMI, Slurm, Ray, SageMaker, smddprun), meets
    the others at `MASTER_ADDR:MASTER_PORT` and exports what other libraries read (`RANK`,
    `LOCAL_RANK`, ...). Without a launcher the communicator has one rank.

    Args:
        name: For messages.
        timeout_s: Seconds to wait for the others, here and in every operation; None for
            `SMDDP_TIMEOUT_SECONDS`, default 1800.
        errors: A front end's own classes, as for `Communicator`; of its operations, not of this
            call.

    Raises:
        ConfigurationError: The environment is contradictory, or the master is unknown.
        CollectiveTimeoutError: Not everyone came in time.

    Source: dataparallel specification, section 3.
    """
    settings = process_settings()
    options = EngineOptions.from_settings(settings)
    if timeout_s is not None:
        options = dataclasses.replace(options, timeout_s=timeout_s)
    membership = discover(broadcast_host=host_of_rank_zero)
    if membership.world_size == 1:
        return Communicator(0, 1, lambda key, value: [value], options, name=name, errors=errors)
    address, port = membership.require_master()
    require_resolvable(address)
    with Rendezvous(
        membership.rank,
        membership.world_size,
        address,
        port,
        options.timeout_s,
        settings.token,
        settings.tls,
    ) as rendezvous:
        mine = json.dumps([own_job(membership.rank), this_host(os.environ)]).encode()
        everyone = [json.loads(each) for each in rendezvous.exchange("host", mine)]
        _require_one_job([job for job, _ in everyone])
        export_membership(complete_membership(membership, [host for _, host in everyone]))
        return Communicator(
            membership.rank,
            membership.world_size,
            rendezvous.exchange,
            dataclasses.replace(options, rendezvous_address=address),
            name=name,
            errors=errors,
        )


def _require_one_job(jobs: Sequence[str]) -> None:
    """Raise the same error on every rank if the ranks are of several jobs; `jobs` by rank."""
    for rank, job in enumerate(jobs):
        if job != jobs[0]:
            raise ConfigurationError(another_job(rank, job, jobs[0]))
