# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which GPU this process uses.

Source: TensorFlow modelparallel specification, section 5.1.
"""

from __future__ import annotations

import tensorflow as tf

from smdistributed._common.log import get_logger

__all__ = ["pin_gpu"]


def pin_gpu(local_rank: int) -> None:
    """Lets TensorFlow see the GPU of this local rank alone, and take its memory as it needs it.

    Otherwise each process would take memory of all of them. Nothing is changed where a launcher
    shows one GPU, where there is none, and where the script has chosen devices.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) < 2 or tf.config.get_visible_devices("GPU") != gpus:
        return
    if any(tf.config.get_logical_device_configuration(gpu) for gpu in gpus):
        return
    own = gpus[local_rank % len(gpus)]
    try:
        tf.config.set_visible_devices([own], "GPU")
        tf.config.experimental.set_memory_growth(own, True)
    except RuntimeError as error:
        get_logger().warning(
            "smp.init() could not choose the GPU %s (%s); expected to be called before TensorFlow"
            " uses a device, and this process may take memory of all %d GPUs. Call smp.init()"
            " first, or call tf.config.set_visible_devices() at the start of the script.",
            own.name,
            error,
            len(gpus),
        )
