# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smdistributed.dataparallel.tensorflow`, one test for each statement about it.

Source: dataparallel specification, sections 7 and 8; the number in a name is the section.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
from tensorflow_harness import run_tensorflow_ranks

from tests.conformance.dataparallel.tensorflow_api_ranks import find

TIMEOUT_S = 200.0

pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)

NONE = "NoneCompression"
AVERAGE = "AVG"
# Parameters with their defaults; `...` has none.
SIGNATURES: dict[str, dict[str, Any]] = {
    "init": {},
    "size": {},
    "local_size": {},
    "rank": {},
    "local_rank": {},
    "shutdown": {},
    "allreduce": {
        "tensor": ...,
        "param_index": None,  # documented without defaults, which Horovod's scripts leave out
        "num_params": None,
        "compression": NONE,
        "op": None,  # which stands for AVERAGE
        "name": None,
    },
    "oob_allreduce": {"tensor": ..., "compression": NONE, "op": AVERAGE, "name": None},
    "broadcast": {"tensor": ..., "root_rank": ..., "name": None},
    "broadcast_variables": {"variables": ..., "root_rank": ...},
    "broadcast_global_variables": {"root_rank": ...},
    "overlap": {"tensor": ...},
    "DistributedGradientTape": {
        "gradtape": ...,
        "device_dense": "",
        "device_sparse": "",
        "compression": NONE,
        "sparse_as_dense": True,
        "op": AVERAGE,
    },
    "DistributedOptimizer": {
        "optimizer": ...,
        "name": None,
        "use_locking": False,
        "device_dense": "",
        "device_sparse": "",
        "compression": NONE,
        "sparse_as_dense": True,
        "op": AVERAGE,
        "bucket_cap_mb": 25,
    },
    "BroadcastGlobalVariablesHook": {"root_rank": ...},
}
KERAS_SIGNATURES: dict[str, dict[str, Any]] = {
    "DistributedOptimizer": {
        "optimizer": ...,
        "name": None,
        "device_dense": "",
        "device_sparse": "",
        "compression": NONE,
        "sparse_as_dense": True,
        "op": None,
        "bucket_cap_mb": 25,
    },
    "BroadcastGlobalVariablesCallback": {"root_rank": ..., "device": ""},
    "MetricAverageCallback": {"device": ""},
}


@functools.cache
def found() -> list[dict[str, Any]]:
    """What two ranks found, by rank."""
    result: list[dict[str, Any]] = run_tensorflow_ranks(find, 2, deadline_s=TIMEOUT_S)
    return result


def both(name: str) -> Any:
    """What both ranks found, and that it is the same."""
    first, second = (by_rank[name] for by_rank in found())
    assert first == second
    return first


# ---- names and signatures --------------------------------------------------------------------


def test_7_1_the_package_has_these_eighteen_names() -> None:
    names = {*SIGNATURES, "Compression", "ReduceOp", "keras"}
    assert set(both("names")) >= names
    assert len(names) == 18
    assert both("missing names") == []
    assert both("is keras the subpackage")


def test_8_the_keras_module_has_these_ten_names_and_two_callbacks() -> None:
    functions = {"init", "size", "local_size", "rank", "local_rank", "shutdown"}
    others = {"Compression", "ReduceOp", "DistributedOptimizer", "callbacks"}
    assert set(both("keras names")) >= functions | others
    assert len(functions | others) == 10
    documented = {"BroadcastGlobalVariablesCallback", "MetricAverageCallback"}
    assert set(both("callbacks")) >= documented


@pytest.mark.parametrize("name", SIGNATURES)
def test_7_signatures(name: str) -> None:
    require_signature(both("signatures")[name], SIGNATURES[name])


@pytest.mark.parametrize("name", KERAS_SIGNATURES)
def test_8_signatures(name: str) -> None:
    require_signature(both("keras signatures")[name], KERAS_SIGNATURES[name])


def require_signature(found: dict[str, Any], documented: dict[str, Any]) -> None:
    """Those documented, in their order, since arguments are also passed by position; then ours."""
    assert list(found.items())[: len(documented)] == list(documented.items())


def test_7_reduce_op_has_four_attributes() -> None:
    assert both("reduce ops") == ["AVERAGE", "MAX", "MIN", "SUM"]


# ---- process functions -----------------------------------------------------------------------


def test_7_2_init_returns_nothing_and_a_second_one_raises_the_published_text() -> None:
    text = "init() called more than once. smdistributed.dataparallel is already initialized."
    assert both("init returns") is None
    for name in ("second init", "second init through keras"):
        classes, message = both(name)
        assert {"SMDDPError", "RuntimeError"} <= set(classes)
        assert message == text


def test_7_2_before_init_all_that_needs_a_job_raises() -> None:
    assert len(both("before init")) == 8
    for name, (classes, message) in both("before init").items():
        assert classes[0] == "SMDDPNotInitialized", name
        assert "RuntimeError" in classes
        assert name in message


def test_7_2_process_functions_return_python_numbers() -> None:
    for rank, by_rank in enumerate(found()):
        assert by_rank["process"] == by_rank["through keras"] == [2, 2, rank, rank]
        assert {type(number) for number in by_rank["process"]} == {int}


def test_7_2_after_shutdown_init_may_be_called_again() -> None:
    assert both("shutdown returns") is None
    assert both("after shutdown")[0][0] == "SMDDPNotInitialized"
    assert both("again") == 2


# ---- reductions ------------------------------------------------------------------------------


def test_7_4_a_reduction_returns_a_new_tensor_of_the_same_shape_and_dtype() -> None:
    assert both("average") == ([1.5, 5.0], "float32", (2,))
    assert both("input is as it was")


def test_7_4_four_operations() -> None:
    assert both("ops") == {
        "AVERAGE": [1.5, 5.0],
        "SUM": [3.0, 10.0],
        "MIN": [1.0, 0.0],
        "MAX": [2.0, 10.0],
    }
    assert both("op None") == [1.5, 5.0]


def test_7_3_wrong_hints_do_no_harm_and_a_list_returns_a_list() -> None:
    assert both("wrong hints") == [[1.5, 5.0]] * 3
    assert both("list") == [[1.5, 5.0], [1.5]]


def test_7_4_averages_of_integers_are_cut_off() -> None:
    assert both("integers") == [0, 3, 0]


def test_7_4_numbers_variables_and_arrays_are_reduced_too() -> None:
    assert both("kinds") == [0.5, 0.5, 0.5]


def test_6_4_compression_to_fp16_rounds_on_the_way() -> None:
    assert both("fp16 on the wire") == [1.0]


def test_6_3_an_average_that_fp16_can_hold_does_not_overflow() -> None:
    assert both("fp16 average") == 60000.0


# ---- broadcasts ------------------------------------------------------------------------------


def test_7_5_broadcast_returns_what_the_root_has() -> None:
    assert both("broadcast") == [[1.0, 0.0], [2.0, 10.0]]


def test_7_5_broadcast_variables_takes_any_iterable_and_dtype_and_variables_of_keras() -> None:
    assert both("broadcast_variables returns") is None
    assert both("no variables") is None
    assert both("variables") == [1.0, [1, 7], [[10.0]]]


def test_7_5_a_root_that_is_no_rank_is_a_value_error_on_all_ranks() -> None:
    assert len(both("root_rank")) == 4
    for classes in (*both("root_rank").values(), both("root_rank of variables")):
        assert "ValueError" in classes


def test_7_5_broadcast_global_variables_advises_broadcast_variables_in_eager_mode() -> None:
    classes, message = both("broadcast_global_variables")
    assert "SMDDPError" in classes
    assert "broadcast_variables" in message.replace("broadcast_global_variables", "")


# ---- tape and optimizer ----------------------------------------------------------------------


def test_7_5_overlap_is_the_identity() -> None:
    assert [by_rank["overlap"] for by_rank in found()] == [9.0, 18.0]


def test_7_6_the_tape_averages_gradients_and_nothing_else() -> None:
    for rank, by_rank in enumerate(found()):
        assert by_rank["tape"] == {
            "is a tape": True,
            "gradient": 9.0,  # of x^2 and 2 x^2 at 3
            "structure": {"x": [9.0], "none": None},
            "jacobian": 6.0 * (rank + 1),
            "sum": 18.0,
        }


@pytest.mark.parametrize("device", ["device_dense", "device_sparse"])
def test_7_6_devices_are_not_supported(device: str) -> None:
    for classes, message in both(device):
        assert classes[0] == "SMDDPUnsupported"
        assert "NotImplementedError" in classes
        assert f"{device} is not supported" in message


def test_7_6_the_tape_averages_or_sums() -> None:
    classes = both("tape op")
    assert classes["AVERAGE"] == classes["SUM"] == []
    assert "ValueError" in classes["MIN"]
    assert "ValueError" in classes["MAX"]
    assert both("tape op None") == ([], "")


def test_6_4_an_unknown_compression_is_a_value_error() -> None:
    assert len(both("compression")) == 4
    for classes in both("compression"):
        assert "ValueError" in classes


def test_6_2_bucket_cap_mb() -> None:
    outcomes = both("bucket_cap_mb")
    for value in ("1", "25", "0.5"):
        assert outcomes.pop(value) == ([], ""), value
    assert len(outcomes) == 5
    for value, (classes, message) in outcomes.items():
        assert "ValueError" in classes
        if value in ("True", "'25'"):
            assert message.startswith(f"bucket_cap_mb={value} is of type "), value
            continue
        assert message.startswith(f"bucket_cap_mb={value} gives ")
        assert message.endswith(
            "the fusion buffer size must be a positive multiple of 128 bytes"
        ), value


def test_7_7_a_distributed_optimizer_is_still_what_it_was() -> None:
    assert both("optimizer") == {
        "is of its class": True,
        "name": "smdistributed.dataparallel.Adam",
        "configuration": True,
    }


# ---- documented lines on Keras 3 -------------------------------------------------------------


def test_7_9_lines_that_keras_3_would_refuse() -> None:
    assert both("opt.variables()") is True
    assert both("reset_states") == 0.0
