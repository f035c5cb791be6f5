# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What Horovod's names for both frameworks share."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import pytest

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.common import Adasum, Average, Max, Min, Product, Sum
from smdistributed.dataparallel import exceptions


@pytest.mark.parametrize(
    ("average", "op", "expected"),
    [
        (None, None, Average),
        (True, None, Average),
        (False, None, Sum),
        (None, Sum, Sum),
        (None, Min, Min),
        (None, Max, Max),
        (None, Product, Product),
    ],
)
def test_the_operation_of_both_arguments(average: Any, op: Any, expected: common.Op) -> None:
    assert common.resolve(average, op, "allreduce") is expected


@pytest.mark.parametrize("average", [True, False])
def test_average_beside_op_is_an_error(average: bool) -> None:
    with pytest.raises(exceptions.SMDDPConfigInvalid, match=r"allreduce\(\).* Leave average out"):
        common.resolve(average, Sum, "allreduce")


@pytest.mark.parametrize("op", ["sum", 1, True, 17])
def test_what_is_no_operation(op: Any) -> None:
    with pytest.raises(ValueError, match=r"expected one of hvd.Average, hvd.Sum, hvd.Min"):
        common.resolve(None, op, "allreduce")


def test_operations_that_a_call_does_not_compute() -> None:
    with pytest.raises(exceptions.SMDDPUnsupported, match=r"op=hvd.Average"):
        common.resolve(None, Adasum, "allreduce")
    with pytest.raises(exceptions.SMDDPUnsupported, match=r"hvd.allgather\(\) and multiply"):
        common.resolve(None, Product, "allreduce", (Average, Sum))
    with pytest.raises(exceptions.SMDDPConfigInvalid, match=r"one of hvd.Average, hvd.Sum, or"):
        common.resolve(None, Max, "DistributedOptimizer", (Average, Sum))


def test_calls_before_init_are_caught_as_in_horovod() -> None:
    error = common.not_initialized("rank")
    assert isinstance(error, ValueError)
    assert isinstance(error, exceptions.SMDDPNotInitialized)
    assert isinstance(error, common.HorovodInternalError)
    assert type(error).__name__ == "SMDDPNotInitialized"
    assert "hvd.init() first" in str(error)


def test_an_error_under_a_documented_name_reaches_other_processes() -> None:
    @common.named_as_documented
    class Ours(exceptions.SMDDPUnsupported, AssertionError):
        pass

    text = "".join(traceback.format_exception_only(Ours("why")))
    assert text == "smdistributed.dataparallel.exceptions.SMDDPUnsupported: why\n"
    sent = pickle.loads(pickle.dumps(Ours("why")))
    assert type(sent) is exceptions.SMDDPUnsupported
    assert str(sent) == "why"


def test_there_is_one_process_set() -> None:
    everyone = common.ProcessSet.of_all(lambda: 1, lambda: 3)
    assert (everyone.process_set_id, everyone.mpi_comm, everyone.ranks) == (0, None, [0, 1, 2])
    assert (everyone.rank(), everyone.size(), everyone.included()) == (1, 3, True)
    assert "process_set_id=0" in str(everyone)
    common.require_all_ranks(everyone, "allreduce")
    common.require_all_ranks(None, "allreduce")
    for call in (
        lambda: common.ProcessSet([0]),
        lambda: common.add_process_set([0]),
        lambda: common.remove_process_set(everyone),
    ):
        with pytest.raises(exceptions.SMDDPUnsupported, match=r"torch.distributed.new_group\(\)"):
            call()
    with pytest.raises(exceptions.SMDDPUnsupported, match=r"process_set=\[0\].* Leave the arg"):
        common.require_all_ranks([0], "allreduce")


def test_neutral_values_are_accepted_by_value_and_type() -> None:
    def require(given: Any) -> None:
        common.require_neutral("f", "groups", given, (None, 0), "there is one", "Leave it out.")

    require(None)
    require(0)
    for given in (2, False, [[]]):
        with pytest.raises(exceptions.SMDDPUnsupported, match=r"there is one; expected None or 0"):
            require(given)


def test_refused_names_exist_and_say_what_to_write() -> None:
    run = common.refused("elastic.run", "ranks are fixed", "Save checkpoints.")
    assert run.__name__ == "run"
    assert "ranks are fixed" in str(run.__doc__)
    words = r"hvd.elastic.run is not there: ranks are fixed. Save checkpoints\."
    with pytest.raises(exceptions.SMDDPUnsupported, match=words):
        run(1, other=2)

    state: Any = common.refused_class("State", "it is not", "Write another.")
    derived = type("Mine", (state,), {"__init__": lambda self, x: None})
    assert not isinstance(3, state)
    for cls in (state, derived):
        with pytest.raises(exceptions.SMDDPUnsupported, match=r"hvd.State .* Write another"):
            cls(1)


@pytest.mark.parametrize(
    "name",
    [
        "mpi_threads_supported",
        "mpi_enabled",
        "mpi_built",
        "gloo_enabled",
        "gloo_built",
        "ddl_built",
        "ccl_built",
        "cuda_built",
        "rocm_built",
    ],
)
def test_none_of_horovods_libraries_is_there(name: str) -> None:
    assert getattr(common, name)() is False


def test_nccl_has_no_version() -> None:
    assert common.nccl_built() == 0
