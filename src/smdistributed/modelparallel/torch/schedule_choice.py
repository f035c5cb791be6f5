# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which schedule `"pipeline": "auto"` means for a model: the one with the shorter predicted step.

Its memory counts too: with `"optimize": "memory"` no rank may keep more than the fullest one does
with the interleaved schedule. Where nothing is known of costs, it is that one.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.config import Config
from smdistributed.modelparallel.schedule import Schedule, Visit, predict
from smdistributed.modelparallel.torch.assignment import module_paths
from smdistributed.modelparallel.torch.tracing import Trace

__all__ = ["chosen_schedule"]

# What a use of a layer takes longer in each pass if its weights' gradients wait (a CPU of today).
_LONGER_S = 12e-6
# The predicted step must be this much shorter.
_LEAST_GAIN = 0.02
_SPLIT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def chosen_schedule(found: Trace, partition_of: Mapping[str, int], config: Config) -> str:
    """The name of a schedule.

    Args:
        found: what the model's modules cost.
        partition_of: by path, where they are.
        config: how many microbatches there are, and what to optimize.
    """
    active = config.active_microbatches or config.microbatches
    known, split = (
        predict(Schedule.named(name, config.microbatches, active), way)
        for name, way in (
            ("interleaved", _way(found, partition_of, config.partitions, 0.0)),
            ("zero_bubble", _way(found, partition_of, config.partitions, _LONGER_S)),
        )
    )
    fullest_known, fullest_split = (
        max(each.peak_activation_bytes.values()) for each in (known, split)
    )
    is_shorter = split.makespan_s < (1 - _LEAST_GAIN) * known.makespan_s
    fits = config.optimize == "speed" or fullest_split <= fullest_known
    name = "zero_bubble" if is_shorter and fits else "interleaved"
    get_logger().info(
        "Schedule: %s. Predicted for interleaved and zero_bubble: steps of 1 and %.2f, bubbles of"
        " %.1f %% and %.1f %%, activations of the fullest rank 1 and %.2f",
        name,
        split.makespan_s / known.makespan_s if known.makespan_s else 1.0,
        100 * known.bubble,
        100 * split.bubble,
        fullest_split / fullest_known if fullest_known else 1.0,
    )
    return name


def _way(
    found: Trace, partition_of: Mapping[str, int], partitions: int, longer_s: float
) -> list[Visit]:
    """Of a microbatch, once through each partition; a way back to the first is not counted."""
    forward, weights, kept = ([0.0] * partitions for _ in range(3))
    pieces = [0] * partitions
    for module, path in module_paths(found.model).items():
        partition = partition_of[path]
        forward_s = found.forward_seconds(module)
        forward[partition] += forward_s
        kept[partition] += found.costs[module].kept_bytes
        is_split = isinstance(module, _SPLIT) or type(module).__name__ == "Conv1D"  # Hugging Face's
        weight = getattr(module, "weight", None)
        if is_split and isinstance(weight, nn.Parameter) and weight.requires_grad:
            calls = found.costs[module].calls
            weights[partition] += forward_s + calls * longer_s
            pieces[partition] += calls
    return [
        Visit(
            partition,
            forward[partition] + pieces[partition] * longer_s,
            2 * (forward[partition] + pieces[partition] * longer_s),
            round(kept[partition]),
            weights[partition],
            max(1, pieces[partition]),
        )
        for partition in range(partitions)
    ]
