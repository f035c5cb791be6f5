# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smd`, as a user types it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from machine_speed import scaled

Command = Callable[..., "subprocess.CompletedProcess[str]"]

SCRIPT = """
import os, sys, time
print("hello", os.environ.get("RANK"), sys.argv[1:], os.environ.get("MINE"), flush=True)
print("loss: 0.25", flush=True)
if "--fails" in sys.argv:
    raise ValueError("on purpose")
if "--waits" in sys.argv:
    time.sleep(60)
open(os.environ["SM_MODEL_DIR"] + "/model", "w").write("x")
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "SMD_HOME": str(tmp_path / "home"), "COLUMNS": "80"}


@pytest.fixture
def smd(tmp_path: Path, environ: dict[str, str]) -> Command:
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "smdistributed.smd.main", *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    return run


def test_a_job_from_its_start_to_its_removal(smd: Command, tmp_path: Path) -> None:
    assert "No jobs yet. Start one: smd run train.py" in smd().stdout
    assert "No jobs yet" in smd("jobs").stdout
    arguments = ["--processes-per-host", "2", "-p", "lr=0.1", "-p", "text=x y $(id)"]
    arguments += ["--metric", "loss=loss: ([0-9.]+)", "--env", "MINE=a=b", "--name", "mine"]
    printed = smd("run", "train.py", *arguments).stdout
    for rank in (0, 1):
        line = f"hello {rank} ['--lr', '0.1', '--text', 'x y $(id)'] a=b"
        assert f"[1,mpirank:{rank},algo-1]<stdout>:{line}" in printed
    assert "1 jobs: smd jobs lists them" in smd().stdout
    listed = smd("jobs").stdout
    assert "mine" in listed
    assert "Completed" in listed
    (summary,) = json.loads(smd("jobs", "--json").stdout)
    assert (summary["TrainingJobName"], summary["TrainingJobStatus"]) == ("mine", "Completed")
    described = json.loads(smd("describe", "mine").stdout)
    assert described["HyperParameters"]["text"] == '"x y $(id)"'
    assert described["HyperParameters"]["lr"] == "0.1"
    assert "hello 1" not in smd("logs", "mine", "--rank", "0").stdout
    assert "hello 1" in smd("logs", "mine", "--host", "algo-1").stdout
    points = json.loads(smd("metrics", "mine", "--json").stdout)
    assert [(point["name"], point["value"]) for point in points] == [("loss", 0.25)] * 2
    of_system = json.loads(smd("metrics", "mine", "--system", "--json").stdout)
    assert {point["name"] for point in of_system} == {"CPUUtilization", "DiskUtilization"}
    assert smd("stop", "mine").stdout == "mine: Completed\n"
    assert "would remove mine" in smd("clean", "--older-than", "0s").stdout
    assert "0 jobs" in smd("clean", "--older-than", "1d", "--yes").stdout
    assert "removing mine" in smd("clean", "--older-than", "0s", "--yes").stdout
    assert "No jobs yet" in smd("jobs").stdout
    model = described["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://")
    assert (tmp_path / "home" / "buckets" / model).is_file(), "results stay"


def test_a_job_that_fails_is_status_1(smd: Command) -> None:
    done = smd("run", "train.py", "-p", "fails=1", "--name", "bad", status=1)
    assert "ValueError: on purpose" in done.stderr
    assert "Failed" in smd("jobs").stdout
    assert "on purpose" in smd("logs", "bad", "-f", status=1).stderr
    smd("logs", "bad")


def test_a_job_goes_on_without_its_command_and_is_followed_and_stopped(
    smd: Command, tmp_path: Path, environ: dict[str, str]
) -> None:
    assert smd("run", "train.py", "-p", "waits=1", "--no-wait", "--name", "long").stdout == "long\n"
    with subprocess.Popen(
        [sys.executable, "-m", "smdistributed.smd.main", "logs", "-f", "long"],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        assert "hello None" in follower.stdout.readline()
        assert smd("stop", "long").stdout == "long: Stopped\n"
        assert follower.wait(20) == 0


def test_a_job_whose_process_was_killed_goes_on_as_a_new_one(
    smd: Command, tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "resumes.py").write_text(
        "import os, time\n"
        "base = os.environ['SM_MODEL_DIR'] + '/../checkpoints/'\n"
        "if os.path.exists(base + 'last'):\n"
        "    raise SystemExit(print('goes on', os.environ['SAGEMAKER_JOB_NAME']))\n"
        "open(base + 'last', 'w').close()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    smd("run", "resumes.py", "--no-wait", "--name", "first", "--checkpoints", "s3://kept/a")
    job = tmp_path / "home" / "jobs" / "first"
    until = time.monotonic() + scaled(30)
    while "ready" not in smd("logs", "first").stdout and time.monotonic() < until:
        time.sleep(0.05)
    (pid,) = processes_of(f"backends.runner {job}")
    assert "expected one that has ended" in smd("run", "--resume", "first", status=2).stderr
    os.kill(pid, signal.SIGKILL)
    while "InternalServerError" not in smd("describe", "first").stdout:
        assert time.monotonic() < until
        time.sleep(0.1)
    done = smd("run", "--resume", "first", "--name", "second")
    assert "goes on second" in done.stdout
    local = json.loads((tmp_path / "home" / "jobs" / "second" / "job.json").read_text())["Local"]
    assert local["ResumedFrom"] == "first"
    assert "is Completed" in smd("run", "--resume", "second", status=2).stderr
    both = smd("run", "train.py", "--resume", "first", status=2).stderr
    assert "--resume and SCRIPT are both given" in both


def processes_of(text: str) -> list[int]:
    """Those that have it in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text in (path / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                found.append(int(path.name))
    return found


def test_a_job_by_its_document(smd: Command, tmp_path: Path) -> None:
    smd("run", "train.py", "--name", "first")
    described = json.loads(smd("describe", "first").stdout)
    document = {
        "HyperParameters": {**described["HyperParameters"], "lr": "0.5"},
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": 2},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "Environment": {"MINE": "b"},
        "Local": {"Framework": "pytorch", "cpu_shim": False},
    }
    (tmp_path / "job.json").write_text(json.dumps(document))
    printed = smd("run", "--job", "job.json", "--name", "second").stdout
    assert printed.count("hello None ['--lr', '0.5'] b") == 2, "on each host"
    again = json.loads(smd("describe", "second").stdout)
    assert again["TrainingJobStatus"] == "Completed"
    assert again["HyperParameters"]["sagemaker_job_name"] == '"second"'
    assert again["StoppingCondition"] == {"MaxRuntimeInSeconds": 60}
    both = smd("run", "train.py", "--job", "job.json", status=2).stderr
    assert "--job and SCRIPT are both given" in both
    (tmp_path / "job.json").write_text("{")
    assert "expected a JSON file" in smd("run", "--job", "job.json", status=2).stderr


def test_ctrl_c_stops_the_job(smd: Command, tmp_path: Path, environ: dict[str, str]) -> None:
    command = [sys.executable, "-m", "smdistributed.smd.main", "run", "train.py"]
    with subprocess.Popen(
        [*command, "-p", "waits=1", "--name", "long"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        while "hello" not in running.stdout.readline():
            pass
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130
    until = time.monotonic() + 20
    while json.loads(smd("jobs", "--json").stdout)[0]["TrainingJobStatus"] != "Stopped":
        assert time.monotonic() < until


def test_data_and_two_hosts(smd: Command, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("content")
    (tmp_path / "train.py").write_text(
        "import os\n"
        "print(os.environ['SM_CHANNELS'], open(os.environ['SM_CHANNEL_A'] + '/x').read())"
    )
    printed = smd(
        "run", "train.py", "-c", "a=data", "-c", f"file://{tmp_path}/data",
        "--instance-count", "2", "--framework", "none",
    ).stdout  # fmt: skip
    assert printed.count('["a","training"] content') == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["describe", "nothing"], "could not find job 'nothing'"),
        (["run", "nothing.py"], 'No file named "nothing.py" was found'),
        (["run"], "there is no script; expected smd run SCRIPT"),
        (["frobnicate"], "No such command"),
        (["run", "train.py", "-p", "a"], "--hyperparameter 'a': expected NAME=VALUE"),
        (["run", "train.py", "--framework", "jax"], "--framework is 'jax'"),
        (["run", "train.py", "--instance-count", "0"], "instance_count is 0"),
        (["run", "train.py", "--instance-count", "two"], "--instance-count"),
        (["run", "train.py", "-c", "s3://nowhere/x", "--name", "a_b"], "cannot be the name"),
        (["run", "train.py", "-c", "a", "-c", "b"], "--channel training is given twice"),
        (["run", "train.py", "-p", "a=1", "-p", "a=2"], "--hyperparameter a is given twice"),
        (["clean", "--older-than", "²d"], "--older-than is '²d'"),
        (["clean", "--older-than", "soon"], "--older-than is 'soon'"),
    ],
)
def test_what_is_wrong_is_status_2(smd: Command, arguments: list[str], text: str) -> None:
    done = smd(*arguments, status=2)
    assert text in done.stderr
    assert "No jobs yet" in smd("jobs").stdout


def test_logs_of_what_is_not_there(smd: Command) -> None:
    smd("run", "train.py", "--name", "plain")
    assert (
        "no host 'algo-7'; expected one of: algo-1"
        in smd("logs", "plain", "--host", "algo-7", status=2).stderr
    )
    assert "has no host '/x'" in smd("logs", "plain", "--host", "/x", status=2).stderr
    assert "and no ranks" in smd("logs", "plain", "--rank", "0", status=2).stderr
    smd("clean", "--older-than", "999999d")


def test_a_reader_that_goes_away_is_no_failure_of_the_job(
    smd: Command, tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text("for number in range(20000): print('x' * 50)")
    smd("run", "train.py", "--name", "long")
    command = f"{sys.executable} -m smdistributed.smd.main logs long"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["x" * 50, "141"]
    assert not done.stderr


def test_a_log_that_the_terminal_cannot_show(
    smd: Command, tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text("print('gr\u00fc\u00dfe'); print('end')")
    smd("run", "train.py", "--name", "job")
    environ["PYTHONIOENCODING"] = "ascii"
    assert smd("logs", "job").stdout == "gr??e\nend\n"


def test_a_job_that_cannot_be_read_does_not_hide_the_others(smd: Command, tmp_path: Path) -> None:
    smd("run", "train.py", "--name", "good")
    (tmp_path / "home" / "jobs" / "broken").mkdir()
    done = smd("jobs")
    assert "good" in done.stdout
    assert "job 'broken' has no record" in done.stderr


def test_doctor_says_what_jobs_find(smd: Command) -> None:
    printed = smd("doctor").stdout
    for what in ("home", "processors", "GPUs", "/opt/ml", "Python"):
        assert f"\n{what}" in f"\n{printed}"


def test_without_the_packages_one_line_says_what_to_install(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no', name='typer')")
    done = subprocess.run(
        [sys.executable, "-m", "smdistributed.smd.main", "jobs"],
        env={**environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == ("smd: typer is missing; pip install 'smdistributed-open[launch]'\n")


SERVES = """
import os
def model_fn(model_dir): return open(os.path.join(model_dir, "model")).read()
def transform_fn(model, body, kind, accept): return f"{model} {body}", "text/plain"
if __name__ == "__main__":
    open(os.environ["SM_MODEL_DIR"] + "/model", "w").write("trained")
"""


def test_a_model_from_its_endpoint_to_its_end(smd: Command, tmp_path: Path) -> None:
    assert "No endpoints. Serve a job's model: smd deploy JOB" in smd("endpoints").stdout
    (tmp_path / "train.py").write_text(SERVES)
    smd("run", "train.py", "--name", "mine")
    said = smd("deploy", "mine", "--workers", "1", "--name", "asked").stdout
    (listed,) = json.loads(smd("endpoints", "--json").stdout)
    assert said == f"asked: InService at {listed['Address']}\n"
    request = urllib.request.Request(
        f"{listed['Address']}/invocations", b"[1]", {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        assert response.read() == b"trained [1]"
    assert "asked" in smd("endpoints").stdout
    assert "already existing" in smd("deploy", "mine", "--name", "asked", status=2).stderr
    assert smd("undeploy", "asked").stdout == "asked: deleted\n"
    assert "Could not find endpoint" in smd("undeploy", "asked", status=2).stderr
    (tmp_path / "model.tar.gz").write_bytes(b"")
    broken = smd("deploy", "model.tar.gz", "--name", "broken", status=1)
    assert "cannot be unpacked" in broken.stderr
    assert "Failed" in smd("endpoints").stdout
    smd("undeploy", "broken")
    assert (
        "expected pytorch or tensorflow"
        in smd("deploy", "mine.tar.gz", "--framework", "x", status=2).stderr
    )


def test_jobs_say_with_whom_they_share_and_how_much_they_have_left(
    smd: Command, tmp_path: Path
) -> None:
    smd("run", "train.py", "--name", "long", "--no-wait", "-p", "waits=")
    said = smd("run", "train.py", "--name", "short").stderr
    assert re.search(r"job short shares the \d+ processors of this machine with long\n", said), said
    smd("stop", "long")
    assert "shares" not in smd("run", "train.py", "--name", "alone").stderr
    sizes = {
        each["TrainingJobName"]: each["SizeInBytes"]
        for each in json.loads(smd("jobs", "--json").stdout)
    }
    assert all(10_000 < size < 10_000_000 for size in sizes.values()), sizes
    assert re.search(r"alone +Completed +1 .* kB", smd("jobs").stdout)


def test_checkpoints_that_are_nowhere_else_can_be_kept(smd: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nos.makedirs('../checkpoints', exist_ok=True)\nopen('../checkpoints/1', 'w')\n"
    )
    smd("run", "train.py", "--name", "here")
    smd("run", "train.py", "--name", "there", "--checkpoints", "s3://kept/x")
    said = smd("clean", "--older-than", "0s", "--keep-checkpoints", "--yes").stdout
    assert "keeping here: its checkpoints are nowhere else" in said
    assert "removing there" in said
    assert [each["TrainingJobName"] for each in json.loads(smd("jobs", "--json").stdout)] == [
        "here"
    ]
    assert (tmp_path / "home" / "buckets" / "kept" / "x" / "1").is_file()


def test_a_rank_that_is_not_there(smd: Command) -> None:
    smd("run", "train.py", "--name", "mine", "--processes-per-host", "2")
    said = smd("logs", "mine", "--rank", "2", status=2).stderr
    assert "job 'mine' has no rank 2; expected one from 0 to 1" in said


def test_every_command_prints_json_for_programs(smd: Command) -> None:
    smd("run", "train.py", "--name", "mine")
    said = [json.loads(line) for line in smd("logs", "mine", "--json").stdout.splitlines()]
    assert [each["host"] for each in said] == ["algo-1"] * 2
    assert said[1]["text"] == "loss: 0.25"
    assert json.loads(smd("describe", "mine", "--json").stdout)["TrainingJobName"] == "mine"
    assert json.loads(smd("stop", "mine", "--json").stdout)["SecondaryStatus"] == "Completed"
    assert json.loads(smd("doctor", "--json").stdout)["jobs"] == "1"
    assert json.loads(smd("metrics", "mine", "--json").stdout) == []
    cleaned = json.loads(smd("clean", "--older-than", "0s", "--yes", "--json").stdout)
    assert list(cleaned["SizeInBytes"]) == ["mine"]
    assert json.loads(smd("jobs", "--json").stdout) == []
    assert json.loads(smd("endpoints", "--json").stdout) == []


def test_any_argument_of_an_estimator_can_be_given(smd: Command) -> None:
    given = ["-a", "max_retry_attempts=3", "-a", 'tags=[{"Key": "a", "Value": "b"}]']
    smd("run", "train.py", "--name", "mine", *given)
    described = json.loads(smd("describe", "mine").stdout)
    assert described["RetryStrategy"] == {"MaximumRetryAttempts": 3}
    assert described["Tags"] == [{"Key": "a", "Value": "b"}]
    for wrong, text in (
        ("max_retry_attempt=3", "did you mean max_retry_attempts?"),
        ("max_run=3", "--argument max_run says what an option says already"),
        ("role", "expected NAME=VALUE"),
    ):
        assert text in smd("run", "train.py", "-a", wrong, status=2).stderr
