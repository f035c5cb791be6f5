# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input and faults under the engine itself: a clear error on every rank, nothing left behind.

Faults are data (`Fault`), drawn by a seeded injector. How long the last rank took to hear of a lost
one is printed after the run, not asserted: a busy machine proves nothing.

Source: Communicator's docstring; the must-show list of the project ("every other rank raises within
2 s of a SIGKILL, naming rank, host and operation").
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_ranks import (
    DISAGREEMENTS,
    OPERATIONS,
    Fault,
    Heard,
    completes_before_others_leave,
    disagree,
    few_descriptors,
    forks_after_init,
    garbage_at_the_listening_port,
    garbage_at_the_rendezvous,
    interrupted_together,
    joins,
    joins_twice,
    late_but_in_time,
    leaves_early,
    listening_ports,
    message_of_the_wrong_size,
    rank_that_does_not_come,
    read_resources,
    unix_socket_names,
    until_something_happens,
    uses_after_close,
    without_dev_shm,
)
from harness import RankOutcome, run_ranks

TRANSPORTS = ("shm", "tcp")
WORLD_SIZE = 3
SEED = 20260

# Generous: what is promised is 2 s on a machine that is not overloaded.
KNOWN_BY_ALL_S = 10.0


def draw_faults(kind: str, operations: list[str]) -> list[Fault]:
    """One fault of a kind for each operation; the same ones in every run."""
    rng = random.Random(f"{SEED} {kind}")
    return [
        Fault(kind, operation, rng.randrange(WORLD_SIZE), round(rng.uniform(0, 0.04), 4))
        for operation in operations
    ]


def name_of(value: object) -> str:
    if isinstance(value, Fault):
        return f"{value.kind} of rank {value.victim} in {value.operation}"
    return str(value)


@pytest.fixture(scope="module")
def figures(request: pytest.FixtureRequest) -> Iterator[dict[str, list[float]]]:
    """Seconds until the last rank knew, by kind of fault; printed when all tests have run."""
    measured: dict[str, list[float]] = {}
    yield measured
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not measured:
        return
    reporter.ensure_newline()
    reporter.write_line("seconds from a fault until the last rank knew (largest, median, runs)")
    for kind, seconds in sorted(measured.items()):
        ordered = sorted(seconds)
        reporter.write_line(
            f"  {kind:<40} {ordered[-1]:6.3f} {ordered[len(ordered) // 2]:6.3f} {len(ordered):4d}"
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where ranks write down what they hold; after the test, nothing of it may exist any more."""
    ours = {name for name in os.listdir("/dev/shm") if "smd" in name}
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    yield tmp_path
    for held in read_resources(tmp_path):
        assert not Path(f"/proc/{held.pid}").exists(), f"process {held.pid} is left"
        left = {port for port, _ in listening_ports()} & set(held.ports)
        assert not left, f"something still listens on {left}"
        left_names = {name for name, _ in unix_socket_names()} & set(held.unix_sockets)
        assert not left_names, f"sockets are left: {left_names}"
    assert {name for name in os.listdir("/dev/shm") if "smd" in name} <= ours
    assert list(temporary.iterdir()) == [], "temporary files are left"


def environment(transport: str, folder: Path) -> dict[str, str]:
    return {"SMDDP_TRANSPORT": transport, "TMPDIR": str(folder / "tmp")}


def strike(fault: Fault, transport: str, folder: Path) -> list[RankOutcome]:
    """Runs the ranks with the fault; all but the victim must have ended well."""
    outcomes: list[RankOutcome] = run_ranks(
        until_something_happens,
        WORLD_SIZE,
        fault,
        str(folder),
        env=environment(transport, folder),
        check=False,
        deadline_s=30,
    )
    for outcome in outcomes:
        if outcome.rank != fault.victim:
            assert outcome.ok, f"rank {outcome.rank}: {outcome.output}\n{outcome.stacks}"
    assert len(read_resources(folder)) == WORLD_SIZE
    return outcomes


def record(figures: dict[str, list[float]], kind: str, folder: Path, told: list[Heard]) -> None:
    seconds = max(one.at_s for one in told) - float((folder / "struck").read_text())
    figures.setdefault(kind, []).append(seconds)
    assert seconds < KNOWN_BY_ALL_S


def assert_tells_of_loss(told: Heard, victim: int, operation: str) -> None:
    assert told.type_name == "PeerLostError", told
    assert "ConnectionError" in told.bases
    assert f"rank {victim} (host {socket.gethostname()}, pid " in told.text, told.text
    assert any(word in told.text for word in operation.split()), told.text
    assert "Read the log of rank" in told.text, told.text


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fault", draw_faults("SIGKILL", list(OPERATIONS)), ids=name_of)
def test_all_others_hear_of_a_killed_rank(
    fault: Fault, transport: str, folder: Path, figures: dict[str, list[float]]
) -> None:
    outcomes = strike(fault, transport, folder)
    assert outcomes[fault.victim].exit_code == -signal.SIGKILL
    others = [o for o in outcomes if o.rank != fault.victim]
    for outcome in others:
        first, second = outcome.value
        assert_tells_of_loss(first, fault.victim, fault.operation)
        assert second is not None, "the group cannot be used again"
        assert second.type_name == "PeerLostError"
        assert f"rank {fault.victim} (host" in second.text, "the first error stays"
    record(figures, f"SIGKILL, {transport}", folder, [o.value[0] for o in others])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "fault",
    draw_faults("SIGKILL beside forked workers", ["all_reduce", "barrier", "send and recv"]),
    ids=name_of,
)
def test_workers_that_outlive_their_rank_do_not_hide_its_death(
    fault: Fault, transport: str, folder: Path, figures: dict[str, list[float]]
) -> None:
    """They inherit its sockets; an open copy would keep the connection alive."""
    outcomes = strike(fault, transport, folder)
    others = [o for o in outcomes if o.rank != fault.victim]
    for outcome in others:
        assert_tells_of_loss(outcome.value[0], fault.victim, fault.operation)
    record(figures, f"SIGKILL beside workers, {transport}", folder, [o.value[0] for o in others])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fault", draw_faults("exit", ["all_reduce", "broadcast"]), ids=name_of)
def test_all_others_hear_of_a_rank_that_exits_without_goodbye(
    fault: Fault, transport: str, folder: Path, figures: dict[str, list[float]]
) -> None:
    outcomes = strike(fault, transport, folder)
    assert outcomes[fault.victim].exit_code == 3
    others = [o for o in outcomes if o.rank != fault.victim]
    for outcome in others:
        assert_tells_of_loss(outcome.value[0], fault.victim, fault.operation)
    record(figures, f"_exit, {transport}", folder, [o.value[0] for o in others])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("how", ["close", "end of the program"])
def test_all_others_hear_of_a_rank_that_leaves_early(
    how: str, transport: str, folder: Path, figures: dict[str, list[float]]
) -> None:
    told = run_ranks(leaves_early, WORLD_SIZE, how, str(folder), env=environment(transport, folder))
    for rank in (0, 2):
        assert_tells_of_loss(told[rank], 1, "all_reduce")
    record(figures, f"early leave by {how}, {transport}", folder, [told[0], told[2]])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_group_may_be_closed_right_after_its_last_operation(transport: str) -> None:
    run_ranks(completes_before_others_leave, 5, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "fault", draw_faults("SIGSTOP", ["all_reduce", "barrier", "all_gather"]), ids=name_of
)
def test_a_stopped_rank_is_late_and_not_dead(fault: Fault, transport: str, folder: Path) -> None:
    """Both bounds: no verdict before the timeout (2 s), then one that names the rank."""
    outcomes = strike(fault, transport, folder)
    struck_s = float((folder / "struck").read_text())
    texts = []
    for outcome in outcomes:
        if outcome.rank == fault.victim:
            continue
        first, _ = outcome.value
        assert first.type_name == "CollectiveTimeoutError", first
        assert "TimeoutError" in first.bases
        assert first.at_s - struck_s > 1.8, "declared dead before the timeout"
        assert first.at_s - struck_s < 2 + KNOWN_BY_ALL_S
        texts.append(first.text)
    named = [f"rank {fault.victim} (host" in text for text in texts]
    # Messages of a barrier over TCP pass through third ranks, which are all that some wait for.
    assert any(named) if (transport, fault.operation) == ("tcp", "barrier") else all(named), texts


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fault", draw_faults("SIGINT", ["all_reduce", "barrier"]), ids=name_of)
def test_ctrl_c_on_one_rank(
    fault: Fault, transport: str, folder: Path, figures: dict[str, list[float]]
) -> None:
    outcomes = strike(fault, transport, folder)
    assert outcomes[fault.victim].ok, outcomes[fault.victim].output
    assert outcomes[fault.victim].value[0].type_name == "KeyboardInterrupt"
    others = [o for o in outcomes if o.rank != fault.victim]
    for outcome in others:
        first, _ = outcome.value
        assert first.type_name == "PeerLostError", first
        assert f"rank {fault.victim} (host" in first.text, first.text
    record(figures, f"SIGINT, {transport}", folder, [o.value[0] for o in others])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ctrl_c_on_all_ranks(transport: str, folder: Path) -> None:
    for interrupted, told in run_ranks(
        interrupted_together, WORLD_SIZE, str(folder), env=environment(transport, folder)
    ):
        assert interrupted
        assert told is None or told.type_name in ("KeyboardInterrupt", "PeerLostError"), told


def reason(told: Heard) -> str:
    """The text without the prefix that names the rank it was raised on."""
    _, found, text = told.text.partition("'): ")
    assert found, told.text
    return text


# Over messages each of two roots waits for the other's data, and neither sends: until the timeout.
TWO_ROOTS_WAIT = ("root of reduce", "tcp", 5)


@pytest.mark.parametrize("count", [5, 300_007], ids=["small", "large"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("how", DISAGREEMENTS)
def test_ranks_that_disagree_all_hear_of_it(how: str, transport: str, count: int) -> None:
    heard_by_rank = run_ranks(
        disagree, WORLD_SIZE, how, count, env={"SMDDP_TRANSPORT": transport}, deadline_s=40
    )
    for first, second in heard_by_rank:
        if (how, transport, count) == TWO_ROOTS_WAIT:
            assert first.type_name == "CollectiveTimeoutError", first
            continue
        assert first.type_name == "MismatchError", first
        assert "RuntimeError" in first.bases
        assert "rank 1" in first.text, first.text
        assert "Expected: " in first.text, first.text
        assert reason(second) == reason(first), "the first error stays"
    if transport == "shm":
        # Over TCP several ranks may notice at once, each with the pair of ranks that it compared.
        assert len({reason(first) for first, _ in heard_by_rank}) == 1, heard_by_rank


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_message_of_the_wrong_size_concerns_its_receiver_only(transport: str) -> None:
    _, told, _ = run_ranks(
        message_of_the_wrong_size, WORLD_SIZE, env={"SMDDP_TRANSPORT": transport}
    )
    assert told.type_name == "MismatchError"
    assert "float32 x 5" in told.text
    assert "float32 x 4" in told.text


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "operation", ["all_reduce of few bytes", "all_gather", "asynchronous all_reduce", "barrier"]
)
def test_a_rank_that_does_not_come_is_named_after_the_timeout(
    operation: str, transport: str, folder: Path
) -> None:
    results = run_ranks(
        rank_that_does_not_come,
        WORLD_SIZE,
        operation,
        str(folder),
        env=environment(transport, folder),
    )
    for rank in (0, 2):
        told, waited_s = results[rank]
        assert told.type_name == "CollectiveTimeoutError", told
        assert "rank 1 (host" in told.text, told.text
        assert "same calls in the same order" in told.text
        assert 0.95 < waited_s < 1 + KNOWN_BY_ALL_S, "both bounds of a timeout of 1 s"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_late_but_in_time(transport: str) -> None:
    run_ranks(late_but_in_time, WORLD_SIZE, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_forked_child_is_told_and_its_parent_goes_on(transport: str) -> None:
    for text, ended_well in run_ranks(
        forks_after_init, WORLD_SIZE, env={"SMDDP_TRANSPORT": transport}
    ):
        assert text.startswith("ConfigurationError"), text
        assert "before this process was forked" in text
        assert '"spawn"' in text
        assert ended_well


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_second_init_gives_a_second_communicator(transport: str) -> None:
    run_ranks(joins_twice, WORLD_SIZE, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.parametrize("world_size", [1, 2])
def test_use_after_close(world_size: int) -> None:
    for errors in run_ranks(uses_after_close, world_size):
        for told in errors:
            assert told.type_name == "ConfigurationError", told
            assert "is closed" in told.text
            assert "Make the group again" in told.text


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        told = run_ranks(joins, 2, env={"MASTER_PORT": str(port)}, deadline_s=30)
    assert told[0].type_name == "ConfigurationError", told[0]
    assert f"cannot listen on port {port}" in told[0].text
    assert "set MASTER_PORT to another port" in told[0].text
    assert told[1] is not None, "rank 1 must not take the squatter for rank 0"
    assert str(port) in told[1].text, told[1]


def test_an_unreachable_master_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    only_rank_1 = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    start = time.monotonic()
    (told,) = run_ranks(joins, 1, env=only_rank_1, deadline_s=30)
    assert told.type_name == "PeerLostError", told
    assert f"127.0.0.1:{port}" in told.text
    assert told.at_s - start > 2.5, "gave up before the timeout of 3 s"


def test_a_rank_that_never_starts_is_named() -> None:
    env = {"WORLD_SIZE": "3"}
    told = run_ranks(joins, 2, env=env, deadline_s=30)
    for one in told:
        assert one.type_name == "CollectiveTimeoutError", one
        assert "rank(s) 2 never connected" in one.text, one.text


def test_garbage_at_the_listening_port_harms_nobody() -> None:
    pestered = run_ranks(garbage_at_the_listening_port, WORLD_SIZE, env={"SMDDP_TRANSPORT": "tcp"})
    assert min(pestered) >= 1, "every rank listens when it uses TCP"


def test_garbage_at_the_rendezvous_harms_nobody() -> None:
    run_ranks(garbage_at_the_rendezvous, WORLD_SIZE)


@pytest.mark.parametrize("how", ["read-only", "tiny"])
def test_dev_shm_is_not_needed(how: str) -> None:
    used = run_ranks(without_dev_shm, 2, how)
    if used[0].startswith("not permitted"):
        pytest.skip(f"a mount namespace of one's own is {used[0]}; run this test as root")
    assert used == ["shm", "shm"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_running_out_of_descriptors_is_told(transport: str) -> None:
    """With none to spare up to more than enough: an error in words, or success; never a hang."""
    outcomes: list[Any] = []
    for spare in (0, 2, 4, 5, 6, 7, 8, 9, 10, 12, 40):
        env = {"SMDDP_TRANSPORT": transport}
        told = run_ranks(few_descriptors, 2, spare, env=env, deadline_s=30)
        outcomes.append((spare, told))
    assert outcomes[-1] == (40, [None, None])
    failed = [told for _, told in outcomes if any(told)]
    assert failed, "zero descriptors to spare cannot have worked"
    for told in failed:
        texts = [one.text for one in told if one is not None]
        # The second, where a region cannot be passed on: SMDDP_TRANSPORT=shm rules out TCP instead.
        helpful = ("Too many open files", "cannot share memory")
        assert any(part in text for text in texts for part in helpful), "\n".join(texts)
        assert not any("InternalError" in one.bases for one in told if one is not None), told
