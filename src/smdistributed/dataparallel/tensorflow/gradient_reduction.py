# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients averaged over all ranks: what the tape and the optimizers share.

Backward produces the gradient of the last variable first. Buckets are filled in that order, each
is one collective, and in a `tf.function` each starts as soon as its own gradients are there.

Source: dataparallel specification, sections 6.1 to 6.5 and 7.6.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from smdistributed import collectives
from smdistributed.dataparallel.compression import Compression, Compressor, resolve_compression
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.tensorflow import (
    casts,  # noqa: F401  (for its effect)
)
from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.dataparallel.tensorflow.fused import InSequence, all_reduce_fused, num_bytes
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import resolve_group
from smdistributed.dataparallel.tensorflow.operations.labels import label_of, label_of_variables
from smdistributed.dataparallel.tensorflow.presence import Kind, Pattern, agree
from smdistributed.dataparallel.tensorflow.reduce_op import GRADIENT_OPS, resolve_op
from smdistributed.dataparallel.tensorflow.slices import reduce_slices

__all__ = ["is_reduced", "reduce_gradients", "require_no_devices", "to_dense"]

# Of a tensor that has been reduced: over which ranks.
_MARK = "_smddp_reduced"


@not_converted
def reduce_gradients(
    gradients: Sequence[Any],
    *,
    variables: Sequence[Any] | None = None,
    names: Sequence[str] | None = None,
    op: Any = None,
    compression: Any = Compression.none,
    sparse_as_dense: bool = True,
    bucket_cap_bytes: int | None = None,
    what: str = "gradients",
    group: Group | None = None,
) -> list[Any]:
    """Reduces gradients over all ranks, or those of a group.

    Eagerly, in `tf.function`, in graphs of TensorFlow 1.

    All ranks call it for the same variables. A gradient that is None on all of them stays None;
    one that is None on some is zero there, and these too get the result. (In graphs of TensorFlow 1
    the ranks cannot ask each other while they build; there None stays None, and must be None on all
    ranks.)

    Args:
        gradients: tensors, `tf.IndexedSlices` or None, in the order of the variables.
        variables: of the gradients; tell of a gradient that is None here and not elsewhere which
            shape it has.
        names: of the variables, for messages; default: as the variables say.
        op: `ReduceOp.AVERAGE`, which None stands for, or `ReduceOp.SUM`.
        compression: a member of `Compression`, or a class like them.
        sparse_as_dense: make `tf.IndexedSlices` dense; False: gather the rows of all ranks.
        bucket_cap_bytes: default: `SMDDP_BUCKET_CAP_MB`.
        what: for messages: "gradients" makes "gradients 1 of 3".
        group: of `new_group`; None: all ranks.

    Returns:
        A new list in the order of the variables, of the gradients' shapes and dtypes. With one
        rank: what was given, as it is.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPConfigInvalid: (a ValueError) MIN or MAX; no such compression; lists of different
            lengths.
        SMDDPUnsupported: a gradient that is none of tensor, `tf.IndexedSlices` and None.

    Source: specification, sections 6.3, 6.5 and 7.6.
    """
    reduce_op = resolve_op(op, f"reduction of {what}", GRADIENT_OPS)
    compressor = resolve_compression(compression)
    among = resolve_group(group, f"reduction of {what}")
    owners = _Owners(gradients, variables, names)
    if among.size() == 1 or not gradients:
        return list(gradients)
    mine = tuple(
        _kind(gradient, sparse_as_dense, owners.name(index))
        for index, gradient in enumerate(gradients)
    )
    pattern = agree(
        mine,
        group=among,
        book_key=(what, owners.key),
        names=owners.names,
        what=what,
        label=owners.label,
    )
    results: list[Any] = [None] * len(gradients)
    label = label_of(what, owners.label)
    sequence = InSequence()
    _reduce_dense(
        gradients,
        pattern,
        owners,
        results,
        op=reduce_op,
        compressor=compressor,
        bucket_cap_bytes=bucket_cap_bytes,
        what=what,
        label=label,
        group=among,
        sequence=sequence,
    )
    for index in reversed(range(len(gradients))):
        if pattern[index] is Kind.SPARSE:
            slices = owners.empty_slices(index) if gradients[index] is None else gradients[index]
            results[index] = reduce_slices(
                slices,
                reduce_op,
                compressor,
                f"{what}, {owners.name(index)}",
                label_of(label, index),
                group=among,
                sequence=sequence,
            )
    for result in results:
        _mark_reduced(result, among)
    return results


def is_reduced(tensor: Any, group: Group | None = None) -> bool:
    """Whether this very tensor came out of `reduce_gradients` over the ranks of a group.

    What is computed from it is not known to be: gradients that were clipped after their reduction
    look like any others. Nor is what was reduced over other ranks, so that gradients may be reduced
    over the rows of a grid and then over its columns.

    Args:
        tensor: of any kind, or None.
        group: of `new_group`; None: all ranks.
    """
    ranks = getattr(tensor, _MARK, None)
    return ranks is not None and ranks == resolve_group(group, "is_reduced()").ranks


def require_no_devices(device_dense: Any, device_sparse: Any) -> None:
    """Refuses the arguments that once chose a device for communication.

    Raises:
        SMDDPUnsupported: one of them is set.

    Source: specification, section 7.6, texts included.
    """
    for name, value in (("device_dense", device_dense), ("device_sparse", device_sparse)):
        if value:
            raise SMDDPUnsupported(f"{name} is not supported")


def to_dense(slices: Any, shape: Any = None) -> Any:
    """The tensor that `tf.IndexedSlices` stand for; rows that occur more than once are added.

    Args:
        slices: what to convert.
        shape: of the result, as far as it is known; default: as the slices say.
    """
    shape = slices.shape if shape is None else shape
    rows = shape[0] if shape.rank else None
    if rows is None:
        if slices.dense_shape is None:
            raise SMDDPConfigInvalid(
                f"{slices!r} do not tell how many rows there are; expected a dense_shape. Make them"
                " with one, or pass a tensor."
            )
        rows = slices.dense_shape[0]
    dense = tf.math.unsorted_segment_sum(slices.values, slices.indices, rows)
    dense.set_shape(shape)
    return dense


class _Owners:
    """Whose gradients they are: names and shapes, as far as they are known."""

    def __init__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None,
        names: Sequence[str] | None,
    ) -> None:
        count = len(gradients)
        for argument, given in (("variables", variables), ("names", names)):
            if given is not None and len(given) != count:
                raise SMDDPConfigInvalid(
                    f"{count} gradients came with {len(given)} {argument}; expected one for each."
                    " Pass lists of one length, with None for a gradient that there is not."
                )
        self._variables: Sequence[Any] = [None] * count if variables is None else variables
        if names is None:
            names = [
                _name_of(variable) or f"gradient {index}"
                for index, variable in enumerate(self._variables)
            ]
        self.names = list(names)
        # Names may recur in a process, variables do not.
        self.key: Hashable = tuple(
            _identity(variable) or name
            for variable, name in zip(self._variables, self.names, strict=True)
        )

        # Of gradients whose variables are not known the number alone.
        self.label = label_of_variables(self._variables, self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def shape(self, index: int, gradient: Any) -> Any:
        """As the variable has it, the same on all ranks; a gradient's may be less well known."""
        variable = self._variables[index]
        return tf.TensorShape(gradient.shape if variable is None else variable.shape)

    def zeros(self, index: int) -> Any:
        variable = self._require(index)
        shape = tf.TensorShape(variable.shape)
        if shape.is_fully_defined():
            return tf.zeros(shape, variable.dtype)
        return tf.zeros_like(tf.convert_to_tensor(variable))

    def empty_slices(self, index: int) -> Any:
        variable = self._require(index)
        shape = tf.shape(tf.convert_to_tensor(variable), tf.int64)
        values = tf.zeros(tf.concat([[0], shape[1:]], axis=0), variable.dtype)
        values.set_shape([None, *variable.shape[1:]])
        return tf.IndexedSlices(values, tf.zeros([0], tf.int64), shape)

    def _require(self, index: int) -> Any:
        variable = self._variables[index]
        if variable is None:
            raise SMDDPConfigInvalid(
                f"{self.names[index]} has a gradient on other ranks and None on this one, which"
                " cannot bring zeros since it was not told the variable; expected the variables"
                " beside the gradients. Pass variables=, or zeros in place of None."
            )
        return variable


def _reduce_dense(
    gradients: Sequence[Any],
    pattern: Pattern,
    owners: _Owners,
    results: list[Any],
    *,
    op: collectives.ReduceOp,
    compressor: Compressor,
    bucket_cap_bytes: int | None,
    what: str,
    label: int,
    group: Group,
    sequence: InSequence,
) -> None:
    """Fills in the results that are dense."""
    indices = [index for index in reversed(range(len(gradients))) if pattern[index] is Kind.DENSE]
    tensors, contexts, sizes, shapes = [], [], [], []
    for index in indices:
        gradient = gradients[index]
        if gradient is None:
            gradient = owners.zeros(index)
        shape = owners.shape(index, gradient)
        if isinstance(gradient, tf.IndexedSlices):
            gradient = to_dense(gradient, shape)
        sent, context = compressor.compress(gradient)
        tensors.append(sent)
        contexts.append(context)
        sizes.append(num_bytes(shape, sent.dtype))
        shapes.append(gradient.shape)
    reduced = all_reduce_fused(
        tensors,
        op,
        lambda number, count: f"{what} {number} of {count}",
        label,
        sizes=sizes,
        group=group,
        bucket_cap_bytes=bucket_cap_bytes,
        sequence=sequence,
    )
    for index, tensor, context, shape in zip(indices, reduced, contexts, shapes, strict=True):
        result = compressor.decompress(tensor, context)
        result.set_shape(shape)
        results[index] = result


def _kind(gradient: Any, sparse_as_dense: bool, name: str) -> Kind:
    if gradient is None:
        return Kind.ABSENT
    if isinstance(gradient, tf.IndexedSlices):
        return Kind.DENSE if sparse_as_dense else Kind.SPARSE
    if isinstance(gradient, tf.Tensor):
        return Kind.DENSE
    raise SMDDPUnsupported(
        f"the gradient of {name} is a {type(gradient).__name__}; expected a tensor,"
        " tf.IndexedSlices or None. Take the gradient of what it is made of, such as"
        " `flat_values` of a ragged tensor."
    )


def _name_of(variable: Any) -> str | None:
    """Keras has the longer name in `path`; tensors have none eagerly."""
    if variable is None:
        return None
    if isinstance(variable, tf.Tensor):
        return None
    return getattr(variable, "path", None) or getattr(variable, "name", None)


def _identity(variable: Any) -> str | None:
    """What TensorFlow tells a variable by; unlike `id`, never given to another one."""
    inner = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
    unique = getattr(inner, "_unique_id", None)
    return unique if isinstance(unique, str) else None


def _mark_reduced(tensor: Any, group: Group) -> None:
    if tensor is not None:
        setattr(tensor, _MARK, group.ranks)
