# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`fit()` on this machine: the script, its data, its results, and every way in which it can end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed._common.errors import ConfigurationError, UnsupportedError
from smdistributed.launch.agent.mounts import Step, available_step
from smdistributed.launch.home import Home
from smdistributed.sagemaker.estimator import Estimator, EstimatorBase
from smdistributed.sagemaker.exceptions import UnexpectedStatusException
from smdistributed.sagemaker.huggingface import HuggingFace
from smdistributed.sagemaker.inputs import FileSystemInput, TrainingInput
from smdistributed.sagemaker.pytorch import PyTorch
from smdistributed.sagemaker.session import Session
from smdistributed.sagemaker.tensorflow import TensorFlow
from tests.small_disks import mounted_disk

# From the end of a rank to the end of the job, on a machine with other work.
SOON_S = 15.0


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(home=Home(tmp_path / "home"))
    yield session
    # Nothing may outlive its test: job processes and agents have the directory in their command.
    until = time.monotonic() + 10.0
    while processes_of(str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not processes_of(str(tmp_path)), "processes are left behind"


def processes_of(text: str) -> dict[int, str]:
    """Those that have it in their command; by their number, the oldest first."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in command:
                fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
                found.append((int(fields[19]), int(path.name), command))  # numbers begin anew
    return {pid: command for _, pid, command in sorted(found)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


def estimator(
    source: Path, session: Session, script: str, hosts: int = 1, ranks: int = 1, **changed: Any
) -> PyTorch:
    (source / "train.py").write_text(textwrap.dedent(script))
    arguments: dict[str, Any] = {
        "source_dir": str(source),
        "framework_version": "2.0",
        "py_version": "py310",
        "role": "arn:aws:iam::000000000000:role/mine",
        "instance_count": hosts,
        "instance_type": "ml.p3.16xlarge",
        "distribution": {"mpi": {"enabled": True, "processes_per_host": ranks}},
        "sagemaker_session": session,
        **changed,
    }
    return PyTorch("train.py", **arguments)


def describe(fitted: EstimatorBase) -> dict[str, Any]:
    assert fitted.latest_training_job is not None
    return fitted.latest_training_job.describe()


def path_of(fitted: EstimatorBase) -> Path:
    assert fitted.latest_training_job is not None
    return fitted.sagemaker_session.job(fitted.latest_training_job.name).path


def wait_for_line(fitted: EstimatorBase, text: str) -> None:
    """Until a rank has printed it."""
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        for log in (path_of(fitted) / "hosts").glob("*/log"):
            if text in log.read_text():
                return
        time.sleep(0.02)
    raise AssertionError(f"no rank has printed {text!r}")


def ended(fitted: EstimatorBase, status: str, secondary: str) -> dict[str, Any]:
    """The description of a job that ends so."""
    until = time.monotonic() + SOON_S
    while (described := describe(fitted))["TrainingJobStatus"] in ("InProgress", "Stopping"):
        assert time.monotonic() < until, f"it has not ended: {described['SecondaryStatus']}"
        time.sleep(0.02)
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == (status, secondary)
    return described


# --- what a script finds --------------------------------------------------------------------------

EVERYTHING = """
    import argparse, json, os
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--text")
    arguments = parser.parse_args()
    rank = int(os.environ["RANK"])
    print(json.dumps([arguments.epochs, arguments.text]))
    data = os.environ["SM_CHANNEL_TRAINING"]
    print(sorted(os.listdir(data)), open(data + "/x.txt").read())
    print(f"loss: {0.5 + rank}")
    with open(os.environ["SM_MODEL_DIR"] + f"/part-{rank}", "w") as file:
        file.write("weights")
    with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/report", "w") as file:
        file.write(os.environ["SM_CURRENT_HOST"])
"""


def test_two_hosts_from_data_to_model(
    session: Session, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "x.txt").write_text("content")
    text = "x y $(id) '\" ; ä\nsecond"
    fitted = estimator(
        source,
        session,
        EVERYTHING,
        hosts=2,
        ranks=2,
        hyperparameters={"epochs": 3, "text": text},
        metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
        base_job_name="mine",
    )
    fitted.fit(f"file://{data}")
    printed = capfd.readouterr().out
    for rank in range(4):
        host = f"algo-{rank // 2 + 1}"
        prefix = f"[1,mpirank:{rank},{host}]<stdout>:"
        assert prefix + json.dumps([3, text]) in printed
        assert prefix + "['x.txt'] content" in printed
    assert "Training seconds: " in printed
    described = describe(fitted)
    assert described["TrainingJobStatus"] == "Completed"
    assert described["TrainingJobName"].startswith("mine-20")
    assert described["HyperParameters"]["text"] == json.dumps(text)
    assert [each["MetricName"] for each in described["FinalMetricDataList"]] == ["loss"]
    assert [each["Status"] for each in described["SecondaryStatusTransitions"]] == [
        "Starting", "Downloading", "Training", "Uploading", "Completed",
    ]  # fmt: skip
    name = described["TrainingJobName"]
    uri = f"s3://{session.default_bucket()}/{name}/output/model.tar.gz"
    assert fitted.model_data == described["ModelArtifacts"]["S3ModelArtifacts"] == uri
    folder = session.home.buckets / session.default_bucket() / name / "output"
    with tarfile.open(folder / "model.tar.gz") as tar:
        assert sorted(tar.getnames()) == ["part-0", "part-1", "part-2", "part-3"]
    with tarfile.open(folder / "output.tar.gz") as tar:
        report = tar.extractfile("report")
        assert report is not None
        assert report.read() == b"algo-1", "of what two hosts have, that of the first one"
    points = [
        json.loads(line)
        for path in (path_of(fitted) / "hosts").glob("*/metrics.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(point["value"] for point in points) == [0.5, 1.5, 2.5, 3.5]
    analytics = fitted.training_job_analytics
    assert sorted(point.value for point in analytics.points()) == [0.5, 1.5, 2.5, 3.5]
    assert {name for _, name, _ in analytics.rows()} == {"loss"}


def test_ranks_of_two_hosts_reduce_together(session: Session, source: Path) -> None:
    script = """
        import torch
        import torch.distributed as dist
        import smdistributed.dataparallel.torch.torch_smddp
        dist.init_process_group("smddp")
        value = torch.full((3,), 1.0 + dist.get_rank())
        dist.all_reduce(value)
        assert value.tolist() == [3.0] * 3, value
        print("reduced")
    """
    distribution = {"smdistributed": {"dataparallel": {"enabled": True}}}
    fitted = estimator(
        source,
        session,
        script,
        hosts=2,
        instance_type="ml.p3.2xlarge",  # of one GPU: so one process, where there is none
        distribution=distribution,
    )
    fitted.fit(logs="None")
    logs = [path.read_text() for path in (path_of(fitted) / "hosts").glob("*/log")]
    assert len(logs) == 2
    assert all("reduced" in log for log in logs)


def test_a_script_for_gpus_runs_where_there_are_none(
    session: Session, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    script = """
        import os
        import torch
        import torch.distributed as dist
        import smdistributed.dataparallel.torch.torch_smddp
        dist.init_process_group("smddp")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        value = torch.ones(2, device="cuda")
        dist.all_reduce(value)
        print("has", value.tolist(), os.environ["SM_NUM_GPUS"])
    """
    distribution = {"smdistributed": {"dataparallel": {"enabled": True}}}
    for emulates in (False, True):
        fitted = estimator(
            source,
            session,
            script,
            instance_type="ml.p3.2xlarge",
            distribution=distribution,
            emulate_gpus=emulates,
        )
        fitted.fit(logs="None")
        log = (path_of(fitted) / "hosts" / "algo-1" / "log").read_text()
        assert f"has [1.0, 1.0] {int(emulates)}" in log, "section 4.4: 0, or the processes"
        assert "names 1 GPU(s) and this host has none: 1 process on each host, on CPUs" in log
    without = estimator(
        source,
        session,
        "import os; print('shim', os.environ.get('SMDDP_CPU_SHIM'))",
        instance_type="ml.p3.2xlarge",
        distribution=distribution,
        cpu_shim=False,
    )
    without.fit(logs="None")
    assert "shim None" in (path_of(without) / "hosts" / "algo-1" / "log").read_text()


def test_opt_ml_is_each_hosts_own(session: Session, source: Path, tmp_path: Path) -> None:
    step, why = available_step(tmp_path)
    if step is Step.NONE:
        pytest.skip(f"/opt/ml cannot be mounted here: {why}")
    script = """
        import os
        with open("/opt/ml/model/" + os.environ["SM_CURRENT_HOST"], "w") as file:
            file.write("x")
        assert os.listdir("/opt/ml/model") == [os.environ["SM_CURRENT_HOST"]]
        assert os.environ["SM_MODEL_DIR"] == "/opt/ml/model"
        print(sorted(os.listdir("/opt")))
    """
    before = sorted(os.listdir("/opt"))
    fitted = estimator(source, session, script, hosts=2)
    fitted.fit(logs="None")
    log = (path_of(fitted) / "hosts" / "algo-1" / "log").read_text()
    assert str(sorted({*before, "ml"})) in log, "the rest of /opt is where it was"
    assert sorted(os.listdir("/opt")) == before


def test_names_of_hosts_are_known(session: Session, source: Path, tmp_path: Path) -> None:
    """All names resolve before scripts start (launch specification, section 11)."""
    step, why = available_step(tmp_path)
    if not step.is_mount:
        pytest.skip(f"there are no mount namespaces here: {why}")
    before = Path("/etc/hosts").read_bytes()
    script = """
        import json, os, socket
        hosts = json.loads(os.environ["SM_HOSTS"])
        print("found", [socket.gethostbyname(each) for each in [*hosts, "localhost"]])
    """
    fitted = estimator(source, session, script, hosts=3, distribution=None)
    fitted.fit(logs=False)
    lines = [path.read_text() for path in path_of(fitted).glob("hosts/*/log")]
    assert [("found " + str(["127.0.0.1"] * 4)) in each for each in lines] == [True] * 3, lines
    assert Path("/etc/hosts").read_bytes() == before


def test_a_plain_script_is_one_process_on_each_host(session: Session, source: Path) -> None:
    script = """
        import os
        assert "RANK" not in os.environ
        assert os.environ["SMDDP_HOROVOD"] == "stand-in"
        print("alone on", os.environ["SM_CURRENT_HOST"])
    """
    fitted = estimator(source, session, script, hosts=2, distribution=None)
    fitted.fit(logs="None")
    log = (path_of(fitted) / "hosts" / "algo-2" / "log").read_text()
    assert log.split(" ", 1)[1] == "alone on algo-2\n", "without a prefix"


def test_a_shell_script_gets_its_arguments_unchanged(session: Session, source: Path) -> None:
    (source / "run.sh").write_text('printf "[%s]" "$@"; echo; pwd\n')
    fitted = Estimator(
        entry_point="run.sh",
        source_dir=str(source),
        instance_count=1,
        instance_type="local",
        hyperparameters={"a": "x $HOME  y", "b": ""},
        sagemaker_session=session,
    )
    fitted.fit(logs=False)
    assert fitted.latest_training_job is not None
    log = session.job(fitted.latest_training_job.name).host("algo-1") / "log"
    assert "[-a][x $HOME  y][-b][]" in log.read_text()


def test_a_script_asks_by_the_toolkit(session: Session, source: Path) -> None:
    script = """
        from sagemaker_training import environment
        found = environment.Environment()
        assert found.hyperparameters == {"epochs": 3}, found.hyperparameters
        assert found.additional_framework_parameters["sagemaker_mpi_enabled"] is True
        assert found.hosts == ["algo-1", "algo-2"]
        assert found.to_cmd_args() == ["--epochs", "3"]
        print("asked on", found.current_host)
    """
    fitted = estimator(source, session, script, hosts=2, hyperparameters={"epochs": 3})
    fitted.fit(logs="None")
    assert "asked on algo-2" in (path_of(fitted) / "hosts" / "algo-2" / "log").read_text()


def test_tensorflow_is_told_where_its_model_goes(session: Session, source: Path) -> None:
    (source / "train.py").write_text("import sys; print(sys.argv[1:])")
    fitted = TensorFlow(
        entry_point="train.py",
        source_dir=str(source),
        framework_version="2.11",
        py_version="py39",
        instance_count=1,
        instance_type="local",
        sagemaker_session=session,
    )
    fitted.fit(logs=False)
    assert fitted.latest_training_job is not None
    log = (session.job(fitted.latest_training_job.name).host("algo-1") / "log").read_text()
    assert "'--model_dir', '" in log
    assert "/model'" in log


@pytest.mark.parametrize(("folder", "is_told"), [("1", False), ("latest", True)])
def test_tensorflow_is_told_if_nothing_can_be_served(
    session: Session, source: Path, caplog: pytest.LogCaptureFixture, folder: str, is_told: bool
) -> None:
    """The warning of section 6.2 of the launch specification."""
    (source / "train.py").write_text(
        "import os\n"
        f"folder = os.path.join(os.environ['SM_MODEL_DIR'], 'any', '{folder}')\n"
        "os.makedirs(folder)\n"
        "open(os.path.join(folder, 'saved_model.pb'), 'w').close()\n"
    )
    fitted = TensorFlow(
        entry_point="train.py",
        source_dir=str(source),
        image_uri="tensorflow-training:1",
        instance_count=1,
        instance_type="local",
        sagemaker_session=session,
    )
    fitted.fit(logs=False)
    assert ("no SavedModel in a folder whose name is a number" in caplog.text) == is_told


def test_hosts_are_workers_of_a_mirrored_strategy(session: Session, source: Path) -> None:
    (source / "train.py").write_text(
        "import json, os\n"
        "found = json.loads(os.environ['TF_CONFIG'])\n"
        "print(found['task'], len(set(found['cluster']['worker'])), 'RANK' in os.environ)\n"
    )
    fitted = TensorFlow(
        entry_point="train.py",
        source_dir=str(source),
        framework_version="2.11",
        py_version="py39",
        instance_count=2,
        instance_type="ml.p3.16xlarge",
        distribution={"multi_worker_mirrored_strategy": {"enabled": True}},
        sagemaker_session=session,
    )
    fitted.fit(logs=False)
    for index in range(2):
        log = (path_of(fitted) / "hosts" / f"algo-{index + 1}" / "log").read_text()
        assert f"{{'type': 'worker', 'index': {index}}} 2 False" in log


def test_data_of_the_store_and_a_single_file(
    session: Session, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "one.csv").write_text("1,2")
    uri = session.upload_data(str(tmp_path / "one.csv"), key_prefix="sets/a")
    assert uri == f"s3://{session.default_bucket()}/sets/a/one.csv"
    script = """
        import os
        assert open(os.environ["SM_CHANNEL_TRAIN"] + "/one.csv").read() == "1,2"
        assert os.listdir(os.environ["SM_CHANNEL_TEST"]) == ["one.csv"]
    """
    fitted = estimator(source, session, script)
    folder = TrainingInput(f"s3://{session.default_bucket()}/sets/a")
    fitted.fit({"train": uri, "test": folder}, logs="None")
    assert describe(fitted)["TrainingJobStatus"] == "Completed"


def test_checkpoints_are_kept_and_come_back(session: Session, source: Path) -> None:
    script = """
        import os, sys
        folder = "/opt/ml/checkpoints" if os.path.isdir("/opt/ml") else (
            os.environ["SAGEMAKER_BASE_DIR"] + "/checkpoints")
        known = sorted(os.listdir(folder))
        print("found", known)
        with open(f"{folder}/{len(known)}", "w") as file:
            file.write("state")
        sys.exit(0 if known else 5)
    """
    for number in range(2):
        fitted = estimator(source, session, script, checkpoint_s3_uri="s3://kept/run")
        with contextlib.suppress(UnexpectedStatusException):
            fitted.fit(logs="None")
        log = (path_of(fitted) / "hosts" / "algo-1" / "log").read_text()
        assert f"found {['0'][:number]}" in log
    assert describe(fitted)["TrainingJobStatus"] == "Completed"
    assert describe(fitted)["CheckpointConfig"] == {"S3Uri": "s3://kept/run"}
    assert sorted(os.listdir(session.home.buckets / "kept" / "run")) == ["0", "1"]


# --- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        ("sys.exit(7)", ["ExitCode 7"]),
        ("raise ValueError('the loss is nan')", ["ExitCode 1", "ValueError: the loss is nan"]),
        ("os.kill(os.getpid(), 9)", ["ExitCode 137", "OutOfMemory"]),
        ("os.kill(os.getpid(), 11)", ["ExitCode 139"]),
    ],
)
def test_a_rank_that_fails_ends_the_job(
    session: Session, source: Path, script: str, texts: list[str]
) -> None:
    waits = f"""
        import os, sys, time
        if os.environ["RANK"] == "3":
            {script}
        time.sleep(100)
    """
    fitted = estimator(source, session, waits, hosts=2, ranks=2)
    begin = time.monotonic()
    with pytest.raises(UnexpectedStatusException) as raised:
        fitted.fit(logs="None")
    assert time.monotonic() - begin < SOON_S
    assert raised.value.actual_status == "Failed"
    reason = describe(fitted)["FailureReason"]
    assert str(raised.value) == (
        f"Error for Training job {describe(fitted)['TrainingJobName']}: Failed. Reason: {reason}"
    )
    assert reason.startswith("AlgorithmError: ExecuteUserScriptError:\nExitCode ")
    assert "rank 3 on algo-2" in reason
    for text in texts:
        assert text in reason
    reports = {
        path.parent.name: json.loads(path.read_text())
        for path in (path_of(fitted) / "hosts").glob("*/report.json")
    }
    ranks = [rank for report in reports.values() for rank in report["ranks"]]
    assert sorted(rank["rank"] for rank in ranks) == [0, 1, 2, 3]
    assert [rank["rank"] for rank in ranks if rank["failed_first"]] == [3]


def test_a_rank_that_ends_early_with_success_is_no_failure(session: Session, source: Path) -> None:
    script = "import os, time; time.sleep(int(os.environ['RANK']))"
    fitted = estimator(source, session, script, hosts=2)
    fitted.fit(logs="None")
    assert describe(fitted)["TrainingJobStatus"] == "Completed"


def test_the_scripts_own_words_are_the_reason(session: Session, source: Path) -> None:
    script = """
        import os, sys
        base = os.environ["SM_OUTPUT_DIR"]
        open(base + "/failure", "w").write("the data are of last year")
        sys.exit(1)
    """
    fitted = estimator(source, session, script)
    with pytest.raises(
        UnexpectedStatusException, match="AlgorithmError: the data are of last year"
    ):
        fitted.fit(logs="None")


def test_a_script_that_speaks_as_we_do_is_not_tried_again(session: Session, source: Path) -> None:
    script = """
        import os, sys
        open(os.environ["SM_OUTPUT_DIR"] + "/failure", "w").write("InternalServerError: mine")
        sys.exit(1)
    """
    fitted = estimator(source, session, script, max_retry_attempts=3)
    text = "AlgorithmError: ExecuteUserScriptError: InternalServerError: mine"
    with pytest.raises(UnexpectedStatusException, match=text):
        fitted.fit(logs="None")
    moves = fitted.latest_training_job.describe()["SecondaryStatusTransitions"]
    assert [each["Status"] for each in moves].count("Training") == 1


def test_requirements_that_cannot_be_installed(session: Session, source: Path) -> None:
    (source / "requirements.txt").write_text("./nowhere-1.0-py3-none-any.whl\n")
    fitted = estimator(source, session, "print('never')")
    with pytest.raises(UnexpectedStatusException, match=r"InstallRequirementsError:\nExitCode 1"):
        fitted.fit(logs="None")
    assert "nowhere" in describe(fitted)["FailureReason"]


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("file:///nowhere/at/all", "/nowhere/at/all"),
        ("s3://others-bucket/data", "others-bucket"),
        ("s3://{bucket}/nothing", "nothing"),
    ],
)
def test_data_that_are_not_there(session: Session, source: Path, uri: str, text: str) -> None:
    fitted = estimator(source, session, "print('never')")
    with pytest.raises(UnexpectedStatusException, match="ClientError"):
        fitted.fit(uri.format(bucket=session.default_bucket()), logs="None")
    described = describe(fitted)
    assert text in described["FailureReason"]
    assert [each["Status"] for each in described["SecondaryStatusTransitions"]] == [
        "Starting", "Downloading", "Failed",
    ]  # fmt: skip


def test_stop_gives_the_script_time_and_saves_the_model(session: Session, source: Path) -> None:
    script = """
        import os, signal, sys, time
        def save(*_):
            open(os.environ["SM_MODEL_DIR"] + "/last", "w").write("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready")
        time.sleep(100)
    """
    fitted = estimator(source, session, script, hosts=2)
    fitted.fit(wait=False)
    wait_for_line(fitted, "ready")
    time.sleep(0.2)
    job = fitted.latest_training_job
    assert job is not None
    job.stop()
    job.stop()
    described = ended(fitted, "Stopped", "Stopped")
    assert fitted.model_data is not None
    job.stop()  # of what has ended: nothing
    job.wait("None")  # no exception
    assert describe(fitted) == described


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1])
def test_a_signal_in_the_first_moments_stops_the_job(
    session: Session, source: Path, after_s: float
) -> None:
    fitted = estimator(source, session, SLEEPS)
    fitted.fit(wait=False)
    time.sleep(after_s)
    (pid,) = [
        pid for pid, line in processes_of(str(path_of(fitted))).items() if "backends.runner" in line
    ]
    os.kill(pid, signal.SIGTERM)
    fitted.latest_training_job.wait(logs=False)
    assert fitted.latest_training_job.describe()["TrainingJobStatus"] == "Stopped"


def test_a_job_that_takes_too_long_is_stopped(session: Session, source: Path) -> None:
    fitted = estimator(source, session, "import time; time.sleep(100)", max_run=1)
    fitted.fit(logs="None")
    ended(fitted, "Stopped", "MaxRuntimeExceeded")


SLEEPS = """
    import os, time
    open(os.environ["SM_MODEL_DIR"] + "/part", "w").write("x")
    print("pid", os.getpid(), flush=True)
    time.sleep(100)
"""


def test_a_job_whose_process_is_killed_is_ended_by_its_agents(
    session: Session, source: Path
) -> None:
    fitted = estimator(source, session, SLEEPS, hosts=2)
    fitted.fit(wait=False)
    wait_for_line(fitted, "pid")
    (pid,) = processes_of(f"backends.runner {path_of(fitted)}")
    os.kill(pid, signal.SIGKILL)
    described = ended(fitted, "Failed", "Failed")
    assert "InternalServerError: the process of the job" in described["FailureReason"]
    assert fitted.model_data is not None, "what there was is saved"


def test_a_host_whose_agent_is_killed_ends_the_job(session: Session, source: Path) -> None:
    fitted = estimator(source, session, SLEEPS, hosts=2)
    fitted.fit(wait=False)
    wait_for_line(fitted, "pid")
    agent, *_ = processes_of(f"agent.agent {path_of(fitted)}/hosts/algo-2")  # and its guardian
    os.kill(agent, signal.SIGKILL)
    described = ended(fitted, "Failed", "Failed")
    assert "the agent of host algo-2 ended with status -9" in described["FailureReason"]


def test_everybody_is_killed(session: Session, source: Path) -> None:
    fitted = estimator(source, session, SLEEPS)
    fitted.fit(wait=False)
    wait_for_line(fitted, "pid")
    for pid in processes_of(str(path_of(fitted))):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    described = ended(fitted, "Failed", "Failed")
    assert "InternalServerError: the process of the job" in described["FailureReason"]


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_user_may_not_stop_a_job(session: Session, source: Path, mode: int) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    fitted = estimator(source, session, SLEEPS)
    fitted.fit(wait=False)
    for path in (session.home.root, session.home.jobs):
        path.chmod(mode)
    for path in session.home.root.parents:  # up to where others may come in
        if path.owner() == "root" and path.stat().st_mode & 0o055 != 0o055:
            path.chmod(path.stat().st_mode | 0o055)
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            session.stop_training_job(fitted.latest_training_job.name)
            os.write(write, b"it was stopped")
        except ConfigurationError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert re.search(rb"this user( may read|'s jobs)", os.read(read, 4096))
    assert not fitted.latest_training_job.describe()["TrainingJobStatus"].startswith("Stop")
    fitted.latest_training_job.stop()


def test_another_process_attaches(session: Session, source: Path) -> None:
    script = """
        import os, time
        print("training on", flush=True)
        time.sleep(2)
        open(os.environ["SM_MODEL_DIR"] + "/m", "w").write("x")
    """
    fitted = estimator(source, session, script, hyperparameters={"epochs": 3, "name": "x y"})
    fitted.fit(wait=False)
    assert fitted.latest_training_job is not None
    program = f"""
        from smdistributed.sagemaker.pytorch import PyTorch
        attached = PyTorch.attach({fitted.latest_training_job.name!r})
        print(attached.model_data, attached.hyperparameters(), attached.instance_count)
        attached.logs()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "SMD_HOME": str(session.home.root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "model.tar.gz" in done.stdout
    assert "{'epochs': 3, 'name': 'x y'" in done.stdout
    assert "training on" in done.stdout
    with pytest.raises(ConfigurationError, match="could not find job 'none-such'"):
        PyTorch.attach("none-such", sagemaker_session=session)


@pytest.mark.parametrize(
    "asked",
    [
        {"hyperparameters": {"sagemaker_distributed_dataparallel_enabled": True}},  # as line 1.x
        {"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}}},
    ],
)
def test_a_job_that_is_attached_trains_again_as_it_did(
    session: Session, source: Path, asked: dict[str, Any]
) -> None:
    script = "import os; print('one of', os.environ['WORLD_SIZE'])"
    given: dict[str, Any] = {"distribution": None, "instance_type": "ml.p3.8xlarge", **asked}
    first = estimator(source, session, script, **given)
    first.fit(logs="None")
    assert first.latest_training_job is not None
    again = PyTorch.attach(first.latest_training_job.name, session)
    assert again.hyperparameters() == first.hyperparameters()
    assert again._hyperparameters == first._hyperparameters
    again.fit(logs="None")
    for each in (first, again):
        assert "one of 4" in (path_of(each) / "hosts" / "algo-1" / "log").read_text()
    assert describe(again)["HyperParameters"].keys() == describe(first)["HyperParameters"].keys()


def test_every_estimator_attaches_its_own_jobs(session: Session, source: Path) -> None:
    (source / "train.py").write_text("import sys; print(sys.argv[1:])")
    common = {
        "source_dir": str(source),
        "instance_count": 1,
        "instance_type": "local",
        "sagemaker_session": session,
        "checkpoint_s3_uri": "s3://kept/a",
    }
    made = [
        TensorFlow(
            entry_point="train.py", framework_version="2.11", py_version="py39",
            model_dir="s3://b/m", **common,
        ),
        HuggingFace("py310", "train.py", "4.28", pytorch_version="2.0", **common),
        Estimator(entry_point="train.py", **common),
    ]  # fmt: skip
    for fitted in made:
        fitted.fit(logs=False)
        assert fitted.latest_training_job is not None
        name = fitted.latest_training_job.name
        attached = type(fitted).attach(name, sagemaker_session=session)
        for what in ("instance_count", "checkpoint_s3_uri", "distribution", "max_run"):
            assert getattr(attached, what) == getattr(fitted, what), what
        assert attached.hyperparameters() == fitted.hyperparameters()
        attached.fit(logs=False)  # the sources are those of the job
        assert describe(attached)["TrainingJobStatus"] == "Completed"
        if not isinstance(fitted, Estimator):
            with pytest.raises(
                ConfigurationError, match="didn't use image for requested framework"
            ):
                PyTorch.attach(name, sagemaker_session=session)
    log = session.job(made[0].latest_training_job.name).host("algo-1") / "log"  # type: ignore[union-attr]
    assert "'--model_dir', 's3://b/m'" in log.read_text()


def test_options_of_mpi_that_mean_something_here(session: Session, source: Path) -> None:
    script = "import os; print(os.environ['FOO'], os.environ['NCCL_DEBUG'])"
    options = "-x FOO=1 --NCCL_DEBUG WARN -x PATH --verbose"
    distribution = {"mpi": {"enabled": True, "custom_mpi_options": options}}
    fitted = estimator(source, session, script, distribution=distribution, instance_type="local")
    fitted.fit(logs="None")
    assert "1 WARN" in (path_of(fitted) / "hosts" / "algo-1" / "log").read_text()


def test_a_stop_while_packages_are_installed(
    session: Session, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    (source / "setup.py").write_text("import time; time.sleep(100)")
    (source / "requirements.txt").write_text(".\n")
    fitted = estimator(source, session, "print('it runs')")
    fitted.fit(wait=False)
    until = time.monotonic() + scaled(30)
    while not any(temporary.rglob("pip-*")):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert fitted.latest_training_job is not None
    fitted.latest_training_job.stop()
    ended(fitted, "Stopped", "Stopped")
    log = path_of(fitted) / "hosts" / "algo-1" / "log"
    assert not log.exists() or "it runs" not in log.read_text()
    assert os.listdir(temporary) == []


def test_what_a_shell_script_has_started_is_stopped_too(session: Session, source: Path) -> None:
    (source / "child.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('told', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(100)\n"
    )
    (source / "run.sh").write_text(f"{sys.executable} child.py\necho done\n")
    fitted = Estimator(
        entry_point="run.sh",
        source_dir=str(source),
        instance_count=1,
        instance_type="local",
        sagemaker_session=session,
    )
    fitted.fit(wait=False)
    wait_for_line(fitted, "ready")
    assert fitted.latest_training_job is not None
    fitted.latest_training_job.stop()
    ended(fitted, "Stopped", "Stopped")
    log = path_of(fitted) / "hosts" / "algo-1" / "log"
    assert "told" in log.read_text()


def test_an_error_of_the_library_gives_its_name(session: Session, source: Path) -> None:
    script = """
        import sys
        for line in (
            "Traceback (most recent call last):",
            "  File 'x'",
            "smdistributed.dataparallel.exceptions.SMDDPMismatch: sizes",
        ):
            print("[rank0]: " + line, file=sys.stderr)
        sys.exit(1)
    """
    fitted = estimator(source, session, script)
    with pytest.raises(UnexpectedStatusException, match="AlgorithmError: SMDDPMismatch:"):
        fitted.fit(logs="None")
    assert "exceptions.SMDDPMismatch: sizes" in describe(fitted)["FailureReason"]


def test_results_in_a_folder_of_the_users(session: Session, source: Path, tmp_path: Path) -> None:
    script = "import os; open(os.environ['SM_MODEL_DIR'] + '/m', 'w').write('x')"
    fitted = estimator(source, session, script, output_path=f"file://{tmp_path}/results")
    fitted.fit(logs="None")
    name = describe(fitted)["TrainingJobName"]
    assert fitted.model_data == f"file://{tmp_path}/results/{name}/output/model.tar.gz"
    assert (tmp_path / "results" / name / "output" / "model.tar.gz").is_file()
    assert (tmp_path / "results" / "model.tar.gz").is_file(), "where the SDK's local mode puts it"


def test_of_two_hosts_that_fail_the_first_one_is_the_reason(session: Session, source: Path) -> None:
    script = """
        import os, signal, sys, time
        rank = int(os.environ["RANK"])
        if rank == 1:  # keeps its agent busy for a while after the failure
            signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), sys.exit(0)))
            time.sleep(100)
        time.sleep(1 if rank == 0 else 1.5)
        raise ValueError(f"of rank {rank}")
    """
    fitted = estimator(source, session, script, hosts=2, ranks=2)
    with pytest.raises(UnexpectedStatusException, match="ValueError: of rank 0"):
        fitted.fit(logs="None")


def test_ranks_that_we_kill_have_not_failed(session: Session, source: Path) -> None:
    script = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["RANK"] == "1":
            time.sleep(0.5)
            raise SystemExit(3)
        time.sleep(100)
    """
    fitted = estimator(source, session, script, hosts=2)
    with pytest.raises(UnexpectedStatusException, match=r"ExitCode 3\n.*rank 1 on algo-2"):
        fitted.fit(logs="None")
    assert "OutOfMemory" not in describe(fitted)["FailureReason"]


def test_a_job_in_a_job_is_no_rank_of_it(
    session: Session, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SM_CHANNEL_OTHER", "TF_CONFIG"):
        monkeypatch.setenv(name, "7")
    script = """
        import os
        names = ("RANK", "WORLD_SIZE", "SM_CHANNEL_OTHER", "TF_CONFIG")
        print([name for name in names if name in os.environ])
    """
    fitted = estimator(source, session, script, distribution=None)
    fitted.fit(logs="None")
    assert "Z []" in (path_of(fitted) / "hosts" / "algo-1" / "log").read_text()


def test_files_beside_the_notebook_do_not_hide_the_standard_library(
    session: Session, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("secrets.py", "signal.py", "queue.py"):
        (tmp_path / name).write_text("raise RuntimeError('this one was imported')")
    (source / "queue.py").write_text("raise RuntimeError('this one was imported')")  # pip needs it
    monkeypatch.chdir(tmp_path)
    (source / "requirements.txt").write_text("pytest\n")
    fitted = estimator(source, session, "print('fine')")
    fitted.fit(logs="None")
    packages = (path_of(fitted) / "hosts" / "algo-1" / "packages").glob("lib/*/site-packages/*")
    assert [each.name for each in packages] == ["below.pth"], "it was there already"


def test_two_clients_that_look_at_a_job_that_begins(session: Session, source: Path) -> None:
    fitted = estimator(source, session, "import time; time.sleep(1)")
    program = f"""
        import sys, time
        from pathlib import Path
        from smdistributed.launch.home import Home
        from smdistributed.launch.jobs.directory import job_names
        from smdistributed.sagemaker.session import Session
        session = Session(home=Home(Path({str(session.home.root)!r})))
        print("looks", flush=True)
        seen = set()
        until = time.monotonic() + 20
        while time.monotonic() < until and "Completed" not in seen and "Failed" not in seen:
            for name in job_names(session.home):
                seen.add(session.describe_training_job(name)["SecondaryStatus"])
        print(sorted(seen))
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        fitted.fit(logs="None")
        seen = other.stdout.read()
    assert "Failed" not in seen
    assert "Completed" in seen


def test_what_a_rank_has_started_in_a_session_of_its_own_ends_with_the_job(
    session: Session, source: Path
) -> None:
    script = """
        import os, subprocess, sys
        base = os.environ["SM_OUTPUT_DIR"]
        subprocess.Popen(["sleep", "1234.5"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "1234.5"])
            os._exit(0)
    """
    fitted = estimator(source, session, script)
    fitted.fit(logs="None")
    assert not processes_of("sleep 1234.5")


def test_a_process_that_cannot_be_started_fails_the_job(
    session: Session, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = estimator(source, session, "pass")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(OSError, match="/nowhere/python"):
            fitted.fit()
    described = describe(fitted)
    assert described["TrainingJobStatus"] == "Failed"
    assert "could not be started" in described["FailureReason"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of 3 MiB."""
    with mounted_disk(tmp_path / "small", "size=3m") as path:
        yield path


def test_a_script_that_fills_the_disk_has_an_end(source: Path, small_disk: Path) -> None:
    session = Session(home=Home(small_disk / "home"))
    script = """
        import os
        with open(os.environ["SM_OUTPUT_DIR"] + "/big", "wb") as file:
            while True:
                file.write(bytes(65536))
                file.flush()
    """
    fitted = estimator(source, session, script, hosts=2)
    with pytest.raises(UnexpectedStatusException, match=r"disk is full|No space left on"):
        fitted.fit(logs="None")
    ended(fitted, "Failed", "Failed")


def test_a_job_on_a_full_disk_can_be_stopped(source: Path, small_disk: Path) -> None:
    session = Session(home=Home(small_disk / "home"))
    script = """
        import contextlib, os, time
        with contextlib.suppress(OSError), open(os.environ["SM_OUTPUT_DIR"] + "/big", "wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        time.sleep(100)
    """
    fitted = estimator(source, session, script)
    fitted.fit(wait=False)
    until = time.monotonic() + 20
    while shutil.disk_usage(small_disk).free > 4096 and time.monotonic() < until:
        time.sleep(0.1)
    assert fitted.latest_training_job is not None
    fitted.latest_training_job.stop()
    ended(fitted, "Stopped", "Stopped")


def test_a_result_that_does_not_fit_leaves_the_one_before(
    session: Session, source: Path, small_disk: Path
) -> None:
    script = """
        import os
        size = int(os.environ["SM_HP_SIZE"])
        open(os.environ["SM_MODEL_DIR"] + "/m", "wb").write(os.urandom(size))
    """
    out = f"file://{small_disk}/out"
    first = estimator(source, session, script, output_path=out, hyperparameters={"size": 300_000})
    first.fit(logs="None")
    before = (small_disk / "out" / "model.tar.gz").read_bytes()
    second = estimator(
        source, session, script, output_path=out, hyperparameters={"size": 1_400_000}
    )
    with pytest.raises(UnexpectedStatusException, match="artifacts could not be saved"):
        second.fit(logs="None")
    assert (small_disk / "out" / "model.tar.gz").read_bytes() == before


def test_the_directory_of_a_job_that_runs_is_removed(session: Session, source: Path) -> None:
    script = SLEEPS.replace("time.sleep(100)", "time.sleep(30)")
    fitted = estimator(source, session, script, checkpoint_s3_uri="s3://kept/b")
    kept = session.home.buckets / "kept" / "b"
    kept.mkdir(parents=True)
    (kept / "good").write_text("the only copy")
    fitted.fit(wait=False)
    wait_for_line(fitted, "pid")
    path = path_of(fitted)
    while path.exists():  # its agent is still writing to it
        shutil.rmtree(path, ignore_errors=True)
    until = time.monotonic() + SOON_S
    while processes_of(str(path)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not processes_of(str(path))
    assert (kept / "good").read_text() == "the only copy"
    with pytest.raises(ConfigurationError, match="could not find job"):
        describe(fitted)


# --- what is refused before anything is made ------------------------------------------------------


def test_nothing_is_made_for_what_cannot_work(session: Session, source: Path) -> None:
    fitted = estimator(source, session, "pass")
    for inputs, text in (
        ("nowhere", 'must be a valid S3 or FILE URI: must start with "s3://" or "file://"'),
        ({"a b": "file:///x"}, "no name of a channel"),
    ):
        with pytest.raises(ValueError, match=text):
            fitted.fit(inputs)
    spot = estimator(source, session, "pass", use_spot_instances=True, max_run=9, max_wait=8)
    with pytest.raises(ValueError, match="max_wait is 8, and max_run 9"):
        spot.fit()
    with pytest.raises(ValueError, match="logs is 'Some'"):
        fitted.fit(logs="Some")
    with pytest.raises(ValueError, match="cannot be the name of a job"):
        fitted.fit(job_name="a_b")
    (source / "train.py").unlink()
    with pytest.raises(ValueError, match=r'No file named "train.py" was found in directory'):
        fitted.fit()
    assert not session.home.root.exists()


def test_a_name_that_is_taken(session: Session, source: Path) -> None:
    fitted = estimator(source, session, "pass")
    fitted.fit(job_name="mine", logs="None")
    with pytest.raises(ConfigurationError, match="a job of the name 'mine'"):
        fitted.fit(job_name="mine")


@pytest.mark.parametrize(
    "changed",
    [
        {"enable_network_isolation": True},
        {"container_arguments": ["a"]},
        {"distribution": {"parameter_server": {"enabled": True}}},
    ],
)
def test_what_this_version_does_not_know_is_refused(
    session: Session, source: Path, changed: dict[str, Any]
) -> None:
    fitted = estimator(source, session, "pass", **changed)
    what = next(iter(changed.get("distribution") or changed))
    with pytest.raises(UnsupportedError, match=what):
        fitted.fit()
    assert not session.home.root.exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"s3_data_type": "AugmentedManifestFile"},
        {"record_wrapping": "RecordIO"},
    ],
)
def test_kinds_of_data_that_this_version_does_not_know_are_refused(
    session: Session, source: Path, changed: dict[str, Any]
) -> None:
    fitted = estimator(source, session, "pass")
    with pytest.raises(UnsupportedError, match=f"{next(iter(changed))} of channel 'training'"):
        fitted.fit(TrainingInput("s3://b/k", **changed))
    assert not session.home.root.exists()


def test_a_file_system_that_the_settings_do_not_know(session: Session, source: Path) -> None:
    fitted = estimator(source, session, "pass")
    with pytest.raises(ConfigurationError, match=r"under \[file_systems.EFS.fs-1\], the line"):
        fitted.fit(FileSystemInput("fs-1", "EFS", "/data"))
    assert not session.home.root.exists()


def test_settings_that_are_wrong(session: Session, source: Path) -> None:
    fitted = estimator(source, session, "pass")
    session.home.make()
    session.home.config.write_text("default_backend = 'none'")
    with pytest.raises(ConfigurationError, match=r"config.toml is 'none'; expected one of 'local'"):
        fitted.fit()
    assert os.listdir(session.home.jobs) == []


def test_an_input_mode_that_there_is_not(session: Session, source: Path) -> None:
    with pytest.raises(ConfigurationError, match="input_mode is 'Fast'; expected 'File', 'Pipe'"):
        estimator(source, session, "pass", input_mode="Fast").fit()


def test_a_distribution_that_nobody_would_follow_is_refused(session: Session) -> None:
    fitted = Estimator(
        entry_point=__file__,
        instance_count=1,
        instance_type="local",
        distribution={"mpi": {"enabled": True}},
        sagemaker_session=session,
    )
    with pytest.raises(UnsupportedError, match="distribution of Estimator"):
        fitted.fit()


def test_an_estimator_without_a_script_is_refused(session: Session) -> None:
    fitted = Estimator("image", instance_count=1, instance_type="local", sagemaker_session=session)
    with pytest.raises(UnsupportedError, match="no entry_point"):
        fitted.fit()
