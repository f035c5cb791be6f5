# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Model parallel training with TensorFlow. Scripts import this package as `smp`.

    import smdistributed.modelparallel.tensorflow as smp

    smp.init({"partitions": 2, "microbatches": 4, "horovod": True})
    smp.rank(), smp.mp_rank(), smp.get_dp_group()

`smp.init()` places every process in a mesh: the partitions of a model (MP), and its replicas (DP).
Parameters: `smdistributed.modelparallel.decide.config`. What the process knows is in `smp.state`.

Each folder is a room, and its docstring says what to read first:

| Room | Question |
| --- | --- |
| `reporting` | What did the ranks do with their time and memory? |
| `checkpoints` | What is kept of a training, and how does it come back? |
| `step` | What does a call of a step function do? |
| `training` | How do Keras' own loops train and use a model? |
| `model` | What is a model whose parts are on several ranks? |
| `updates` | What do optimizers ask the ranks that have the other variables? |
| `run` | How does a rank run its part of a step? |
| `graph` | How is a step traced, decided on and cut? |
| `containers` | How are arguments cut, and results gathered? |
| `variables` | Who has a variable, and when does it get its value? |
| `remedies` | How do scripts of TensorFlow 2.3 run today? |
| `job` | Which rank am I, and what do ranks tell each other outside of a step? |

The files beside these folders (`compat`, `core`, `exceptions`) are paths that scripts import from.

Source: TensorFlow modelparallel specification, sections 1 to 6.
"""

from __future__ import annotations

from typing import NoReturn

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        f"smdistributed.modelparallel.tensorflow needs TensorFlow, which cannot be imported"
        f" ({error}); expected TensorFlow 2. Run: pip install smdistributed-open[tensorflow]"
    ) from error

if int(tf.__version__.partition(".")[0]) < 2:
    raise ImportError(
        f"smdistributed.modelparallel.tensorflow found TensorFlow {tf.__version__}; expected"
        " TensorFlow 2. Run: pip install smdistributed-open[tensorflow]"
    )

from smdistributed.modelparallel.tensorflow import compat, core, exceptions, remedies, updates
from smdistributed.modelparallel.tensorflow.checkpoints.keras_callbacks import lead_callbacks
from smdistributed.modelparallel.tensorflow.checkpoints.keras_methods import (
    answer_for_whole_models,
)
from smdistributed.modelparallel.tensorflow.checkpoints.manager import CheckpointManager
from smdistributed.modelparallel.tensorflow.checkpoints.plain_classes import guard_tensorflow
from smdistributed.modelparallel.tensorflow.containers.step_output import StepOutput
from smdistributed.modelparallel.tensorflow.exceptions import SMPNotInitialized
from smdistributed.modelparallel.tensorflow.graph.labels import partition
from smdistributed.modelparallel.tensorflow.graph.tracing import current_trace
from smdistributed.modelparallel.tensorflow.job.communication import (
    CommGroup,
    RankType,
    allgather,
    barrier,
    broadcast,
    dp_barrier,
    mp_barrier,
    pp_barrier,
    rdp_barrier,
    recv_from,
    send,
    tp_barrier,
)
from smdistributed.modelparallel.tensorflow.job.initialization import (
    init,
    is_initialized,
    reset,
    shutdown,
)
from smdistributed.modelparallel.tensorflow.job.ranks import (
    dp_rank,
    dp_size,
    get_dp_group,
    get_dp_process_group,
    get_mp_group,
    get_mp_process_group,
    get_pp_group,
    get_pp_process_group,
    get_rdp_group,
    get_rdp_process_group,
    get_tp_group,
    get_tp_process_group,
    get_world_process_group,
    local_rank,
    local_size,
    mp_rank,
    mp_size,
    num_microbatches,
    pp_rank,
    pp_size,
    rank,
    rdp_rank,
    rdp_size,
    size,
    tp_rank,
    tp_size,
)
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.model.distributed_model import DistributedModel
from smdistributed.modelparallel.tensorflow.model.statistics import average_statistics
from smdistributed.modelparallel.tensorflow.reporting.plan import plan
from smdistributed.modelparallel.tensorflow.reporting.report import (
    recording,
    report,
    start_from_environment,
)
from smdistributed.modelparallel.tensorflow.step.gradients import gradients_in_step
from smdistributed.modelparallel.tensorflow.step.hooks import register_post_partition_hook
from smdistributed.modelparallel.tensorflow.step.step_function import step
from smdistributed.modelparallel.tensorflow.updates.clipping import clip_by_global_norm
from smdistributed.modelparallel.tensorflow.variables import is_elsewhere

WORLD = CommGroup.WORLD
MP_GROUP = CommGroup.MP_GROUP
DP_GROUP = CommGroup.DP_GROUP
PP_GROUP = CommGroup.PP_GROUP
TP_GROUP = CommGroup.TP_GROUP
RDP_GROUP = CommGroup.RDP_GROUP

WORLD_RANK = RankType.WORLD_RANK
MP_RANK = RankType.MP_RANK
DP_RANK = RankType.DP_RANK
PP_RANK = RankType.PP_RANK
TP_RANK = RankType.TP_RANK
RDP_RANK = RankType.RDP_RANK

__all__ = [
    "DP_GROUP",
    "DP_RANK",
    "MP_GROUP",
    "MP_RANK",
    "PP_GROUP",
    "PP_RANK",
    "RDP_GROUP",
    "RDP_RANK",
    "TP_GROUP",
    "TP_RANK",
    "WORLD",
    "WORLD_RANK",
    "CheckpointManager",
    "CommGroup",
    "DistributedModel",
    "RankType",
    "SMPNotInitialized",
    "StepOutput",
    "allgather",
    "average_statistics",
    "barrier",
    "broadcast",
    "clip_by_global_norm",
    "compat",
    "core",
    "dp_barrier",
    "dp_rank",
    "dp_size",
    "exceptions",
    "get_dp_group",
    "get_dp_process_group",
    "get_mp_group",
    "get_mp_process_group",
    "get_pp_group",
    "get_pp_process_group",
    "get_rdp_group",
    "get_rdp_process_group",
    "get_tp_group",
    "get_tp_process_group",
    "get_world_process_group",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mp_barrier",
    "mp_rank",
    "mp_size",
    "num_microbatches",
    "partition",
    "plan",
    "pp_barrier",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_barrier",
    "rdp_rank",
    "rdp_size",
    "recording",
    "recv_from",
    "register_post_partition_hook",
    "report",
    "reset",
    "send",
    "shutdown",
    "size",
    "state",
    "step",
    "tp_barrier",
    "tp_rank",
    "tp_size",
]

remedies.set_hooks(
    is_tracing=lambda: current_trace() is not None,
    is_elsewhere=is_elsewhere,
    gradients=gradients_in_step,
)
updates.install()  # beneath the remedies
remedies.install()
guard_tensorflow()
answer_for_whole_models()
lead_callbacks()
start_from_environment()

_MANAGER = "Use smp.CheckpointManager."
_OWN_VARIABLES = "Leave it out: each rank allocates the variables of its own partition only."
_IN_CALL = "Write `with smp.partition(index):` in the model's call()."
# Names of PyTorch's library that scripts may carry over, and what to do instead.
_PYTORCH_ONLY = {
    "DistributedOptimizer": "Use an optimizer of Keras as it is.",
    "amp": "Use tf.keras.mixed_precision.",
    "delay_param_initialization": _OWN_VARIABLES,
    "get_partition": _IN_CALL,
    "load": _MANAGER,
    "model_creation": _OWN_VARIABLES,
    "nn": "Use layers of Keras.",
    "optimizers": "Use an optimizer of Keras as it is.",
    "resume_from_checkpoint": _MANAGER,
    "save": _MANAGER,
    "save_checkpoint": _MANAGER,
    "save_safetensors": _MANAGER,
    "set_activation_checkpointing": (
        "Write super().__init__(activation_checkpointing=True) in the model's __init__."
    ),
    "set_partition": _IN_CALL,
}


def __getattr__(name: str) -> NoReturn:
    """Source: TensorFlow modelparallel specification, section 5.6."""
    if name in _PYTORCH_ONLY:
        raise AttributeError(
            f"smp.{name} is PyTorch only; expected a name of the library for TensorFlow."
            f" {_PYTORCH_ONLY[name]}"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
