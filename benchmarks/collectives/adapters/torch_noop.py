# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""torch's own overhead: its calls, on a group that returns at once.

The group is the one that torch's tests use, written in C++. Its all_reduce moves no byte and waits
for no rank, so there is no result to verify: what remains is the time from Python through the
dispatcher to a backend and back. Other collectives copy, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases import Case
from torch.testing._internal.distributed.fake_pg import FakeStore

from adapters.base import Unsupported
from adapters.torch_calls import TorchAdapter


class TorchNoopAdapter(TorchAdapter):
    backend = "fake"
    has_results = False

    def _rendezvous(self) -> dict[str, Any]:
        return {"store": FakeStore(), "rank": self.rank, "world_size": self.world_size}

    def bind(self, case: Case, source: Any, output: Any) -> Callable[[], object]:
        if case.collective != "all_reduce":
            raise Unsupported("only all_reduce does nothing in torch's group for tests")
        return super().bind(case, source, output)
