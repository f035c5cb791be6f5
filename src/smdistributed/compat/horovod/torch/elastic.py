# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Names of Horovod's elastic training, which is not there. Source: see docs/horovod.md."""

from __future__ import annotations

from smdistributed.compat.horovod.common import (
    ELASTIC_INSTEAD,
    ELASTIC_WHY,
    refused,
    refused_class,
)

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]

run = refused("elastic.run", ELASTIC_WHY, ELASTIC_INSTEAD)
State = refused_class("elastic.State", ELASTIC_WHY, ELASTIC_INSTEAD)
ObjectState = refused_class("elastic.ObjectState", ELASTIC_WHY, ELASTIC_INSTEAD)
TorchState = refused_class("elastic.TorchState", ELASTIC_WHY, ELASTIC_INSTEAD)
ElasticSampler = refused_class(
    "elastic.ElasticSampler",
    ELASTIC_WHY,
    "Use torch.utils.data.DistributedSampler(dataset, hvd.size(), hvd.rank()).",
)
