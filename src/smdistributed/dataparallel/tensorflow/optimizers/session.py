# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of TensorFlow 1 that reduce gradients as they compute them.

`compute_gradients` is the one door: `minimize` calls it, and scripts that clip call it themselves
and hand the result to `apply_gradients`.

In a graph of TensorFlow 1 the reductions of one call are chained, bucket after bucket. What else
communicates in the same `session.run` must be chained by whoever builds it, since TensorFlow runs
what is independent in any order.

Source: dataparallel specification, section 7.7.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from smdistributed.dataparallel.compression import Compressor
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.tensorflow.gradient_reduction import reduce_gradients
from smdistributed.dataparallel.tensorflow.groups import Group

__all__ = ["distributed"]


@dataclasses.dataclass(frozen=True)
class _Options:
    name: str
    op: Any
    compression: Compressor
    sparse_as_dense: bool
    bucket_cap_bytes: int
    group: Group | None


class _SessionDistributed:
    """What a distributed optimizer of TensorFlow 1 does in another way."""

    _smddp_options: _Options

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As the wrapped optimizer, with gradients reduced over all ranks."""
        parent: Any = super()
        pairs = parent.compute_gradients(*args, **kwargs)
        options = self._smddp_options
        reduced = reduce_gradients(
            [gradient for gradient, _ in pairs],
            variables=[variable for _, variable in pairs],
            op=options.op,
            compression=options.compression,
            sparse_as_dense=options.sparse_as_dense,
            bucket_cap_bytes=options.bucket_cap_bytes,
            group=options.group,
        )
        return [
            (gradient, variable) for gradient, (_, variable) in zip(reduced, pairs, strict=True)
        ]

    def get_name(self) -> str:
        """The name of the operations that apply gradients."""
        # Not `_name`: the optimizer's variables are called by that, in checkpoints too.
        return self._smddp_options.name


def distributed(
    optimizer: Any,
    *,
    name: str | None,
    use_locking: bool,
    op: Any,
    compression: Compressor,
    sparse_as_dense: bool,
    bucket_cap_bytes: int,
    group: Group | None,
) -> Any:
    """Turns a `tf.compat.v1.train.Optimizer` into one that reduces its gradients.

    Args:
        optimizer: changed in place; stays an instance of its class.
        name: of its operations; default: `smdistributed.dataparallel` and the name of its type.
        use_locking: True: variables are locked while they are updated; False: as `optimizer` says.
        op, compression, sparse_as_dense, bucket_cap_bytes, group: as for `reduce_gradients`.

    Raises:
        SMDDPConfigInvalid: (a ValueError) it is one already.
    """
    wrapped = type(optimizer)
    if issubclass(wrapped, _SessionDistributed):
        raise SMDDPConfigInvalid(
            f"{wrapped.__name__} is a DistributedOptimizer already; expected one that is not. Wrap"
            " each optimizer once."
        )
    options = _Options(
        name=name or f"smdistributed.dataparallel.{wrapped.__name__}",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        bucket_cap_bytes=bucket_cap_bytes,
        group=group,
    )
    if use_locking:
        optimizer._use_locking = True
    optimizer.__class__ = type(
        wrapped.__name__,
        (_SessionDistributed, wrapped),
        {
            "__module__": wrapped.__module__,
            "__qualname__": wrapped.__qualname__,
            "__doc__": wrapped.__doc__,
            "_smddp_options": options,
        },
    )
    return optimizer
