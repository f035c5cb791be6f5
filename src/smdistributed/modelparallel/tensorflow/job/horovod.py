# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `hvd.*` means in a job of model parallelism: the DP group. Never all ranks.

Without replicas that is a group of one: what scripts do with several then changes nothing.

Source: TensorFlow modelparallel specification, section 7.
"""

from __future__ import annotations

import contextlib
import sys

from smdistributed.dataparallel.tensorflow import replicas
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.tensorflow.job.state import Job
from smdistributed.modelparallel.tensorflow.remedies import hooks

__all__ = ["require_stand_in", "tell_horovod"]


def tell_horovod(job: Job, leaving: contextlib.ExitStack) -> None:
    """From now on, until the job ends, `hvd.*` means its replicas.

    Raises:
        ConfigError: as of `require_stand_in`.
    """
    require_stand_in()
    replicas.tell(job.horovod_group, hooks.is_elsewhere)
    leaving.callback(replicas.forget)


def require_stand_in() -> None:
    """Does nothing, unless the process has imported another `horovod` than ours.

    Horovod itself is not told of replicas: its ranks would be all, in silence.

    Raises:
        ConfigError: (a ValueError) it has.
    """
    module = sys.modules.get("horovod.tensorflow")
    owner = getattr(getattr(module, "allreduce", None), "__module__", None) or "smdistributed"
    if module is not None and not owner.startswith("smdistributed"):
        raise ConfigError(
            f"Horovod is imported from {module.__file__}: its hvd.* means all ranks, which have"
            " different variables here; expected this package's hvd.*, which means the replicas."
            " Uninstall Horovod, or write: import smdistributed.compat.horovod.tensorflow as hvd."
        )
