# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Reduce operations and dtypes are those of native/common/types.h, in every front end."""

from __future__ import annotations

import enum

import numpy as np
import pytest
import torch
from torch.distributed import ReduceOp as TorchReduceOp

from smdistributed import collectives
from smdistributed._common.engine_options import EngineOptions
from smdistributed.collectives import _native
from smdistributed.dataparallel.torch.tensors import DTYPE_CODES, OP_CODES

OPS = ["SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR", "PREMUL_SUM"]


def test_reduce_operations_keep_their_numbers() -> None:
    # They cross the wire between ranks, whose releases are compared, and stand in saved graphs.
    assert [op.name for op in collectives.ReduceOp] == OPS
    assert [int(op) for op in collectives.ReduceOp] == list(range(len(OPS)))
    assert issubclass(collectives.ReduceOp, enum.IntEnum)


@pytest.mark.parametrize("op", collectives.ReduceOp, ids=lambda op: op.name)
def test_a_reduce_operation_is_the_constant_and_torchs(op: collectives.ReduceOp) -> None:
    assert getattr(_native, op.name) == op
    assert op.__doc__
    if hasattr(TorchReduceOp, op.name):
        assert OP_CODES[hash(getattr(TorchReduceOp, op.name))] == op


@pytest.mark.parametrize("code", range(len(_native.dtype_names())))
def test_a_dtype_has_one_name_and_size(code: int) -> None:
    name = _native.dtype_names()[code]
    assert getattr(_native, name.upper()) == code
    if name == "opaque8":
        assert _native.element_bytes(code) == 1
        return
    dtype = getattr(torch, name)
    assert DTYPE_CODES[dtype] == code
    assert _native.element_bytes(code) == dtype.itemsize
    if name != "bfloat16":  # NumPy has none
        assert _native.buffer(np.zeros(2, name))[1:] == (2, code)


def test_an_unknown_code_is_answered_with_the_known_ones() -> None:
    group = _native.Communicator(0, 1, lambda key, value: [value], EngineOptions())
    array = np.zeros(1, np.float32)
    with pytest.raises(RuntimeError, match=r"code 99 is unknown; expected 0 \(SUM\), .* or"):
        group.all_reduce(array, 99)
    with pytest.raises(RuntimeError, match=r"dtype code 99 .*15 \(opaque8\)\. Pass a"):
        group.broadcast_ptr(array.ctypes.data, 1, 99, 0)
    group.close()
