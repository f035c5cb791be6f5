# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a process tells of its last operations: as data, on SIGUSR1, and by itself when it waits.

Source: docs/troubleshooting.md.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from flight_ranks import (
    catches_signal,
    handlers_of_users,
    record_as_data,
    signalled_while_stuck,
    stalled,
)
from harness import RankOutcome, run_ranks
from launchers import clean_environment
from machine_speed import scaled

TRANSPORTS = ("shm", "tcp")
DEADLINE_S = 90


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_record_as_data_and_as_text(transport: str) -> None:
    results = run_ranks(record_as_data, 2, env={"SMDDP_TRANSPORT": transport})
    for rank, (groups, text) in enumerate(results):
        (group,) = groups
        assert (group["group"], group["rank"], group["world_size"]) == ("job", rank, 2)
        assert group["state"] == "open"
        assert group["num_called"] == 2
        assert [entry["kind"] for entry in group["collectives"]] == ["all_reduce", "barrier"]
        assert [entry["sequence"] for entry in group["collectives"]] == [1, 2]
        first = group["collectives"][0]
        assert (first["dtype"], first["count"], first["op"]) == ("float32", 4, "SUM")
        assert first["state"] == "done"
        assert 0 <= first["duration_s"] <= first["age_s"] < scaled(DEADLINE_S)
        (message,) = group["messages"]
        expected = ("send", "recv from rank 0 (int32 x 3, tag 7)")[rank]
        assert message["text"].startswith(expected)
        assert "all_reduce #1 (SUM, float32 x 4)" in text
        assert text.index("all_reduce #1") < text.index("barrier #2"), "the newest is the last"


@pytest.mark.parametrize("where", ["an operation", "C code with the GIL"])
def test_sigusr1_prints_the_record_while_the_main_thread_is_stuck(
    where: str, tmp_path: Path
) -> None:
    outcomes: list[RankOutcome] = run_ranks(
        signalled_while_stuck, 2, where, str(tmp_path), check=False, deadline_s=DEADLINE_S
    )
    for outcome in outcomes:
        assert outcome.ok, outcome.output
    text = outcomes[0].output
    assert "[smdistributed] flight record of process" in text
    assert "group 'default', rank 0 of 2, open" in text
    assert "barrier #1" in text
    if where == "an operation":
        assert "all_reduce #2 (SUM, float64 x 5)" in text
        assert "under way" in text
    assert "flight record" not in outcomes[1].output, "nobody asked it"


@pytest.mark.parametrize("when", ["before", "after", "faulthandler"])
def test_a_handler_of_the_script_is_left_alone(when: str, tmp_path: Path) -> None:
    outcomes: list[RankOutcome] = run_ranks(
        handlers_of_users, 2, when, str(tmp_path), check=False, deadline_s=DEADLINE_S
    )
    for outcome in outcomes:
        assert outcome.ok, outcome.output
        assert outcome.value == ["faulthandler" if when == "faulthandler" else "Python"]
        assert "flight record" not in outcome.output


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False)])
def test_the_signal_can_be_left_to_its_default_action(value: str, expected: bool) -> None:
    assert run_ranks(catches_signal, 2, env={"SMDDP_SIGNAL_REPORT": value}) == [expected] * 2


CAUSES = {
    "late": "rank 2 is inside no operation",
    "stopped": "the process of rank 2 is stopped. Continue it (kill -CONT)",
    "in a message": "rank 2 waits in another operation: the ranks make different calls",
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("why", CAUSES)
def test_a_rank_that_waits_says_for_whom_and_why(why: str, transport: str, tmp_path: Path) -> None:
    cause = CAUSES[why]
    if transport == "tcp" and why == "stopped":  # as on another host: all that shows is silence
        cause = "rank 2 does not answer: a dead host, a stopped process"
    words = ["in all_reduce #2 (SUM, float64 x 6) for rank 2 (host", f"Likely cause: {cause}"]
    if why == "in a message":
        words.append("in recv from rank 0 (float64 x 1, tag 0) for")
    outcomes: list[RankOutcome] = run_ranks(
        stalled,
        3,
        why,
        str(tmp_path),
        words,
        env={"SMDDP_TRANSPORT": transport, "SMDDP_STALL_SECONDS": "1"},
        check=False,
        deadline_s=DEADLINE_S,
    )
    for outcome in outcomes:
        assert outcome.ok, outcome.output
    text = outcomes[0].output
    assert f"WARNING: rank 0 (host {socket.gethostname()}, pid " in text, text
    for each in words:
        assert each in text, text
    if transport == "shm":
        assert "WARNING" not in outcomes[1].output, "one rank of a host is enough"


def test_no_report_where_none_is_wanted(tmp_path: Path) -> None:
    outcomes: list[RankOutcome] = run_ranks(
        stalled,
        3,
        "late",
        str(tmp_path),
        None,
        env={"SMDDP_STALL_SECONDS": "0"},
        check=False,
        deadline_s=DEADLINE_S,
    )
    assert all(outcome.ok for outcome in outcomes)
    assert not any("WARNING" in outcome.output for outcome in outcomes)


def test_smddprun_passes_the_signal_on(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import os, sys, time\n"
        "import numpy as np\n"
        "from smdistributed import collectives\n"
        "comm = collectives.init()\n"
        "comm.barrier()\n"
        "if comm.rank == 0:\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
        "    while not os.path.exists(sys.argv[1]):\n"
        "        time.sleep(0.01)\n"
        "comm.all_reduce(np.ones(9))\n"
    )
    go_on = tmp_path / "go-on"
    job = subprocess.Popen(
        [sys.executable, "-m", "smdistributed.launch", "-np", "2", str(script), str(go_on)],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert job.stdout is not None
        lines: list[str] = []
        records = 0
        for line in job.stdout:
            lines.append(line)
            if line.endswith("ready\n"):
                job.send_signal(signal.SIGUSR1)
            records += "flight record of process" in line
            if records == 2:
                go_on.touch()
        assert job.wait(scaled(DEADLINE_S)) == 0, "".join(lines)
    finally:
        if job.poll() is None:
            os.kill(job.pid, signal.SIGTERM)
            job.wait()
    text = "".join(lines)
    assert "smddprun: SIGUSR1: passed on to all ranks" in text
    for rank in (0, 1):
        assert f"[rank {rank}] [smdistributed] flight record of process" in text
