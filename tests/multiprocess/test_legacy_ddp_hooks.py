# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Communication hooks of torch on the legacy DistributedDataParallel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from ddp_models import Checkpointed, Plain
from ddp_training import SMALL, assert_close, assert_same_bits, each_step, made, train
from harness import run_ranks
from torch import nn
from torch_ranks import raised, smddp


def hooked(rank: int, world_size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    def wrap(state: Any, hook: Any, cap: float | None = SMALL) -> Callable[[nn.Module], Any]:
        def wrapped(model: nn.Module) -> Any:
            ddp = DistributedDataParallel(model, bucket_cap_mb=cap)
            ddp.register_comm_hook(state, hook)
            return ddp

        return wrapped

    with smddp():
        plain = train(DistributedDataParallel, made(Plain), each_step)
        for hook, tolerance in (
            (default_hooks.allreduce_hook, 1e-6),
            (default_hooks.fp16_compress_hook, 1e-3),
            (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 1e-3),
        ):
            ours = train(wrap(None, hook), made(Plain), each_step)
            assert_same_bits(ours)
            assert_close(ours, plain, tolerance)
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        # One bucket: the hook starts further collectives as those of each bucket complete.
        ours = train(
            wrap(state, powerSGD_hook.powerSGD_hook, None),
            made(functools.partial(Checkpointed, False)),
            each_step,
        )
        assert_same_bits(ours)
        ddp = wrap(None, default_hooks.allreduce_hook)(made(Plain))
        name, text, _ = raised(ddp.register_comm_hook, None, default_hooks.allreduce_hook)
        assert name == "SMDDPUnsupported"
        assert "one hook" in text


@pytest.mark.parametrize("world_size", [1, 2])
def test_communication_hooks(world_size: int) -> None:
    run_ranks(hooked, world_size)
