# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that are tried again: after their agents were lost, and not after their script failed.

Source: launch specification, sections 2.1, 6.3 and 7.4.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from smdistributed._common.errors import ConfigurationError
from smdistributed.sagemaker.estimator import EstimatorBase
from smdistributed.sagemaker.exceptions import UnexpectedStatusException
from smdistributed.sagemaker.session import Session
from tests.multiprocess.sagemaker.test_fit import (
    describe,
    ended,
    estimator,
    path_of,
    processes_of,
    wait_for_line,
)

FIRST = ["Starting", "Downloading", "Training"]
AGAIN = ["Interrupted", *FIRST]


def states(fitted: EstimatorBase) -> list[str]:
    return [each["Status"] for each in describe(fitted)["SecondaryStatusTransitions"]]


def log_of(fitted: EstimatorBase, host: str = "algo-1") -> str:
    return (path_of(fitted) / "hosts" / host / "log").read_text()


def kill_agent(fitted: EstimatorBase, host: str, number: int = signal.SIGKILL) -> None:
    agent, *_ = processes_of(f"agent.agent {path_of(fitted)}/hosts/{host}")  # and its guardian
    os.kill(agent, number)


def wait_for(what: Any, most_s: float = 90.0) -> None:
    until = time.monotonic() + most_s
    while not what():
        assert time.monotonic() < until, "it has not come"
        time.sleep(0.02)


TRAINS = """
    import os, time
    import torch
    import torch.distributed as dist
    import smdistributed.dataparallel.torch.torch_smddp
    dist.init_process_group("smddp")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = torch.rand(64, 2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    folder = "/opt/ml/checkpoints" if os.path.isdir("/opt/ml") else (
        os.environ["SAGEMAKER_BASE_DIR"] + "/checkpoints")
    first = 0
    if known := sorted(os.listdir(folder)):
        state = torch.load(f"{folder}/{known[-1]}")
        first = state["step"] + 1
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    print("begins at", first, sorted(os.listdir(os.environ["SM_MODEL_DIR"])), flush=True)
    open(os.environ["SM_MODEL_DIR"] + f"/of-{first}-{rank}", "w").close()
    for step in range(first, 12):
        mine = data[rank::2]
        loss = torch.nn.functional.mse_loss(model(mine), mine.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
            each.grad /= 2
        optimizer.step()
        if rank == 0:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, f"{folder}/{step:02}.pt")
            time.sleep(float(os.environ.get("PAUSE", "0")) if step < 8 else 0)
        dist.barrier()
    print("loss:", loss.item(), flush=True)
"""


def uninterrupted_loss() -> float:
    """What rank 0 has in the end, by one process that does what the two do."""
    torch.manual_seed(0)
    data = torch.rand(64, 2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    of_rank_0 = 0.0
    for _ in range(12):
        optimizer.zero_grad()
        for rank in (1, 0):
            mine = data[rank::2]
            loss = torch.nn.functional.mse_loss(model(mine), mine.sum(1, keepdim=True))
            (loss / 2).backward()
            of_rank_0 = loss.item()
        optimizer.step()
    return of_rank_0


def test_a_job_whose_agent_is_killed_goes_on_from_its_checkpoint(
    session: Session, source: Path
) -> None:
    kept = session.home.buckets / "kept" / "run"
    fitted = estimator(
        source,
        session,
        TRAINS,
        hosts=2,
        max_retry_attempts=1,
        checkpoint_s3_uri="s3://kept/run",
        environment={"PAUSE": "0.4"},
        metric_definitions=[{"Name": "step", "Regex": "begins at ([0-9]+)"}],
    )
    fitted.fit(wait=False)
    wait_for(lambda: list(kept.glob("*.pt")))
    kill_agent(fitted, "algo-2")
    described = ended_well(fitted)
    assert described["RetryStrategy"] == {"MaximumRetryAttempts": 1}
    assert states(fitted) == [*FIRST, *AGAIN, "Uploading", "Completed"]
    message = described["SecondaryStatusTransitions"][3]["StatusMessage"]
    assert "the agent of host algo-2 ended with status -9" in message
    log = log_of(fitted)
    first, second = (line.split("begins at ")[1] for line in log.splitlines() if " at " in line)
    assert first == "0 []"
    assert int(second.split()[0]) > 0, "from its checkpoint"
    assert second.endswith(" []"), "the model of the first attempt is gone"
    assert "attempt 2 of the job begins" in log_of(fitted, "algo-2")
    points = (path_of(fitted) / "hosts" / "algo-1" / "metrics.jsonl").read_text()
    assert len(points.splitlines()) == 2, "of both attempts"
    assert float(log.split("loss: ")[1]) == pytest.approx(uninterrupted_loss(), abs=1e-6)


def ended_well(fitted: EstimatorBase) -> dict[str, Any]:
    wait_for(lambda: describe(fitted)["TrainingJobStatus"] not in ("InProgress", "Stopping"), 60.0)
    described = describe(fitted)
    assert described["TrainingJobStatus"] == "Completed", described.get("FailureReason")
    return described


WAITS = """
    import os, time
    print("pid", os.getpid(), flush=True)
    time.sleep(100)
"""


def test_attempts_are_used_up(session: Session, source: Path) -> None:
    fitted = estimator(source, session, WAITS, max_retry_attempts=1)
    fitted.fit(wait=False)
    for number in (1, 2):
        wait_for(lambda number=number: log_of_or_empty(fitted).count("pid") == number)
        kill_agent(fitted, "algo-1")
    described = ended(fitted, "Failed", "Failed")
    assert "InternalServerError: the agent of host algo-1" in described["FailureReason"]
    assert states(fitted) == [*FIRST, *AGAIN, "Failed"]


def log_of_or_empty(fitted: EstimatorBase) -> str:
    path = path_of(fitted) / "hosts" / "algo-1" / "log"
    return path.read_text() if path.exists() else ""


def test_an_agent_that_is_told_to_end_is_a_failure_of_ours(session: Session, source: Path) -> None:
    fitted = estimator(source, session, WAITS, max_retry_attempts=3)
    fitted.fit(wait=False)
    wait_for_line(fitted, "pid")
    kill_agent(fitted, "algo-1", signal.SIGTERM)
    wait_for(lambda: "Interrupted" in states(fitted))
    assert fitted.latest_training_job is not None
    fitted.latest_training_job.stop()  # perhaps in the pause between two attempts
    ended(fitted, "Stopped", "Stopped")


def test_an_agent_that_is_stopped_is_known_within_15_seconds(
    session: Session, source: Path
) -> None:
    script = """
        import os, time
        print("pid", os.getpid(), flush=True)
        time.sleep(0 if os.environ["SMDDP_RUN_ID"].endswith("attempt-2") else 100)
    """
    fitted = estimator(source, session, script, hosts=2, max_retry_attempts=1)
    fitted.fit(wait=False)
    wait_for(lambda: states(fitted)[-1] == "Training")
    wait_for_line(fitted, "pid")
    begin = time.monotonic()
    kill_agent(fitted, "algo-2", signal.SIGSTOP)
    ended_well(fitted)
    assert 14.0 < time.monotonic() - begin < 30.0
    assert states(fitted) == [*FIRST, *AGAIN, "Uploading", "Completed"]
    message = describe(fitted)["SecondaryStatusTransitions"][3]["StatusMessage"]
    assert "the agent of host algo-2 gave no sign of life for 15 s" in message


@pytest.mark.parametrize(
    ("script", "inputs", "text"),
    [
        ("raise ValueError('on purpose')", None, "AlgorithmError"),
        ("pass", "s3://nowhere/data", "ClientError"),
    ],
)
def test_failures_of_the_script_are_not_tried_again(
    session: Session, source: Path, script: str, inputs: str | None, text: str
) -> None:
    fitted = estimator(source, session, script, max_retry_attempts=3)
    with pytest.raises(UnexpectedStatusException, match=text):
        fitted.fit(inputs, logs="None")
    assert "Interrupted" not in states(fitted)


def test_ranks_that_miss_those_of_a_lost_host_have_not_failed(
    session: Session, source: Path
) -> None:
    script = """
        import os, time
        host, folder = os.environ["SM_CURRENT_HOST"], os.environ["SHARED"]
        if os.path.exists(folder + "/seen"):
            raise SystemExit(0)  # the second attempt
        if host == "algo-2":
            pipe = open(folder + "/pipe", "w")
            print("ready", flush=True)
            time.sleep(100)
        open(folder + "/pipe").read()  # until nobody has it any more
        open(folder + "/seen", "w").close()
        raise RuntimeError("the other one is gone")
    """
    os.mkfifo(source / "pipe")
    fitted = estimator(
        source,
        session,
        script,
        hosts=2,
        max_retry_attempts=1,
        environment={"SHARED": str(source)},
    )
    fitted.fit(wait=False)
    wait_for_line(fitted, "ready")
    wait_for(lambda: states(fitted)[-1] == "Training")
    kill_agent(fitted, "algo-2")
    ended_well(fitted)
    assert states(fitted) == [*FIRST, *AGAIN, "Uploading", "Completed"]


def test_a_spot_job_that_is_interrupted_goes_on_from_its_checkpoint(
    session: Session, source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = """
        import os, signal, sys, time
        folder = "/opt/ml/checkpoints" if os.path.isdir("/opt/ml") else (
            os.environ["SAGEMAKER_BASE_DIR"] + "/checkpoints")
        if os.listdir(folder):
            print("goes on from", os.listdir(folder))
            sys.exit(0)
        def save(*_):
            open(folder + "/last", "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(100)
    """
    fitted = estimator(
        source,
        session,
        script,
        use_spot_instances=True,
        max_run=60,
        max_wait=60,
        checkpoint_s3_uri="s3://kept/spot",
    )
    fitted.fit(wait=False)
    wait_for_line(fitted, "ready")
    wait_for(lambda: states(fitted)[-1] == "Training")
    job = fitted.latest_training_job
    assert job is not None
    session.interrupt_training_job(job.name)
    job.wait("All")
    printed = capfd.readouterr().out
    assert "goes on from ['last']" in printed
    assert "Managed Spot Training savings: 0.0%" in printed
    described = describe(fitted)
    assert described["EnableManagedSpotTraining"] is True
    assert states(fitted) == [*FIRST, *AGAIN, "Uploading", "Completed"]
    message = described["SecondaryStatusTransitions"][3]["StatusMessage"]
    assert message == "interrupt_training_job() was called"
    with pytest.raises(ConfigurationError, match="is Completed; expected one that goes on"):
        session.interrupt_training_job(job.name)


def test_waiting_has_an_end(session: Session, source: Path) -> None:
    fitted = estimator(source, session, WAITS, use_spot_instances=True, max_run=2, max_wait=2)
    fitted.fit(wait=False)
    wait_for_line(fitted, "pid")
    assert fitted.latest_training_job is not None
    session.interrupt_training_job(fitted.latest_training_job.name, "taken away")
    ended(fitted, "Stopped", "MaxWaitTimeExceeded")
    assert "Interrupted" in states(fitted)


def test_jobs_that_are_not_on_spot_instances_are_not_interrupted(
    session: Session, source: Path
) -> None:
    fitted = estimator(source, session, WAITS)
    fitted.fit(wait=False)
    assert fitted.latest_training_job is not None
    with pytest.raises(ConfigurationError, match="not started with use_spot_instances"):
        session.interrupt_training_job(fitted.latest_training_job.name)
    fitted.latest_training_job.stop()
    ended(fitted, "Stopped", "Stopped")


def test_time_is_counted_over_all_attempts(session: Session, source: Path) -> None:
    fitted = estimator(source, session, WAITS, max_retry_attempts=5, max_run=3)
    fitted.fit(wait=False)
    wait_for_line(fitted, "pid")
    time.sleep(1.5)
    kill_agent(fitted, "algo-1")
    described = ended(fitted, "Stopped", "MaxRuntimeExceeded")
    assert 3 <= described["TrainingTimeInSeconds"] <= 5
