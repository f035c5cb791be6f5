# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Model parallel training with PyTorch. Scripts import this package as `smp`.

    import smdistributed.modelparallel.torch as smp

    smp.init({"pipeline_parallel_degree": 2, "microbatches": 4, "ddp": True})
    smp.rank(), smp.pp_rank(), smp.get_dp_process_group()

`smp.init()` places every process in a mesh: the partitions of a model (PP), slices of single
modules (TP), and replicas (RDP). Parameters: `smdistributed.modelparallel.decide.config`. What the
process knows is in `smp.state`.

Each folder is a room, and its docstring says what to read first:

| Room | Question |
| --- | --- |
| `delayed_initialization` | How is a model built without memory for what other ranks hold? |
| `job` | Which rank am I, and what do ranks tell each other outside of a step? |
| `modules` | Which partition is each module in? Which parameters are on this rank? |
| `partitioning` | Who decides that, and from what? |
| `pipeline` | What happens in a step? What happens when a message comes? |
| `recompute` | What is computed again in the backward pass, to save memory? |
| `replicas` | How are gradients averaged between copies of the model? |
| `optimizer` | Who updates which parameter, and in which dtype? |
| `saving` | Who saves what, and who reads it? |
| `model` | What is behind `smp.DistributedModel`? |
| `reporting` | Where does the time go, and the memory? |
| `containers` | How is a list or a dict of tensors taken apart? |

The files beside these folders (`amp`, `core`, `exceptions`, `nn`, `optimizers`, `patches`,
`state_mod`, `step`, `utils`), and `model`, are the paths that scripts import from.

Source: modelparallel specification, sections 0 to 5.
"""

from smdistributed.modelparallel.torch import (
    amp,
    core,
    exceptions,
    model,
    nn,
    optimizers,
    patches,
    utils,
)
from smdistributed.modelparallel.torch.delayed_initialization.model_creation import (
    delay_param_initialization,
    model_creation,
)
from smdistributed.modelparallel.torch.exceptions import SMPNotInitialized
from smdistributed.modelparallel.torch.job.communication import (
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
from smdistributed.modelparallel.torch.job.initialization import (
    init,
    is_initialized,
    prepare,
    reset,
    shutdown,
)
from smdistributed.modelparallel.torch.job.ranks import (
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
from smdistributed.modelparallel.torch.job.state import state
from smdistributed.modelparallel.torch.model.distributed_model import DistributedModel
from smdistributed.modelparallel.torch.modules.assignment import (
    get_partition,
    partition,
    set_partition,
)
from smdistributed.modelparallel.torch.optimizer.distributed_optimizer import DistributedOptimizer
from smdistributed.modelparallel.torch.pipeline.pipeline import is_tracing
from smdistributed.modelparallel.torch.pipeline.step_output import StepOutput
from smdistributed.modelparallel.torch.recompute.recomputing_modules import (
    set_activation_checkpointing,
)
from smdistributed.modelparallel.torch.reporting.plan import plan
from smdistributed.modelparallel.torch.reporting.report import (
    recording,
    report,
    start_from_environment,
)
from smdistributed.modelparallel.torch.saving.checkpoints.save_and_resume import (
    resume_from_checkpoint,
    save_checkpoint,
    save_safetensors,
)
from smdistributed.modelparallel.torch.saving.rank_files import load, save
from smdistributed.modelparallel.torch.step import step
from smdistributed.modelparallel.torch.utils import rmsg

start_from_environment()

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
    "CommGroup",
    "DistributedModel",
    "DistributedOptimizer",
    "RankType",
    "SMPNotInitialized",
    "StepOutput",
    "allgather",
    "amp",
    "barrier",
    "broadcast",
    "core",
    "delay_param_initialization",
    "dp_barrier",
    "dp_rank",
    "dp_size",
    "exceptions",
    "get_dp_group",
    "get_dp_process_group",
    "get_mp_group",
    "get_mp_process_group",
    "get_partition",
    "get_pp_group",
    "get_pp_process_group",
    "get_rdp_group",
    "get_rdp_process_group",
    "get_tp_group",
    "get_tp_process_group",
    "get_world_process_group",
    "init",
    "is_initialized",
    "is_tracing",
    "load",
    "local_rank",
    "local_size",
    "model",
    "model_creation",
    "mp_barrier",
    "mp_rank",
    "mp_size",
    "nn",
    "num_microbatches",
    "optimizers",
    "partition",
    "patches",
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
    "report",
    "reset",
    "resume_from_checkpoint",
    "rmsg",
    "save",
    "save_checkpoint",
    "save_safetensors",
    "send",
    "set_activation_checkpointing",
    "set_partition",
    "shutdown",
    "size",
    "state",
    "step",
    "tp_barrier",
    "tp_rank",
    "tp_size",
    "utils",
]

prepare()
