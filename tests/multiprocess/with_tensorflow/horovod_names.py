# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Public names of Horovod for TensorFlow: those that work, and what is said of those that do not.

Pytest and the ranks import it, so no TensorFlow is imported here.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

PACKAGE = "smdistributed.compat.horovod"

# By module: names that work, also with differences.
_WORKING: dict[str, str] = {
    "tensorflow": """
        Adasum Average BroadcastGlobalVariablesHook Compression DistributedGradientTape
        DistributedOptimizer Max Min PartialDistributedGradientTape Product Sum allgather
        allgather_object allreduce barrier broadcast broadcast_ broadcast_global_variables
        broadcast_object broadcast_object_fn broadcast_variables ccl_built
        check_num_rank_power_of_2 cross_rank cross_size cuda_built ddl_built elastic
        global_process_set gloo_built gloo_enabled grouped_allgather grouped_allreduce
        handle_average_backwards_compatibility init is_homogeneous is_initialized join keras
        local_rank local_rank_op local_size local_size_op mpi_built mpi_enabled
        mpi_threads_supported nccl_built process_set_included_op rank rank_op refs_to_vars
        rocm_built shutdown size size_op start_timeline stop_timeline vars_to_refs
        """,
    "tensorflow.mpi_ops": "allgather allreduce broadcast broadcast_ join rank size init",
    "tensorflow.functions": """
        allgather_object broadcast_object broadcast_object_fn broadcast_variables
        """,
    "tensorflow.compression": "Compression Compressor FP16Compressor NoneCompressor",
    "tensorflow.keras": """
        Average Compression DistributedOptimizer PartialDistributedOptimizer Sum allgather allreduce
        broadcast broadcast_global_variables callbacks ccl_built cross_rank cross_size cuda_built
        ddl_built elastic global_process_set gloo_built gloo_enabled init is_initialized load_model
        local_rank local_size mpi_built mpi_enabled mpi_threads_supported nccl_built rank rocm_built
        shutdown size start_timeline stop_timeline
        """,
    "tensorflow.keras.callbacks": """
        BestModelCheckpoint BroadcastGlobalVariablesCallback LearningRateScheduleCallback
        LearningRateWarmupCallback MetricAverageCallback
        """,
}

WORKING = {module: names.split() for module, names in _WORKING.items()}

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
    "hvd.allreduce(1.0, device_dense='/gpu:0')": "device_dense is not supported",
    "hvd.allreduce(1.0, device_sparse='/gpu:0')": "device_sparse is not supported",
    "hvd.allreduce(slices, op=hvd.Max)": "tf.convert_to_tensor(slices)",
    "hvd.allreduce(slices, prescale_factor=2.0)": "tf.convert_to_tensor(slices)",
    "hvd.allgather([1.0], process_set=[0])": "Leave the argument out",
    "hvd.broadcast(1.0, 0, process_set=[0])": "Leave the argument out",
    "hvd.broadcast_object(1, process_set=[0])": "Leave the argument out",
    "hvd.init(comm=[0, 1])": "Leave it out",
    "hvd.init(process_sets=[[0]])": "new_group()",
    "hvd.size_op(process_set_id=1)": "Leave it out",
    "hvd.start_timeline('x.json', mark_cycles=True)": "Leave it out",
    "hvd.BroadcastGlobalVariablesHook(0, '/cpu:0')": "is not supported",
    "hvd.DistributedGradientTape(tape, num_groups=2)": "SMDDP_BUCKET_CAP_MB",
    "hvd.DistributedGradientTape(tape, groups=[[]])": "SMDDP_BUCKET_CAP_MB",
    "hvd.DistributedGradientTape(tape, process_set=[0])": "Leave the argument out",
    "hvd.DistributedGradientTape(tape, '/cpu:0')": "device_dense is not supported",
    "hvd.DistributedGradientTape(tape, op=hvd.Adasum)": "Write op=hvd.Average",
    "hvd.DistributedGradientTape(tape).register_local_source(1)": "with another tape",
    "hvd.DistributedGradientTape(tape).get_local_and_global_gradients(1, [])": "another tape",
    "hvd.PartialDistributedGradientTape(tape, local_layers=[1])": "optimizer of their own",
    "hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)": "Write op=hvd.Average",
    "hvd.DistributedOptimizer(optimizer, groups=3)": "SMDDP_BUCKET_CAP_MB",
    "hvd.DistributedOptimizer(optimizer, device_sparse='/cpu:0')": "is not supported",
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
