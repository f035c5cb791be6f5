# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`broadcast` and its relatives: what one rank has, on all of them; and `overlap`.

Source: dataparallel specification, sections 7.5 and 7.8.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from smdistributed._common.settings import process_settings
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPError
from smdistributed.dataparallel.tensorflow import operations, replicas
from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.dataparallel.tensorflow.conversion import require_transportable, to_tensor
from smdistributed.dataparallel.tensorflow.fused import broadcast_fused, chunks_of, num_bytes
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import resolve_group
from smdistributed.dataparallel.tensorflow.operations.labels import label_of, label_of_variables
from smdistributed.dataparallel.tensorflow.teaching import teaching

__all__ = [
    "BroadcastGlobalVariablesHook",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "overlap",
]


@not_converted
@teaching("expected broadcast(tensor, root_rank, name=): the tensor, and whose value all ranks get")
def broadcast(
    tensor: Any, root_rank: int, *, name: str | None = None, group: Group | None = None
) -> Any:
    """The tensor of one rank, on all of them. Starts when all ranks have come.

    Args:
        tensor: as for `allreduce`, of the same shape and dtype on all ranks; of the other ranks
            only these matter.
        root_rank: whose; 0 to `size() - 1`; with a group, a rank in the group.
        name: of this call, the same on all ranks; as for `allreduce`.
        group: as for `allreduce`.

    Returns:
        A new tensor; for a list, a list.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPConfigInvalid: (a ValueError) no such rank; not a tensor.
        SMDDPUnsupported: a dtype that cannot be sent, such as text.
        SMDDPMismatch: on all ranks, where their names, shapes or dtypes differ.

    Source: specification, section 7.5.
    """
    caller = "broadcast()"
    among = resolve_group(group, caller)
    root = _require_rank(root_rank, among, caller)
    tensors = [to_tensor(leaf, caller) for leaf in tf.nest.flatten(tensor)]
    for each in tensors:
        require_transportable(each.dtype, caller)
    if among.size() > 1 and tensors:
        what = f"tensors '{name}'" if name else "tensors"
        label = label_of("broadcast", name or "")
        tensors = broadcast_fused(tensors, root, what, label, group=among)
    return tf.nest.pack_sequence_as(tensor, tensors)


@not_converted
@teaching("expected broadcast_variables(variables, root_rank)")
def broadcast_variables(variables: Any, root_rank: int, *, group: Group | None = None) -> Any:
    """Sets variables to what they are on one rank, so that all ranks begin alike.

    In the first step, after the optimizer has made its own variables:

        if first_batch:
            broadcast_variables(model.variables, root_rank=0)
            broadcast_variables(optimizer.variables, root_rank=0)

    Eagerly, and in `tf.function` under a Python bool or a tensor; whether it runs must be the same
    on all ranks. Variables of one dtype travel together, a bucket (`SMDDP_BUCKET_CAP_MB`) at a
    time, and are set before the next ones are read: the call needs memory for two buckets beside
    the variables, or for the largest variable if that is more.

    Args:
        variables: any iterable of `tf.Variable` or variables of Keras, nested or not, in the same
            order on all ranks; empty: nothing happens. Under model parallelism those of other
            partitions are left out.
        root_rank: whose; 0 to `size() - 1`; with a group, a rank in the group.
        group: as for `allreduce`.

    Returns:
        None. In a graph of TensorFlow 1, the operation to run.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPConfigInvalid: (a ValueError) no such rank; not a variable, or one without a value.
        SMDDPUnsupported: a dtype that cannot be sent, such as text.
        SMDDPMismatch: on all ranks, where they have other variables, or the same ones in another
            order.

    Source: specification, section 7.5.
    """
    caller = "broadcast_variables()"
    among = resolve_group(group, caller)
    root = _require_rank(root_rank, among, caller)
    targets = [each for each in _flatten(variables, caller) if not replicas.is_elsewhere(each)]
    for variable in targets:
        _require_value(variable, caller)
    assignments = _broadcast_in_chunks(targets, root, among) if among.size() > 1 else []
    if _in_tf1_graph():
        return tf.group(*assignments, name="broadcast_variables")
    return None


@not_converted
def broadcast_global_variables(root_rank: int, *, group: Group | None = None) -> Any:
    """An operation that sets all global variables of the graph to what they are on one rank.

    For graphs of TensorFlow 1 alone: `tf.compat.v1.Graph` and sessions. Make it after the
    variables, run it on all ranks after they have been initialised.

    Args:
        root_rank: whose; 0 to `size() - 1`; with a group, a rank in the group.
        group: as for `allreduce`.

    Raises:
        SMDDPError: with eager execution, which has no such collection.
        As `broadcast_variables`.

    Source: specification, section 7.5.
    """
    if not _in_tf1_graph():
        raise SMDDPError(
            "broadcast_global_variables() was called with eager execution, where TensorFlow keeps"
            " no list of global variables; expected a graph of TensorFlow 1. Use"
            " broadcast_variables(model.variables, root_rank), and the same for the optimizer's."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank, group=group)


@not_converted
def overlap(tensor: Any) -> Any:
    """The same tensor: a mark from where on communication might run beside computation.

    Without effect: gradients are reduced as they become ready, marks or not. Legal everywhere,
    inside `jit_compile=True` as well, and before `init()`.

    Args:
        tensor: a tensor, a variable, an array, or a nested structure of these.

    Returns:
        A tensor of the same value, through which gradients flow as they are.

    Source: specification, section 7.5.
    """
    return tf.nest.map_structure(tf.identity, tensor)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Sets all global variables to one rank's, once a session is there and they have values.

        hooks = [BroadcastGlobalVariablesHook(0)]
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:

    For sessions of `tf.compat.v1`. TensorFlow has had no `tf.estimator` since 2.16.

    Args:
        root_rank: whose; 0 to `size() - 1`; with a group, a rank in the group.
        group: as for `allreduce`.

    Source: specification, section 7.8.
    """

    def __init__(self, root_rank: int, *, group: Group | None = None) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._group = group
        self._operation: Any = None

    def begin(self) -> None:
        """Makes the operation: afterwards the graph is final. Called by the session."""
        self._operation = broadcast_global_variables(self._root_rank, group=self._group)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it. Called by the session, which has initialised or restored the variables."""
        session.run(self._operation)


def _in_tf1_graph() -> bool:
    with tf.init_scope():
        return not tf.executing_eagerly()


def _require_rank(root_rank: Any, group: Group, caller: str) -> int:
    try:
        root = operator.index(root_rank)
    except TypeError:
        root = -1
    if not 0 <= root < group.size():
        raise SMDDPConfigInvalid(
            f"{caller} got root_rank={root_rank!r}; expected a rank in {group}, 0 to"
            f" {group.size() - 1}. Pass 0 unless another rank holds the values."
        )
    return root


def _flatten(variables: Any, caller: str) -> Iterator[Any]:
    if _is_variable(variables):
        yield variables
        return
    if isinstance(variables, Mapping):
        variables = variables.values()
    if isinstance(variables, (str, tf.Tensor)) or not isinstance(variables, Iterable):
        raise SMDDPConfigInvalid(
            f"{caller} got a {type(variables).__name__}; expected tf.Variable or variables of"
            " Keras, which can be assigned to. Pass model.variables, or use broadcast() for a"
            " tensor."
        )
    for each in variables:
        yield from _flatten(each, caller)


def _is_variable(value: Any) -> bool:
    """Keras is not asked for its class, which would import it."""
    return isinstance(value, tf.Variable) or (hasattr(value, "assign") and hasattr(value, "value"))


def _broadcast_in_chunks(variables: list[Any], root: int, group: Group) -> list[Any]:
    """Sets variables, chunk by chunk; returns the assignments.

    Nothing of a chunk is kept when the next one begins: its values are read, sent and assigned, and
    in graphs the next one waits for the assignments.
    """
    inner = [_inner(variable) for variable in variables]
    label = label_of("variables", label_of_variables(variables, list(map(_name_of, variables))))
    dtypes = [tf.as_dtype(each.dtype).base_dtype for each in inner]
    sizes = [num_bytes(each.shape, dtype) for each, dtype in zip(inner, dtypes, strict=True)]
    chunks = chunks_of(dtypes, sizes, process_settings().bucket_cap_bytes)
    assignments: list[Any] = []
    done: list[Any] = []
    for number, indices in enumerate(chunks, start=1):
        with tf.control_dependencies([] if tf.executing_eagerly() else done):
            done = [
                variables[index].assign(value)
                for index, value in zip(
                    indices,
                    operations.broadcast(
                        [tf.convert_to_tensor(inner[index]) for index in indices],
                        root,
                        f"broadcast of {len(indices)} {dtypes[indices[0]].name} variables, {number}"
                        f" of {len(chunks)}",
                        label_of(label, number, len(chunks)),
                        group=group.number,
                        is_alone=True,
                    ),
                    strict=True,
                )
            ]
        if not tf.executing_eagerly():
            assignments += done
    return assignments


def _inner(variable: Any) -> Any:
    """TensorFlow's own, of one of Keras."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _name_of(variable: Any) -> str:
    """Keras has the longer name in `path`."""
    return str(getattr(variable, "path", None) or variable.name)


def _require_value(variable: Any, caller: str) -> None:
    name = _name_of(variable)
    inner = _inner(variable)
    is_initialized = getattr(inner, "is_initialized", None)
    if tf.executing_eagerly() and is_initialized is not None and not is_initialized():
        raise SMDDPConfigInvalid(
            f"{caller} got the variable {name}, which has no value yet; expected one to send or to"
            " replace. Call it after the first step, or build the model and the optimizer first."
        )
    require_transportable(tf.as_dtype(inner.dtype).base_dtype, f"{caller} for the variable {name}")
