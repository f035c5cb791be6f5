# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What torch asks a group about itself: names, options, devices, and which backend has which.

torch's C++ code sees a Python group's name only through `setGroupName` and its relatives, which
must therefore be overridden.
"""

# torch's stubs make `ProcessGroup` answer some of these with narrower types.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, ProcessGroup, Store

from smdistributed.dataparallel.torch.compilation import keep_from_compiler

__all__ = ["BACKEND_NAME", "GroupIdentity"]

BACKEND_NAME = "smddp"


@keep_from_compiler
class GroupIdentity(ProcessGroup):
    """The part of the process group that moves no data.

    Args:
        store, rank, size, timeout, group_name, devices, others, global_ranks: as those of
            `ProcessGroupSmddp`.
    """

    # Asked of whatever `_get_backend` returns, which is this object for our devices.
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        group_name: str,
        devices: Sequence[str],
        others: Mapping[str, Any],
        global_ranks: Sequence[int],
    ) -> None:
        # The constructor that takes a store makes an object whose methods C++ cannot override.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        self._timeout = timeout
        self._name = group_name
        self._description = "undefined"
        self._devices = tuple(devices)
        self._working_devices = [device for device in self._devices if device == "cpu"]
        self._others = dict(others)
        self._global_ranks = list(global_ranks)

    def getBackendName(self) -> str:  # noqa: N802 -- torch's name
        return BACKEND_NAME

    def name(self) -> str:
        return BACKEND_NAME

    _get_backend_name = name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def get_group_store(self) -> Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors this group can move on this machine."""
        return [torch.device(device) for device in (*self._working_devices, *self._others)]

    def _get_backend(self, device: torch.device) -> Any:
        """What does the work for a device: this group itself for ours."""
        if (other := self._others.get(device.type)) is not None:
            return other._get_backend(device) if type(other) is ProcessGroup else other
        if device.type in self._devices:
            return self
        raise RuntimeError(
            f"No backend type associated with device type {device.type}; group '{self._name}' has"
            f" smddp for {', '.join(self._devices)}. Name a backend for it in init_process_group."
        )

    @property
    def options(self) -> Backend.Options:
        options = Backend.Options(BACKEND_NAME, self._timeout)
        options.global_ranks_in_group = self._global_ranks
        options.group_name = self._name
        return options

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to set: the engine numbers operations from 1 in every communicator."""

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Nothing to do: the group was connected when it was made."""
