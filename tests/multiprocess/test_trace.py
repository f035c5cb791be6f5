# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Traces of real jobs: what ranks record, how it is started and ended, and what merging shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from engine_ranks import say_when_inside, wait_for_files
from harness import RanksFailed, run_ranks
from launchers import clean_environment
from machine_speed import scaled
from torch_ranks import smddp

from smdistributed.dataparallel.trace.files import read_rank_trace, read_rank_traces
from smdistributed.dataparallel.trace.merge import read_job
from smdistributed.dataparallel.trace.model import RankTrace
from smdistributed.dataparallel.trace.summary import summarise

NUMBERS = 4096
WAIT_S = scaled(100)


def _traces(folder: Path, world_size: int) -> list[RankTrace]:
    return read_rank_traces([folder / f"trace.{rank}.json" for rank in range(world_size)])


def _profiled_collectives(rank: int, world_size: int, folder: str, transport: str) -> None:
    import smdistributed.dataparallel as sdp

    os.environ["SMDDP_TRANSPORT"] = transport
    with smddp():
        tensor = torch.full((NUMBERS,), float(rank))
        dist.all_reduce(tensor)  # not recorded
        sdp.start_profiler(f"{folder}/trace.json")
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        parts = [torch.empty(NUMBERS) for _ in range(world_size)]
        dist.all_gather(parts, tensor)
        dist.barrier()
        if rank == 0:
            dist.send(tensor, 1)
        elif rank == 1:
            dist.recv(tensor, 0)
        sdp.stop_profiler()
        dist.all_reduce(tensor)  # not recorded


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_records_what_it_did(tmp_path: Path, world_size: int, transport: str) -> None:
    run_ranks(_profiled_collectives, world_size, str(tmp_path), transport)
    traces = _traces(tmp_path, world_size)
    for trace in traces:
        collectives = [op for op in trace.operations if op.kind not in ("send", "recv")]
        kinds = [op.kind for op in collectives]
        assert kinds == ["all_reduce", "all_reduce", "all_gather", "barrier"]
        messages = [(op.kind, op.algorithm) for op in trace.operations if op not in collectives]
        kind = {0: ["send"], 1: ["recv"]}.get(trace.info.rank, [])
        assert messages == [(name, "message") for name in kind]
        first = collectives[0]
        assert (first.dtype, first.reduce_op) == ("float32", "SUM")
        assert first.num_bytes == 4 * NUMBERS
        assert collectives[2].num_bytes == 4 * NUMBERS * world_size
        assert first.algorithm
        for op in trace.operations:
            assert trace.info.started_ns <= op.queued_ns <= op.started_ns <= op.finished_ns
            assert op.finished_ns <= trace.info.stopped_ns
            assert op.error == ""
        assert trace.info.world_size == world_size
        assert [first.sequence + n for n in range(4)] == [op.sequence for op in collectives]
        assert trace.info.ranks_of(first.group) == list(range(world_size))
    job = read_job(traces)
    assert len(job.collectives) == 4
    assert [clock.method for clock in job.clocks.values()] == ["reference"]


def _one_rank_comes_late(rank: int, world_size: int, folder: str) -> None:
    import smdistributed.dataparallel as sdp

    with smddp():
        sdp.start_profiler(f"{folder}/trace.json")
        for step in range(5):
            dist.barrier()
            if rank == 0:
                say_when_inside("all_reduce", folder, f"inside-{step}")
            else:
                wait_for_files(folder, [f"inside-{step}"])
                time.sleep(0.2)  # the lateness is what is tested
            dist.all_reduce(torch.ones(NUMBERS))
        sdp.stop_profiler()


def test_the_late_rank_is_found_and_the_others_waiting_is_seen(tmp_path: Path) -> None:
    run_ranks(_one_rank_comes_late, 2, str(tmp_path))
    job = read_job(_traces(tmp_path, 2))
    late = [a for a in job.arrivals() if a.kind == "all_reduce" and a.spread_ns > 100_000_000]
    assert len(late) == 5
    assert {job.traces[arrival.last].info.rank for arrival in late} == {1}
    waits = [op.waited_ns for op in job.traces[0].operations if op.kind == "all_reduce"]
    assert len(waits) == 5
    assert min(waits) > 100_000_000
    table = summarise(job)
    assert "all_reduce" in table
    assert "Who comes last" in table


def _nothing_but_the_variable(rank: int, world_size: int) -> None:
    with smddp():
        dist.all_reduce(torch.ones(NUMBERS))
    # No word about traces; the process ends as a child of multiprocessing does.


def test_the_variable_records_from_import_to_the_end_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "trace.json"
    run_ranks(_nothing_but_the_variable, 2, env={"SMDDP_TRACE": str(path)})
    traces = _traces(path.parent, 2)
    assert all("all_reduce" in [op.kind for op in t.operations] for t in traces)
    assert len({trace.info.job for trace in traces} - {""}) == 1


def _a_peer_that_leaves(rank: int, world_size: int) -> None:
    with smddp():
        dist.all_reduce(torch.ones(NUMBERS))
        if rank == 1:
            os._exit(3)
        dist.all_reduce(torch.ones(NUMBERS))


def test_an_error_is_in_the_trace_of_the_rank_that_saw_it(tmp_path: Path) -> None:
    with pytest.raises(RanksFailed):
        run_ranks(_a_peer_that_leaves, 2, env={"SMDDP_TRACE": str(tmp_path / "trace.json")})
    trace = read_rank_trace(tmp_path / "trace.0.json")
    assert trace.operations[-1].kind == "all_reduce"
    assert "rank 1" in trace.operations[-1].error
    marks = [event for event in trace.events if event.get("cat") == "error"]
    assert [mark["name"] for mark in marks] == ["all_reduce failed"]
    assert not (tmp_path / "trace.1.json").exists()


def _waits(rank: int, world_size: int, folder: str) -> None:
    import smdistributed.dataparallel as sdp

    with smddp():
        sdp.start_profiler(f"{folder}/trace.json")
        work = dist.all_reduce(torch.ones(1 << 22), async_op=True)
        work.wait()
        if rank == 1:
            wait_for_files(folder, ["about to wait"])
            time.sleep(1.5)  # so that rank 0 has to wait, also if it is held up before that
        late = dist.all_reduce(torch.ones(1 << 22), async_op=True)
        if rank == 0:
            Path(folder, "about to wait").touch()
        late.wait()
        sdp.stop_profiler()


def test_waiting_for_a_handle_is_a_span(tmp_path: Path) -> None:
    run_ranks(_waits, 2, str(tmp_path))
    trace = _traces(tmp_path, 2)[0]
    waits = [event for event in trace.events if event.get("cat") == "wait"]
    assert waits
    assert max(event["dur"] for event in waits) > 100_000
    assert {event["args"]["thread"] for event in waits} == {"MainThread"}


# ---- the launcher --------------------------------------------------------------------------------

SCRIPT = """\
import os, signal, sys, time
import torch
import torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp

dist.init_process_group("smddp")
dist.all_reduce(torch.ones(8))
"""


def _launch(folder: Path, rest: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT + textwrap.dedent(rest))
    return subprocess.run(
        [sys.executable, "-m", "smdistributed.launch", "-np", "2", *options, str(script)],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def _merged(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_smddprun_records_and_merges(tmp_path: Path) -> None:
    done = _launch(tmp_path, "", "--trace", "runs/trace.json")
    assert done.returncode == 0, done.stderr
    assert "runs/trace.json: 2 rank(s), 1 collectives matched" in done.stderr
    assert done.stdout == ""
    files = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert files == ["trace.0.json", "trace.1.json", "trace.json"]
    document = _merged(tmp_path / "runs" / "trace.json")
    assert document["smddp"]["missing_ranks"] == []
    operations = [e for e in document["traceEvents"] if e.get("cat") == "operation"]
    assert sorted(event["pid"] for event in operations) == [0, 1]


def test_a_script_that_raises_leaves_its_trace(tmp_path: Path) -> None:
    rest = """
    if dist.get_rank() == 1:
        raise RuntimeError("as it happens")
    while True:  # until the launcher ends it
        time.sleep(0.1)
    """
    done = _launch(tmp_path, rest, "--trace", "trace.json")
    assert done.returncode == 1
    assert "RuntimeError: as it happens" in done.stderr
    # Rank 0 writes when the launcher's SIGTERM ends it.
    assert _merged(tmp_path / "trace.json")["smddp"]["missing_ranks"] == []


WAITS_IN_CPP = {
    "future": """
    ender.start()
    dist.all_reduce(torch.ones(8), async_op=True).get_future().wait()
    """,
    "DistributedDataParallel": """
    module.bias.register_hook(lambda gradient: ender.start())
    model(torch.ones(4, 8)).sum().backward()
    """,
}


@pytest.mark.parametrize("wait", WAITS_IN_CPP)
def test_a_rank_that_waits_inside_torch_leaves_its_trace(tmp_path: Path, wait: str) -> None:
    # Rank 0 waits for a rank that takes part in nothing any more. No handler in Python would run
    # before the launcher's SIGKILL.
    rest = """
    import threading

    def end_this_rank():
        time.sleep(1)  # to let it get into the wait
        os.kill(os.getpid(), signal.SIGTERM)

    module = torch.nn.Linear(8, 8)
    model = torch.nn.parallel.DistributedDataParallel(module)
    if dist.get_rank() == 1:
        time.sleep(600)
    ender = threading.Thread(target=end_this_rank)
    """
    done = _launch(tmp_path, rest + WAITS_IN_CPP[wait], "--trace", "trace.json")
    assert done.returncode == 128 + 15, done.stderr
    assert "rank 0 (pid" in done.stderr
    assert "was killed by SIGTERM" in done.stderr
    assert _merged(tmp_path / "trace.json")["smddp"]["missing_ranks"] == []


def test_a_signal_while_the_trace_is_written_does_not_lose_it(tmp_path: Path) -> None:
    rest = """
    from smdistributed.dataparallel.trace import session

    write = session.write_rank_trace

    def write_slowly(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        write(*arguments)

    dist.barrier()
    if dist.get_rank() == 0:
        session.write_rank_trace = write_slowly
        sys.exit(1)
    time.sleep(600)
    """
    done = _launch(tmp_path, rest, "--trace", "trace.json")
    assert done.returncode == 128 + 15, done.stderr
    assert _merged(tmp_path / "trace.json")["smddp"]["missing_ranks"] == []


def test_the_status_of_a_rank_that_is_ended_by_a_signal_stays(tmp_path: Path) -> None:
    rest = """
    dist.barrier()
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
    """
    done = _launch(tmp_path, rest, "--trace", "trace.json")
    assert done.returncode == 128 + 15
    assert (tmp_path / "trace.0.json").exists()


def test_traces_of_an_earlier_run_are_not_taken_for_those_of_this_one(tmp_path: Path) -> None:
    for name in ("trace.json", "trace.0.json", "trace.1.json"):
        (tmp_path / name).write_text("old")
    done = _launch(tmp_path, "os._exit(0)", "--trace", "trace.json")
    assert "no rank has written a trace" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_a_path_that_cannot_work_is_told_when_the_job_starts(tmp_path: Path) -> None:
    done = _launch(tmp_path, "", "--trace", "/proc/trace.json")
    assert done.returncode == 1
    assert "SMDDPConfigInvalid: a trace cannot be written to '/proc/trace.json'" in done.stderr
