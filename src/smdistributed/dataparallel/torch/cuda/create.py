# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From what this rank has to a path for the group's CUDA tensors.

Each rank's report travels with the first exchange that the engine makes anyway, so a job without
GPUs pays a few bytes. The device in it is the one this rank is expected to use; scripts often call
`torch.cuda.set_device` only after the group exists:

1. the `device_id` given to `init_process_group`;
2. the current device, if CUDA is in use already;
3. local rank modulo number of devices (specification, section 3.4).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.torch import notices
from smdistributed.dataparallel.torch.cuda.choice import Choice, RankReport, choose
from smdistributed.dataparallel.torch.cuda.device import CudaDevice
from smdistributed.dataparallel.torch.cuda.staged import StagedCollectives
from smdistributed.dataparallel.torch.exchange import store_exchange
from smdistributed.dataparallel.torch.other_backends import create_nccl

__all__ = ["CudaPath", "CudaRequest"]


@dataclasses.dataclass(frozen=True)
class CudaRequest:
    """What was asked for.

    Attributes:
        transport: `SMDDP_TRANSPORT` for CUDA tensors: "auto", "nccl" or "staged".
        device: `device_id` of the group, or None.
        nccl_options: `pg_options` of the caller, if they are NCCL's.
    """

    transport: str = "auto"
    device: torch.device | None = None
    nccl_options: Any = None

    def report(self) -> bytes:
        """What this rank tells the others."""
        has_cuda = torch.cuda.is_available()
        device = _identity(_expected_device(self.device)) if has_cuda else ""
        return RankReport(device, dist.is_nccl_available(), self.transport).encode()


def _expected_device(bound: torch.device | None) -> int:
    if bound is not None and bound.type == "cuda" and bound.index is not None:
        return bound.index
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.current_device()
    return int(os.environ.get("LOCAL_RANK") or 0) % torch.cuda.device_count()


def _identity(index: int) -> str:
    """The same for two processes if and only if they mean the same device (or MIG instance)."""
    return str(torch.cuda.get_device_properties(index).uuid)


class CudaPath:
    """How one group's CUDA tensors are handled.

    Args:
        group: the group they belong to; not kept.
        request: of this rank.
        reports: of all ranks, from `CudaRequest.report`.
        communicator: makes an engine communicator of the group's ranks from an exchange and a name.

    Raises:
        SMDDPConfigInvalid: as `choose`.

    Attributes:
        handlers: device type -> what has the methods of `Collectives` for its tensors.
        working_devices: device types whose tensors this group can move.
    """

    def __init__(
        self,
        group: Any,
        request: CudaRequest,
        reports: Sequence[bytes],
        communicator: Callable[[Any, str], Any],
    ) -> None:
        decoded = [RankReport.decode(report) for report in reports]
        choice = choose(decoded)
        self._staged: StagedCollectives | None = None
        self.handlers: dict[str, Any] = {}
        self.working_devices: list[str] = []
        _tell(choice, group, is_shared=_share_a_device(decoded))
        if choice.path == "none":
            self.handlers["cuda"] = _Refusal(group.getGroupName(), choice.reason)
            return
        self.working_devices.append("cuda")
        if choice.path == "nccl":
            self.handlers["cuda"] = _delegate(group, request)
        else:
            self._staged = _stage(group, communicator)
            self.handlers["cuda"] = self._staged

    def finish_queued(self, device: torch.device) -> None:
        """Block until this rank has done what it has queued on a device of ours."""
        if device.type in self.working_devices:
            if self._staged is not None:
                self._staged.drain()
            torch.cuda.synchronize(device)


def _share_a_device(reports: Sequence[RankReport]) -> bool:
    devices = [report.device for report in reports if report.device]
    return len(set(devices)) < len(devices)


def _tell(choice: Choice, group: Any, *, is_shared: bool) -> None:
    """Rank 0 logs the choice; a shared device is a warning the first time (section 3.4)."""
    what = {
        "nccl": "CUDA tensors go to NCCL",
        "staged": "CUDA tensors pass through host memory and are reduced there",
        "none": "no CUDA tensors",
    }
    message = f"smddp group '{group.getGroupName()}': {what[choice.path]}: {choice.reason}"
    # Asked on every rank, so that rank 0 of a later group does not warn again for the job.
    if choice.path == "staged" and is_shared and notices.warn_once("shared device", message):
        return
    if group.rank() == 0:
        get_logger().log(logging.DEBUG if choice.path == "none" else logging.INFO, message)


def _delegate(group: Any, request: CudaRequest) -> Any:
    options = group.options
    about = types.SimpleNamespace(
        group_rank=group.rank(),
        group_size=group.size(),
        timeout=options._timeout,
        group_id=options.group_name,
        global_ranks_in_group=options.global_ranks_in_group,
    )
    store = PrefixStore("smddp-nccl/", group.get_group_store())
    return create_nccl(store, about, request.nccl_options)


def _stage(group: Any, communicator: Callable[[Any, str], Any]) -> StagedCollectives:
    rank, size = group.rank(), group.size()
    store = PrefixStore("smddp-staged/", group.get_group_store())
    exchange = store_exchange(store, rank, size, group.options._timeout.total_seconds())
    engine = communicator(exchange, f"{group.getGroupName()}:cuda")
    return StagedCollectives(engine, rank, size, "cuda", CudaDevice)


class _Refusal:
    """Stands where a handler would, and says why there is none."""

    def __init__(self, group_name: str, reason: str) -> None:
        self._group_name = group_name
        self._reason = reason

    def set_timeout(self, timeout: Any) -> None: ...
    def shutdown(self) -> None: ...
    def abort(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise SMDDPUnsupported(
            f"{name} got a CUDA tensor, but group '{self._group_name}' cannot move any:"
            f" {self._reason}; expected one on every rank. Make CUDA visible on all of them (look"
            " at CUDA_VISIBLE_DEVICES and torch.cuda.is_available() there), or use CPU tensors."
        )
