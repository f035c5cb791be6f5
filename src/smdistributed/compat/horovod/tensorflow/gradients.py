# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The tape and the optimizers, with Horovod's arguments.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

from typing import Any

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.common import Average, Sum
from smdistributed.compat.horovod.tensorflow.job import (
    global_process_set,
    require_job,
    require_no_model_parallelism,
)
from smdistributed.compat.horovod.tensorflow.mpi_ops import reduce_op
from smdistributed.dataparallel.compression import Compression, Compressor, resolve_compression
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = [
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "distributed_optimizer",
    "require_no_local_layers",
]


def DistributedGradientTape(  # noqa: N802 -- Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a tape: `gradient()` then returns the gradients averaged over all ranks.

    Args:
        gradtape: a `tf.GradientTape`.
        device_dense, device_sparse: empty, or a CPU.
        compression: `Compression.none`, `Compression.fp16`, or a class like them.
        sparse_as_dense: make `tf.IndexedSlices` dense; False: gather their rows.
        op: `Average` or `Sum`.
        gradient_predivide_factor: divide by it before the sum, and multiply afterwards; with
            `Average` only.
        num_groups, groups: 0 and None: gradients are put together by size.
        process_set: that of all ranks.
        scale_local_gradients: without effect, since there are no local gradients.

    Returns:
        A tape, of a class derived from that of `gradtape`.

    Raises:
        SMDDPUnsupported: an argument that has no effect here would have one.
        As `smdistributed.dataparallel.tensorflow.DistributedGradientTape`.
    """
    caller = "DistributedGradientTape"
    require_no_model_parallelism(caller)
    _require_no_groups(caller, num_groups, groups, process_set)
    common.require_host(caller, device_dense=device_dense, device_sparse=device_sparse)
    tape = sdp.DistributedGradientTape(
        gradtape,
        compression=_predivided(compression, gradient_predivide_factor, op, caller),
        sparse_as_dense=sparse_as_dense,
        op=reduce_op_of_gradients(op, caller),
        group=_all_ranks(caller),
    )
    tape.register_local_source = _register_local_source
    tape.get_local_and_global_gradients = _get_local_and_global_gradients
    return tape


def PartialDistributedGradientTape(  # noqa: N802 -- Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedGradientTape`, without local layers. Raises `SMDDPUnsupported` with some."""
    require_no_local_layers("PartialDistributedGradientTape", local_layers)
    return DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )


def DistributedOptimizer(  # noqa: N802 -- Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer reduce gradients over all ranks before it uses them.

    Args:
        optimizer: of Keras 3, tf-keras, or `tf.compat.v1.train`; changed in place.
        name: of the optimizer; default: "Distributed" and the name of its class.
        use_locking: for `tf.compat.v1.train.Optimizer`; others have no locks.
        backward_passes_per_step, average_aggregated_gradients: as in
            `smdistributed.dataparallel.tensorflow.DistributedOptimizer`.
        device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor,
        num_groups, groups, process_set, scale_local_gradients: as for `DistributedGradientTape`.

    Returns:
        The object that was given.

    Raises:
        SMDDPUnsupported: an argument that has no effect here would have one.
        As `smdistributed.dataparallel.tensorflow.DistributedOptimizer`.
    """
    return distributed_optimizer(
        optimizer,
        name=name,
        use_locking=use_locking,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
    )


def distributed_optimizer(
    optimizer: Any,
    *,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    op: Any,
    gradient_predivide_factor: float,
    num_groups: int,
    groups: Any,
    process_set: Any,
    **others: Any,
) -> Any:
    """What the functions of this name share, whichever order their arguments have."""
    caller = "DistributedOptimizer"
    require_no_model_parallelism(caller)
    _require_no_groups(caller, num_groups, groups, process_set)
    common.require_host(caller, device_dense=device_dense, device_sparse=device_sparse)
    return sdp.DistributedOptimizer(
        optimizer,
        name=name or f"Distributed{optimizer.__class__.__name__}",
        compression=_predivided(compression, gradient_predivide_factor, op, caller),
        op=reduce_op_of_gradients(op, caller),
        group=_all_ranks(caller),
        **others,
    )


def reduce_op_of_gradients(op: Any, caller: str) -> Any:
    """`Average` or `Sum`, as `smdistributed.dataparallel.tensorflow` has it."""
    common.resolve(None, op, caller, (Average, Sum))
    return reduce_op(None, op, caller)


def require_no_local_layers(caller: str, local_layers: Any) -> None:
    """Raises `SMDDPUnsupported` if there are layers whose gradients are to stay local."""
    why = "the gradients of all variables are reduced here"
    advice = (
        "Apply the gradients of such layers with an optimizer of their own that is not distributed."
    )
    common.require_neutral(caller, "local_layers", local_layers, (None, [], ()), why, advice)


def _require_no_groups(caller: str, num_groups: Any, groups: Any, process_set: Any) -> None:
    why = "gradients are put together by size, in buckets of SMDDP_BUCKET_CAP_MB"
    common.require_neutral(caller, "num_groups", num_groups, (0,), why, "Leave it out.")
    common.require_neutral(caller, "groups", groups, (None,), why, "Leave it out.")
    common.require_all_ranks(process_set, caller)


def _all_ranks(caller: str) -> Any:
    """As `group=`: all ranks, of the job that is there when gradients are reduced.

    Tapes and optimizers may be made before `init()`, which must be called before they are used.
    """

    def group() -> None:
        require_no_model_parallelism(caller)
        require_job(caller)

    return group


def _predivided(compression: Any, factor: Any, op: Any, caller: str) -> Compressor:
    """A compressor that also divides before, and multiplies after."""
    inner = resolve_compression(compression)
    if factor == 1.0:
        return inner
    if not isinstance(factor, int | float) or factor <= 0 or op is not Average:
        raise SMDDPConfigInvalid(
            f"hvd.{caller}() got gradient_predivide_factor={factor!r} and op={op!r}; expected a"
            " number above 0, with op=hvd.Average. Leave it out, or leave out op."
        )

    class Predivided:
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return inner.compress(tensor / factor)

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return inner.decompress(tensor, ctx) * factor

    return Predivided


_WHY_LOCAL = "the gradients of all sources are reduced here"
_INSTEAD_LOCAL = "Take the gradients of local sources with another tape, which is not distributed."
_register_local_source = common.refused("tape.register_local_source", _WHY_LOCAL, _INSTEAD_LOCAL)
_get_local_and_global_gradients = common.refused(
    "tape.get_local_and_global_gradients", _WHY_LOCAL, _INSTEAD_LOCAL
)
LocalGradientAggregationHelper = common.refused_class(
    "LocalGradientAggregationHelper",
    "optimizers add up gradients by themselves",
    "Pass backward_passes_per_step= to hvd.DistributedOptimizer().",
)
