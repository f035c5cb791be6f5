# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The legacy `DistributedDataParallel`. Deprecated since 1.4.0; `docs/legacy_api.md` tells more.

    distributed     the class, a subclass of torch's
    reducer         what happens to gradients during backward, and when
    averaging       how a bucket is averaged
    arrivals        hooks by which gradients are found when they arrive
    buckets         memory in which gradients lie and are reduced
    comm_hook       buckets as torch's communication hooks expect them
    agreement       do all ranks wrap the same model?
    join            ranks that have run out of batches

Source: dataparallel specification, section 5.2.
"""

from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
