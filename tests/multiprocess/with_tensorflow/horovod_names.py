# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Of Horovod's names for TensorFlow: the arguments, and what is said of names that do not work.

That all names are there, tests/multiprocess/compat/test_horovod_table.py compares with the page.

Pytest and the ranks import it, so no TensorFlow is imported here.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

PACKAGE = "smdistributed.compat.horovod"

# By module and name, Horovod's arguments of what works, in their order, with their defaults.
_TO_REDUCE = "device_dense='' device_sparse='' compression=Compression.none"
_ACCUMULATED = "backward_passes_per_step=1"
_GROUPED = "num_groups=0 groups=None"
_SET = "process_set=global_process_set"
_LOCAL = "scale_local_gradients=True"
_FACTORS = "prescale_factor=1.0 postscale_factor=1.0"
_TAPE = f"""gradtape {_TO_REDUCE} sparse_as_dense=False op=Average gradient_predivide_factor=1.0
    {_GROUPED} {_SET}"""
_RATE = "momentum_correction=True steps_per_epoch=None"

_ARGUMENTS: dict[str, dict[str, str]] = {
    "tensorflow": {
        "BroadcastGlobalVariablesHook": "root_rank device=''",
        "DistributedGradientTape": f"{_TAPE} {_LOCAL}",
        "DistributedOptimizer": f"""optimizer name=None use_locking=False {_TO_REDUCE}
            sparse_as_dense=False {_ACCUMULATED} op=Average gradient_predivide_factor=1.0
            average_aggregated_gradients=False {_GROUPED} {_SET} {_LOCAL}""",
        "PartialDistributedGradientTape": f"{_TAPE} local_layers=None {_LOCAL}",
        "allgather": f"tensor name=None ignore_name_scope=False {_SET}",
        "allgather_object": f"obj session=None name=None {_SET}",
        "allreduce": f"""tensor average=None {_TO_REDUCE} op=None {_FACTORS} name=None {_SET}
            ignore_name_scope=False""",
        "broadcast": f"tensor root_rank name=None ignore_name_scope=False {_SET}",
        "broadcast_": f"variables root_rank name=None {_SET}",
        "broadcast_global_variables": "root_rank",
        "broadcast_object": f"obj root_rank=0 session=None name=None {_SET}",
        "broadcast_object_fn": f"root_rank=0 session=None name=None {_SET}",
        "broadcast_variables": f"variables root_rank {_SET} inplace=False",
        "grouped_allgather": f"tensors name=None ignore_name_scope=False {_SET}",
        "grouped_allreduce": f"""tensors average=None {_TO_REDUCE} op=None {_FACTORS} {_SET}
            ignore_name_scope=False name=None""",
        "handle_average_backwards_compatibility": "op average",
        "init": "comm=None process_sets=None",
        "join": "",
        "local_rank_op": "name=None",
        "local_size_op": "name=None",
        "process_set_included_op": "process_set_id=0 name=None",
        "rank_op": "name=None",
        "refs_to_vars": "refs",
        "size_op": "process_set_id=0 name=None",
        "start_timeline": "file_path mark_cycles=False",
        "vars_to_refs": "vars",
    },
    "tensorflow.keras": {
        "DistributedOptimizer": f"""optimizer name=None {_TO_REDUCE} sparse_as_dense=False
            gradient_predivide_factor=1.0 op=Average {_ACCUMULATED}
            average_aggregated_gradients=False {_GROUPED} {_SET} {_LOCAL}""",
        "PartialDistributedOptimizer": f"""optimizer name=None {_TO_REDUCE} sparse_as_dense=False
            gradient_predivide_factor=1.0 op=Average {_ACCUMULATED}
            average_aggregated_gradients=False groups=None {_SET} local_layers=None {_LOCAL}""",
        "allgather": "value name=None",
        "allreduce": f"""value name=None average=None {_FACTORS} op=None
            compression=Compression.none""",
        "broadcast": "value root_rank name=None",
        "broadcast_global_variables": "root_rank",
        "init": "comm=None process_sets=None",
        "load_model": """filepath custom_optimizers=None custom_objects=None
            compression=Compression.none legacy_opts=False""",
        "start_timeline": "file_path mark_cycles=False",
    },
    "tensorflow.keras.callbacks": {
        "BestModelCheckpoint": """monitor='val_loss' verbose=0 save_weights_only=False mode='auto'
            save_freq='epoch'""",
        "BroadcastGlobalVariablesCallback": "root_rank device='' local_variables=None",
        "LearningRateScheduleCallback": f"""initial_lr multiplier start_epoch=0 end_epoch=None
            staircase=True {_RATE}""",
        "LearningRateWarmupCallback": f"initial_lr warmup_epochs=5 {_RATE} verbose=0",
        "MetricAverageCallback": "device=''",
    },
}
ARGUMENTS = {
    f"{module}.{name}": text.split()
    for module, names in _ARGUMENTS.items()
    for name, text in names.items()
}

# By module and name: a part of the error that says what to write instead.
REFUSED: dict[str, dict[str, str]] = {
    "tensorflow": {
        "LocalGradientAggregationHelper": "Pass backward_passes_per_step=",
        "ProcessSet": "group= argument",
        "SyncBatchNormalization": "Use tf.keras.layers.BatchNormalization",
        "add_process_set": "group= argument",
        "alltoall": "Gather everything with hvd.allgather()",
        "grouped_reducescatter": "Call hvd.grouped_allreduce()",
        "reducescatter": "Call hvd.allreduce()",
        "remove_process_set": "group= argument",
    },
    "tensorflow.elastic": dict.fromkeys(
        ["TensorFlowKerasState", "TensorFlowState", "run"], "Save a checkpoint now and then"
    ),
    "tensorflow.keras": {
        "ProcessSet": "group= argument",
        "add_process_set": "group= argument",
        "reducescatter": "Call hvd.allreduce()",
        "remove_process_set": "group= argument",
    },
    "tensorflow.keras.elastic": dict.fromkeys(
        (
            "CommitStateCallback",
            "KerasState",
            "UpdateBatchStateCallback",
            "UpdateEpochStateCallback",
            "run",
        ),
        "Save a checkpoint now and then",
    ),
}

# Arguments, as Python that is called with `hvd`, `hk` (for Keras), `tf`, `tape` and `optimizer`:
# other values than those that change nothing.
REFUSED_ARGUMENTS: dict[str, str] = {
    "hvd.allreduce(1.0, op=hvd.Adasum)": "Write op=hvd.Average",
    "hvd.allreduce(1.0, op=hvd.Product)": "Gather the ranks' values",
    "hvd.allreduce(1.0, process_set=[0])": "Leave the argument out",
    "hvd.allreduce(1.0, device_dense='/gpu:0')": "Leave it out",
    "hvd.allreduce(1.0, device_sparse='/gpu:0')": "Leave it out",
    "hvd.allreduce(slices, op=hvd.Max)": "tf.convert_to_tensor(slices)",
    "hvd.allreduce(slices, prescale_factor=2.0)": "tf.convert_to_tensor(slices)",
    "hvd.allgather([1.0], process_set=[0])": "Leave the argument out",
    "hvd.broadcast(1.0, 0, process_set=[0])": "Leave the argument out",
    "hvd.broadcast_object(1, process_set=[0])": "Leave the argument out",
    "hvd.init(comm=[0, 1])": "Leave it out",
    "hvd.init(process_sets=[[0]])": "new_group()",
    "hvd.size_op(process_set_id=1)": "Leave it out",
    "hvd.start_timeline('x.json', mark_cycles=True)": "Leave it out",
    "hvd.BroadcastGlobalVariablesHook(0, '/gpu:0')": "Leave it out",
    "hvd.DistributedGradientTape(tape, num_groups=2)": "SMDDP_BUCKET_CAP_MB",
    "hvd.DistributedGradientTape(tape, groups=[[]])": "SMDDP_BUCKET_CAP_MB",
    "hvd.DistributedGradientTape(tape, process_set=[0])": "Leave the argument out",
    "hvd.DistributedGradientTape(tape, '/gpu:0')": "Leave it out",
    "hvd.DistributedGradientTape(tape, op=hvd.Adasum)": "Write op=hvd.Average",
    "hvd.DistributedGradientTape(tape).register_local_source(1)": "with another tape",
    "hvd.DistributedGradientTape(tape).get_local_and_global_gradients(1, [])": "another tape",
    "hvd.PartialDistributedGradientTape(tape, local_layers=[1])": "optimizer of their own",
    "hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)": "Write op=hvd.Average",
    "hvd.DistributedOptimizer(optimizer, groups=3)": "SMDDP_BUCKET_CAP_MB",
    "hvd.DistributedOptimizer(optimizer, device_sparse='/gpu:0')": "Leave it out",
    "hk.DistributedOptimizer(optimizer, num_groups=1)": "SMDDP_BUCKET_CAP_MB",
    "hk.DistributedOptimizer(optimizer, process_set=[0])": "Leave the argument out",
    "hk.PartialDistributedOptimizer(optimizer, local_layers=[1])": "optimizer of their own",
    "hk.callbacks.BroadcastGlobalVariablesCallback(0, '', [1])": "callback of your own",
    "hk.callbacks.BroadcastGlobalVariablesCallback(0).register_local_var(1)": "of your own",
    "hk.callbacks.MetricAverageCallback('/gpu:0')": "device is not supported",
}

# What needs the other ranks, as calls with `hvd`, `hk`, `tf`, `tape` (which has recorded x, of w),
# `in_graph` and `optimizer`; and the name by which the error before `init()` calls it.
BEFORE_INIT: dict[str, str] = {
    "hvd.rank()": "rank",
    "hvd.size()": "size",
    "hvd.local_rank()": "local_rank",
    "hvd.local_size()": "local_size",
    "hvd.cross_rank()": "cross_rank",
    "hvd.cross_size()": "cross_size",
    "hvd.is_homogeneous()": "is_homogeneous",
    "hvd.rank_op()": "rank",
    "hvd.start_timeline('x.json')": "start_timeline",
    "hvd.stop_timeline()": "stop_timeline",
    "hvd.allreduce(1.0)": "allreduce",
    "hvd.allreduce(None)": "allreduce",
    "hvd.allreduce(slices)": "allreduce",
    "hvd.grouped_allreduce([1.0])": "grouped_allreduce",
    "hvd.grouped_allreduce([])": "grouped_allreduce",
    "hvd.allgather([1.0])": "allgather",
    "hvd.grouped_allgather([[1.0]])": "grouped_allgather",
    "hvd.broadcast(1.0, 0)": "broadcast",
    "hvd.broadcast_([tf.Variable(1.0)], 0)": "broadcast_",
    "hvd.broadcast_variables([tf.Variable(1.0)], 0)": "broadcast_variables",
    "in_graph(hvd.broadcast_global_variables, 0)": "broadcast_global_variables",
    "in_graph(hvd.BroadcastGlobalVariablesHook(0).begin)": "BroadcastGlobalVariablesHook",
    "hvd.broadcast_object(1)": "broadcast_object",
    "hvd.broadcast_object_fn()(1)": "broadcast_object",
    "hvd.allgather_object(1)": "allgather_object",
    "hvd.barrier()": "barrier",
    "hvd.join()": "join",
    "hvd.DistributedGradientTape(tape).gradient(x, w)": "DistributedGradientTape",
    "hvd.DistributedOptimizer(optimizer).apply_gradients([(x, w)])": "DistributedOptimizer",
    "hk.DistributedOptimizer(optimizer).apply_gradients([(x, w)])": "DistributedOptimizer",
    "hk.allreduce(1.0)": "allreduce",
    "hk.allgather([1.0])": "allgather",
    "hk.broadcast(1.0, 0)": "broadcast",
    "in_graph(hk.broadcast_global_variables, 0)": "broadcast_global_variables",
    **{
        f"hk.callbacks.{name}({arguments}).on_train_begin()": f"callbacks.{name}"
        for name, arguments in {
            "BestModelCheckpoint": "'best.keras'",
            "BroadcastGlobalVariablesCallback": "0",
            "LearningRateScheduleCallback": "0.1, 1.0",
            "LearningRateWarmupCallback": "0.1",
            "MetricAverageCallback": "",
        }.items()
    },
}
