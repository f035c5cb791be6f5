# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_uneven_steps.py run: two replicas of two partitions, some of them late."""

from __future__ import annotations

import time

STEPS = 3  # that all have run when some go elsewhere


def run_late(rank: int, world_size: int, away_s: float) -> tuple[list[list[str]], str]:
    """What this rank has warned of, by who was away for so long; and its error in the last step.

    After some steps the second replica is away, and a step later the second rank of each replica.
    All come back. At last the second rank of each replica leaves.
    """
    import tensorflow as tf
    from hybrid_ranks import a_job, batch_of, dense, documented
    from with_tensorflow.modelparallel.job_ranks import warnings

    import smdistributed.modelparallel.tensorflow as smp

    tf.config.threading.set_inter_op_parallelism_threads(1)
    found = []
    with a_job():
        _, train_step = documented(dense, tf.keras.optimizers.SGD(0.1), list)
        batch = batch_of(dense, 0, smp.dp_rank())
        for step in range(STEPS):
            train_step(*batch, tf.constant(step == 0))
        for replica_or_rank in (smp.dp_rank(), smp.mp_rank()):
            smp.barrier()
            with warnings() as said:
                if replica_or_rank == 1:
                    time.sleep(away_s)
                train_step(*batch, tf.constant(False))
                smp.barrier()
            found.append(list(said))
        try:
            if smp.mp_rank() == 0:
                train_step(*batch, tf.constant(False))
        except tf.errors.AbortedError as error:
            return found, str(error)
    return found, ""
