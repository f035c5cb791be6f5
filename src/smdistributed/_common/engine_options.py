# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a group of the collectives engine may be told when it is made, as one object.

Every front end makes a group from the same settings. The object goes to the engine as it is
(`native/bindings/options_py.cc` reads its fields), so a new option passes through no front end.
"""

import dataclasses
from collections.abc import Sequence
from typing import Self

from smdistributed._common.settings import Settings

__all__ = ["EngineOptions"]


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How the engine of a group behaves. `dataclasses.replace` makes one that differs.

    What each group has for itself (rank, world size, exchange, name, error classes) is not here,
    but for `job_ranks`.

    Attributes:
        timeout_s: seconds that an operation, or the start of the group, may wait for other ranks.
        stall_s: a rank that waits for so many seconds writes where the others are; 0 for never.
        message_limit_bytes: of messages that this rank has posted and others have not taken, or on
            its host still use; more is an error; 0 for no limit.
        signal_report: SIGUSR1 prints the last operations of every group.
        deterministic: sums over several hosts have the same bits for any size.
        transport: "auto" (shared memory within a host, TCP between hosts), "shm" or "tcp".
        interfaces: network interfaces for TCP, as `SMDDP_INTERFACE` writes them.
        rendezvous_address: an address that all hosts can reach; with `interfaces="auto"` it tells
            which interface leads to the other hosts. Empty: unknown.
        token: the job's secret, the same on all ranks. Both ends of every TCP connection prove to
            know it. `None`: the secret is what rank 0 sends through `exchange`.
        tls: paths of certificate, key and authority (PEM). TCP connections then use TLS 1.3, and
            both ends show a certificate of that authority. `None`: connections are not encrypted.
        job_ranks: by rank of the group, its number among all ranks of the job: error texts name
            that one, since logs and launchers do. Empty: the same number.
    """

    timeout_s: float = Settings.timeout_s
    stall_s: float = Settings.stall_s
    message_limit_bytes: int = Settings.message_limit_bytes
    signal_report: bool = Settings.signal_report
    deterministic: bool = Settings.deterministic
    transport: str = Settings.cpu_transport
    interfaces: str = "auto"
    rendezvous_address: str = ""
    token: bytes | None = dataclasses.field(default=None, repr=False)
    tls: tuple[str, str, str] | None = dataclasses.field(default=None, repr=False)
    job_ranks: tuple[int, ...] = ()

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Returns the options that the user has chosen by variables (`process_settings()`)."""
        return cls(
            timeout_s=settings.timeout_s,
            stall_s=settings.stall_s,
            message_limit_bytes=settings.message_limit_bytes,
            signal_report=settings.signal_report,
            deterministic=settings.deterministic,
            transport=settings.cpu_transport,
            interfaces=",".join(settings.interfaces) or "auto",
            token=settings.token,
            tls=settings.tls,
        )

    def of_group(self, job_ranks: Sequence[int]) -> Self:
        """These options, for a group of these ranks of the job, in the group's order."""
        same = list(job_ranks) == list(range(len(job_ranks)))
        return dataclasses.replace(self, job_ranks=() if same else tuple(job_ranks))
