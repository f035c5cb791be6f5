# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Names of Horovod's elastic training, which is not there. Source: see docs/horovod.md."""

from __future__ import annotations

from smdistributed.compat.horovod.common import refused, refused_class

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]

_WHY = "the ranks of a job are fixed when it starts"
_CHECKPOINTS = (
    "Save checkpoints on rank 0, and start the job again, for example with torchrun --max-restarts."
)

run = refused("elastic.run", _WHY, _CHECKPOINTS)
State = refused_class("elastic.State", _WHY, _CHECKPOINTS)
ObjectState = refused_class("elastic.ObjectState", _WHY, _CHECKPOINTS)
TorchState = refused_class("elastic.TorchState", _WHY, _CHECKPOINTS)
ElasticSampler = refused_class(
    "elastic.ElasticSampler",
    _WHY,
    "Use torch.utils.data.DistributedSampler(dataset, hvd.size(), hvd.rank()).",
)
