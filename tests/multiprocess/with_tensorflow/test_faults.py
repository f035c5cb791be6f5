# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow ranks are told when one of them dies, disagrees, does not come, is interrupted.

As in the PyTorch front end, but that TensorFlow raises errors of its own: their text carries the
documented class, which toolkits look for.

Source: dataparallel specification, sections 6.6, 7.2, 9 and 12.9.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from harness import require_success, run_script
from held_resources import left_of, read_resources
from launchers import process_state
from machine_speed import scaled
from preloaded import Preload
from tensorflow_harness import run_tensorflow_ranks

from tests.multiprocess.with_tensorflow.fault_ranks import MISSED_S

RANKS = Path(__file__).with_name("fault_ranks.py")
NUM_RANKS = 3
VICTIM = 1
OTHERS = (0, 2)
DEADLINE_S = 90.0
TIMEOUT_S = scaled(60.0)
BACKENDS = ("kernels", "python")
# What ranks 0 and 2 call, and what rank 1 does.
DISAGREEMENTS = {
    "size": ("float32 x 4", "float32 x 5"),
    "dtype": ("float32 x 4", "int32 x 4"),
    "operation": ("SUM, float32 x 4", "MAX, float32 x 4"),
    "root": ("root 0", "root 1"),
    "collective": ("all_reduce (SUM, float32 x 4)", "broadcast (float32 x 4, root 0)"),
}
# Of calls of one shape and dtype: what all ranks read of both.
MIXED_UP = {
    "factors": ("postscale_factor=2.0", "postscale_factor=3.0"),
    "name": ("oob_allreduce 'a'", "oob_allreduce 'b'"),
    "name_of_gradient": ("allreduce of parameter 0 'a'", "allreduce of parameter 1 'b'"),
    "name_of_broadcast": ("tensors 'a'", "tensors 'b'"),
    "order_of_gradients": ("agreement on which of 2 gradients",),
    "order_of_variables": ("variables, 1 of 1",),
}

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)
both_backends = pytest.mark.parametrize("backend", BACKENDS)


def _env(backend: str) -> dict[str, str]:
    return {
        "SMDDP_TF_OPERATIONS": backend,
        "SMDDP_BUCKET_CAP_MB": "0.03125",
        "SMDDP_TIMEOUT_SECONDS": str(TIMEOUT_S),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _returned(backend: str, name: str) -> dict[int, Any]:
    """What each rank returned; without those that were killed."""
    before = _shared_files()
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = run_tensorflow_ranks(
            f"{RANKS}:run_fault",
            NUM_RANKS,
            name,
            scratch,
            env=_env(backend),
            check=False,
            deadline_s=DEADLINE_S,
        )
    assert _shared_files() <= before, "files are left behind"
    if name.startswith("killed"):
        assert outcomes.pop(VICTIM).exit_code == -signal.SIGKILL
    require_success(outcomes, name, DEADLINE_S)
    return {outcome.rank: outcome.value for outcome in outcomes}


def _shared_files() -> set[str]:
    """Of ours: tests of other workers make theirs meanwhile."""
    return {name for name in os.listdir("/dev/shm") if "smd" in name}


def _require(told: Any, class_name: str, *words: str) -> None:
    """An error of TensorFlow's, or ours where TensorFlow passes it on, with these words."""
    assert told is not None, f"no {class_name}"
    assert {"OpError", "SMDDPError"} & {told["type_name"], *told["bases"]}, told
    assert class_name in told["text"] or class_name == told["type_name"], told
    for word in words:
        assert word in told["text"], (word, told)


@both_backends
def test_a_killed_rank_is_named_inside_a_function(backend: str) -> None:
    values = _returned(backend, "killed_in_a_function")
    assert sorted(values) == list(OTHERS)
    for errors in values.values():
        for told in errors:  # the first, and what comes after it
            _require(told, "SMDDPPeerLost", "rank 1 (host")


@both_backends
def test_a_killed_rank_is_named_eagerly(backend: str) -> None:
    for errors in _returned(backend, "killed_eagerly").values():
        for told in errors:
            _require(told, "SMDDPPeerLost", "rank 1 (host")


@both_backends
@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_ranks_that_disagree_all_hear_of_it(what: str, backend: str) -> None:
    values = _returned(backend, f"disagree_in_{what}")
    usual, odd = DISAGREEMENTS[what]
    for rank, (told, at_the_end) in values.items():
        _require(told, "SMDDPMismatch", "ranks 0, 2 called", "rank 1 called", usual, odd)
        assert at_the_end is None, at_the_end
        is_broadcast = what == "root" or (what == "collective" and rank == VICTIM)
        assert ("broadcast of 1" if is_broadcast else "in oob_allreduce") in told["text"], told


@both_backends
def test_tensors_of_one_bucket_in_another_order(backend: str) -> None:
    for told, _ in _returned(backend, "disagree_in_layout").values():
        _require(told, "SMDDPMismatch", "rank 1 called")


@both_backends
def test_shapes_of_one_size(backend: str) -> None:
    for told, _ in _returned(backend, "disagree_in_shape").values():
        _require(told, "SMDDPMismatch", "shape [4]; rank 1 called", "shape [2, 2]")


@both_backends
@pytest.mark.parametrize("what", MIXED_UP)
def test_calls_of_one_shape_in_another_order(what: str, backend: str) -> None:
    """Before calls had labels, sums of one shape were mixed up without a word."""
    for told, at_the_end in _returned(backend, f"disagree_in_{what}").values():
        _require(told, "SMDDPMismatch", *MIXED_UP[what], "in the same order")
        assert at_the_end is None, "shutdown() raised what had been raised"


@both_backends
def test_a_rank_that_does_not_come_is_named_after_the_timeout(backend: str) -> None:
    values = _returned(backend, "fewer_steps_and_waiting")
    for rank in OTHERS:
        told = values[rank]
        _require(told, "SMDDPTimeoutError", "rank 1 (host", "same calls in the same order")
        assert "gradients 1 of" in told["text"]
    # The first whose time is over speaks for all, also for those who came later.
    assert max(values[rank]["after_s"] for rank in OTHERS) > 0.9 * MISSED_S, "gave up too early"


@both_backends
def test_a_rank_that_leaves_before_the_others(backend: str) -> None:
    """`shutdown` waits for all ranks, and is another call than they make."""
    for told in _returned(backend, "fewer_steps_and_shutdown").values():
        _require(told, "SMDDPMismatch", "rank 1 called barrier", "different number of batches")


@pytest.mark.parametrize("where", ["in_a_function", "after_the_collective", "in_a_session"])
def test_an_error_of_another_operation_is_not_held_up_by_a_collective(where: str) -> None:
    """TensorFlow cannot cancel a kernel that waits. Python functions in its place do wait."""
    values = _returned("kernels", f"local_error_{where}")
    own, later = values[0]
    assert own["type_name"] == "InvalidArgumentError", own
    cause = "this is wrong" if where == "after_the_collective" else "not invertible"
    assert cause in own["text"], own
    assert own["after_s"] < TIMEOUT_S / 2, "it waited for rank 1, which waited for this error"
    words = (
        "rank 0 (host",
        "its step failed or was cancelled while oob_allreduce of float32 () waited for other ranks",
    )
    _require(later, "SMDDPPeerLost", *words)
    for rank in (1, 2):
        for told in values[rank]:
            _require(told, "SMDDPPeerLost", *words)


@both_backends
@pytest.mark.parametrize("where", ["in_a_function", "in_a_session"])
def test_a_script_may_catch_the_error_of_a_step(where: str, backend: str) -> None:
    """TensorFlow runs the rest of the step, with its collectives: the ranks stay alike."""
    for told, value, at_the_end in _returned(backend, f"caught_error_{where}").values():
        assert told == ["InvalidArgumentError"] * 2, told
        assert value == [4 * NUM_RANKS, 8 * NUM_RANKS]
        assert at_the_end is None, at_the_end


@both_backends
@pytest.mark.parametrize("where", ["in_a_function", "in_a_lambda", "in_a_session"])
def test_an_error_beside_a_loop_that_communicates_ends_the_group(where: str, backend: str) -> None:
    """TensorFlow leaves out what is left of the loop, on the rank that failed alone."""
    for rank, (first, then) in _returned(backend, f"error_beside_a_loop_{where}").items():
        if rank == 0:
            assert "not invertible" in first[0], first
        _require(then, "SMDDPPeerLost", "rank 0 (host", "aborted the group: a step of it failed")
        assert then["after_s"] < TIMEOUT_S / 2


@both_backends
@pytest.mark.parametrize("where", ["in_a_function", "eagerly"])
def test_ctrl_c_while_a_rank_waits(where: str, backend: str) -> None:
    values = _returned(backend, f"interrupted_{where}")
    # TensorFlow, in the middle of making its own error, may wrap it.
    assert "KeyboardInterrupt" in values[0]["type_name"] + values[0]["text"], values[0]
    assert values[0]["after_s"] < TIMEOUT_S / 2, "it did not run into the timeout"
    for rank in (1, 2):
        _require(values[rank], "SMDDPPeerLost", "rank 0 (host")


@both_backends
def test_ctrl_c_that_a_script_handles_itself(backend: str) -> None:
    values = _returned(backend, "interrupt_that_is_handled")
    assert [values[rank] for rank in range(NUM_RANKS)] == [[3, 1], [3, 0], [3, 0]]


@both_backends
def test_a_killed_rank_is_named_in_its_group(backend: str) -> None:
    values = _returned(backend, "killed_in_a_group")
    _require(values[0], "SMDDPPeerLost", "rank 1 (host", "group 'default/1.0 of ranks 0, 1'")
    if backend == "kernels":
        assert "AbortedError" in {values[0]["type_name"], *values[0]["bases"]}
        assert values[0]["text"].rpartition("}} ")[2].startswith("SMDDPPeerLost: "), values[0]


def test_an_error_of_another_operation_is_told_to_its_group_alone() -> None:
    values = _returned("kernels", "local_error_in_a_group")
    (own, _), (told, _), (nothing, _) = (values[rank] for rank in range(NUM_RANKS))
    assert "not invertible" in own["text"], own
    assert own["after_s"] < TIMEOUT_S / 2
    _require(told, "SMDDPPeerLost", "rank 0 (host", "its step failed or was cancelled while")
    assert nothing is None
    assert [total for _, total in values.values()] == [NUM_RANKS] * 3


@both_backends
def test_an_error_beside_a_loop_ends_the_group_of_the_loop_alone(backend: str) -> None:
    values = _returned(backend, "error_beside_a_loop_in_a_group")
    assert "not invertible" in values[0][0]["text"], values[0]
    assert values[2][:2] == [None, None]
    for rank in (0, 1):
        _require(values[rank][1], "SMDDPPeerLost", "rank 0 (host", "a step of it failed")
    assert [total for *_, total in values.values()] == [NUM_RANKS] * 3


def test_a_rank_that_cannot_make_a_group_tells_the_others() -> None:
    values = _returned("kernels", "a_group_that_one_rank_cannot_make")
    assert "Too many open files" in values[VICTIM]["text"], values[VICTIM]
    for rank in OTHERS:
        _require(values[rank], "SMDDPPeerLost", "rank 1 (host", "new_group() failed on it")
        assert values[rank]["after_s"] < TIMEOUT_S / 2, values[rank]


@both_backends
def test_ctrl_c_while_a_rank_waits_in_a_group(backend: str) -> None:
    values = _returned(backend, "interrupted_in_a_group")
    assert "KeyboardInterrupt" in values[0]["type_name"] + values[0]["text"], values[0]
    assert values[0]["after_s"] < TIMEOUT_S / 2, "it did not run into the timeout"
    _require(values[1], "SMDDPPeerLost", "rank 0 (host")


@both_backends
def test_calls_before_init_and_after_shutdown(backend: str) -> None:
    for before, again, after, values in _returned(backend, "calls_outside_of_a_job").values():
        for name, told in {**before, **after}.items():
            _require(told, "SMDDPNotInitialized", "init()")
            if name != "traced before":
                assert told["type_name"] == "SMDDPNotInitialized", (name, told)
        assert again["type_name"] == "SMDDPAlreadyInitialized"
        assert values == [NUM_RANKS] * 3, "a second job works, with functions of the first one too"


@both_backends
def test_forked_children_are_harmless(backend: str) -> None:
    for statuses, value in _returned(backend, "forks_after_init").values():
        assert statuses == {"idle": 0, "rank": 0}
        assert value == NUM_RANKS


@pytest.mark.parametrize(
    ("fault", "backend"),
    [
        pytest.param("killed", "kernels", marks=pytest.mark.fresh),
        ("killed", "python"),
        ("interrupted", "kernels"),
        ("raises", "kernels"),
        ("ends", "kernels"),
    ],
)
def test_a_script_ends_by_itself_and_leaves_nothing(
    fault: str, backend: str, tmp_path: Path
) -> None:
    outcomes = run_script(
        [str(RANKS), fault, str(tmp_path)],
        NUM_RANKS,
        env={**_env(backend), "PYTHONPATH": str(RANKS.parents[1])},
        check=False,
        deadline_s=DEADLINE_S,
        preload=Preload.KERAS_3,
    )
    for rank in OTHERS:
        outcome = outcomes[rank]
        assert outcome.exit_code not in (0, None), outcome
        last = outcome.output.rpartition("Traceback (most recent call last)")[2]
        assert "SMDDPPeerLost" in last, outcome.output
        assert "rank 1 (host" in last, outcome.output
        assert "exceptions.SMDDPPeerLost: " in outcome.output.rstrip().rpartition("\n")[2]
    victim = outcomes[VICTIM]
    words = {"raises": "ZeroDivisionError", "interrupted": "KeyboardInterrupt"}.get(fault, "")
    assert words in victim.output
    if fault == "killed":
        assert victim.exit_code == -signal.SIGKILL
    elif fault == "ends":
        assert victim.exit_code == 0, victim.output
    else:
        assert victim.exit_code not in (0, None), victim
    held = read_resources(tmp_path)
    assert len(held) == NUM_RANKS
    for each in held:
        assert process_state(each.pid) is None
        assert left_of(each) == []
