# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Making a communicator from the environment, under any launcher."""

import os
from collections.abc import Mapping

from smdistributed._common.discovery import complete_placement, discover, export_placement
from smdistributed._common.discovery import host_identity as this_host
from smdistributed._common.settings import process_settings
from smdistributed.collectives.communicator import Communicator
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
    limit_s = settings.timeout_s if timeout_s is None else timeout_s
    placement = discover(broadcast_host=host_of_rank_zero)
    if placement.world_size == 1:
        return Communicator(
            0, 1, lambda key, value: [value], name=name, timeout_s=limit_s, errors=errors
        )
    address, port = placement.require_master()
    with Rendezvous(
        placement.rank,
        placement.world_size,
        address,
        port,
        limit_s,
        settings.token,
        settings.tls,
    ) as rendezvous:
        identities = [
            value.decode() for value in rendezvous.exchange("host", this_host(os.environ).encode())
        ]
        export_placement(complete_placement(placement, identities))
        return Communicator(
            placement.rank,
            placement.world_size,
            rendezvous.exchange,
            name=name,
            timeout_s=limit_s,
            transport=settings.cpu_transport,
            interfaces=",".join(settings.interfaces) or "auto",
            rendezvous_address=address,
            token=settings.token,
            tls=settings.tls,
            errors=errors,
        )
