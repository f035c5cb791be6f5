# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What can be said of the CUDA device without one."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from smdistributed.dataparallel.torch.cuda import device as module
from smdistributed.dataparallel.torch.cuda.device import CudaDevice

NOT_SUPPORTED = 801


class Runtime:
    """CUDA's: remembers the last error of a thread until a launch of a kernel is checked."""

    def __init__(self, result: int) -> None:
        self._result = result
        self.last_error = 0
        self.launches = 0

    def cudaHostRegister(self, *_: Any) -> int:  # noqa: N802 -- its name
        self.last_error = self._result
        return self._result

    def launch(self, tensor: Tensor, _: float) -> Tensor:
        self.launches += 1
        error, self.last_error = self.last_error, 0
        if error:
            raise RuntimeError(f"CUDA error {error}")
        return tensor


@pytest.mark.parametrize("result", [0, NOT_SUPPORTED])
def test_memory_that_cannot_be_registered_leaves_no_error_behind(
    result: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where CUDA cannot do that, ordinary pinned memory is used."""
    runtime = Runtime(result)
    cuda = types.SimpleNamespace(cudart=lambda: runtime, device=lambda _: contextlib.nullcontext())
    monkeypatch.setattr(module, "_cuda", cuda)
    monkeypatch.setattr(Tensor, "fill_", lambda *call: runtime.launch(*call))
    memory = torch.empty(8, dtype=torch.uint8)
    assert CudaDevice(torch.device("cpu")).register(memory) is (result == 0)
    assert runtime.last_error == 0
    assert runtime.launches == (result != 0)
