# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`fit()` on this machine: data on their way in, artifacts on their way out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.agent.mounts import Step, available_step
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.sagemaker.estimator import Estimator
from smdistributed.sagemaker.exceptions import UnexpectedStatusException
from smdistributed.sagemaker.inputs import FileSystemInput, TrainingInput
from smdistributed.sagemaker.session import Session
from tests.small_disks import mounted_disk


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(home=Home(tmp_path / "home"))
    session.home.make()
    yield session
    until = time.monotonic() + 10.0
    while processes_of(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert not processes_of(tmp_path), "processes are left behind"


def processes_of(folder: Path) -> list[str]:
    """Commands that have it in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in command:
            found.append(command.decode(errors="replace"))
    return found


def fill(session: Session, bucket: dict[str, str]) -> None:
    for key, content in bucket.items():
        path = session.home.buckets / "b" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def estimator(
    tmp_path: Path, session: Session, script: str, hosts: int = 1, **changed: Any
) -> Estimator:
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    return Estimator(
        entry_point=str(tmp_path / "train.py"),
        instance_count=hosts,
        instance_type="local",
        sagemaker_session=session,
        **changed,
    )


def job_of(fitted: Estimator) -> Path:
    assert fitted.latest_training_job is not None
    return fitted.sagemaker_session.job(fitted.latest_training_job.name).path


def log_of(fitted: Estimator, host: str = "algo-1") -> str:
    return (job_of(fitted) / "hosts" / host / "log").read_text()


LISTS = """
    import json, os
    for name in json.loads(os.environ["SM_CHANNELS"]):
        folder = os.environ["SM_CHANNEL_" + name.upper()]
        found = {
            os.path.relpath(os.path.join(root, each), folder): open(os.path.join(root, each)).read()
            for root, _, names in os.walk(folder, followlinks=True) for each in names
        }
        print(f"{name}:", json.dumps(found, sort_keys=True))
"""


def test_prefixes_manifests_and_shares_of_two_hosts(session: Session, tmp_path: Path) -> None:
    fill(session, {"a/x": "1", "a/y": "2", "a-1/x": "3"})
    fill(session, {"m": json.dumps([{"prefix": "s3://b/a"}, "/y", "-1/x"])})
    fitted = estimator(tmp_path, session, LISTS, hosts=2)
    fitted.fit(
        {
            "text": "s3://b/a",
            "share": TrainingInput("s3://b/a", distribution="ShardedByS3Key"),
            "listed": TrainingInput("s3://b/m", s3_data_type="ManifestFile"),
            "fast": TrainingInput("s3://b/a/", input_mode="FastFile"),
        },
        logs=False,
    )
    everything = '{"-1/x": "3", "x": "1", "y": "2"}'
    for host, share in (("algo-1", '{"-1/x": "3", "y": "2"}'), ("algo-2", '{"x": "1"}')):
        log = log_of(fitted, host)
        assert f"text: {everything}\n" in log
        assert f"share: {share}\n" in log
        assert 'listed: {"-1/x": "3", "y": "2"}\n' in log
        assert 'fast: {"x": "1", "y": "2"}\n' in log
        assert "channel 'fast' is in mode FastFile, which is File here" in log


def test_a_script_cannot_change_the_data_where_there_is_a_namespace(
    session: Session, tmp_path: Path
) -> None:
    step, why = available_step(tmp_path)
    if step is Step.NONE:
        pytest.skip(f"nothing can be mounted here: {why}")
    data = tmp_path / "data"
    for folder in ("own", "shared"):
        (data / folder).mkdir(parents=True)
        (data / folder / "x").write_text("before")
    fill(session, {"a/x": "before", "a-1/x": "before"})
    session.home.config.write_text(f'[file_systems.EFS.fs-0123456789]\n"/" = "{data}"\n')
    script = """
        import os, shutil
        for name in ("OWN", "TREE", "FILES", "SHARED"):
            path = os.environ["SM_CHANNEL_" + name] + "/x"
            try:
                open(path, "w").write("after")
            except OSError as error:
                print(name, error.strerror)
        os.symlink(os.environ["SM_CHANNEL_OWN"] + "/x", os.environ["SM_MODEL_DIR"] + "/m")
    """
    fitted = estimator(tmp_path, session, script, output_path=f"file://{tmp_path}/out")
    fitted.fit(
        {
            "own": f"file://{data}/own",
            "tree": "s3://b/a",
            "files": FileSystemInput("fs-0123456789", "EFS", "/own"),
            "shared": FileSystemInput(
                "fs-0123456789", "EFS", "/shared", file_system_access_mode="rw"
            ),
        },
        logs=False,
    )
    log = log_of(fitted)
    if "is not read-only here" in log:
        pytest.skip("this system cannot make mounts read-only")
    assert [line.split(" ", 1)[1] for line in log.splitlines()] == [
        f"{name} Read-only file system" for name in ("OWN", "TREE", "FILES")
    ]
    assert (data / "own" / "x").read_text() == "before"
    assert (data / "shared" / "x").read_text() == "after"
    assert fitted.model_data is not None, "a link of the model into the data leads there"


READS_EPOCHS = """
    import json, os, time
    config = json.load(open(os.environ["SM_INPUT_CONFIG_DIR"] + "/inputdataconfig.json"))
    print("mode", config["train"]["TrainingInputMode"])
    base = os.environ["SM_CHANNEL_TRAIN"]
    for epoch in range(2):
        print(f"epoch {epoch}:", open(f"{base}_{epoch}").read())
        while not os.path.exists(f"{base}_{epoch + 1}"):
            time.sleep(0.01)
    print("files", open(os.environ["SM_CHANNEL_FILES"] + "/x").read())
"""


def test_pipe_mode_of_two_hosts_that_share(session: Session, tmp_path: Path) -> None:
    fill(session, {"a/x": "1", "a/y": "2", "a/z": "3", "c/x": "4"})
    fitted = estimator(tmp_path, session, READS_EPOCHS, hosts=2, input_mode="Pipe")
    fitted.fit(
        {
            "train": TrainingInput("s3://b/a", distribution="ShardedByS3Key"),
            "never": "s3://b/a",
            "files": TrainingInput("s3://b/c", input_mode="File"),
        },
        logs=False,
    )
    for host, share in (("algo-1", "13"), ("algo-2", "2")):
        lines = [line.split(" ", 1)[1] for line in log_of(fitted, host).splitlines()]
        assert lines == ["mode Pipe", f"epoch 0: {share}", f"epoch 1: {share}", "files 4"]
        data = job_of(fitted) / "hosts" / host / "ml" / "input" / "data"
        assert sorted(os.listdir(data)) == ["files", "never", "train"], "no FIFO is left"


def test_a_pipe_that_breaks_fails_the_job_and_names_the_object(
    session: Session, tmp_path: Path
) -> None:
    fill(session, {"a/x.gz": "no gzip"})
    script = """
        import os
        print("read", open(os.environ["SM_CHANNEL_TRAIN"] + "_0").read())
    """
    fitted = estimator(tmp_path, session, script)
    broken = TrainingInput("s3://b/a", input_mode="Pipe", compression="Gzip")
    with pytest.raises(
        UnexpectedStatusException, match=r"ClientError: .*a/x.gz of channel 'train'"
    ):
        fitted.fit({"train": broken}, logs=False)
    assert "read" not in log_of(fitted), "what came is not all, and no script takes it for that"


# --- what comes out -------------------------------------------------------------------------------


def test_a_model_that_is_not_compressed(session: Session, tmp_path: Path) -> None:
    script = """
        import os
        model, host = os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]
        os.makedirs(model + "/deep/empty")
        for name in ("deep/both", host):
            with open(f"{model}/{name}", "w") as file:
                file.write(host)
        open(os.environ["SM_OUTPUT_DATA_DIR"] + "/report", "w").close()
    """
    fitted = estimator(tmp_path, session, script, hosts=2, disable_output_compression=True)
    fitted.fit(logs=False)
    described = session.describe_training_job(job_of(fitted).name)
    assert described["OutputDataConfig"]["CompressionType"] == "NONE"
    uri = f"s3://{session.default_bucket()}/{job_of(fitted).name}/output/model/"
    assert described["ModelArtifacts"] == {"S3ModelArtifacts": uri}
    expected = {"S3DataSource": {"S3Uri": uri, "S3DataType": "S3Prefix", "CompressionType": "None"}}
    attached = Estimator.attach(job_of(fitted).name, session)
    assert fitted.model_data == attached.model_data == expected
    assert attached.disable_output_compression
    folder = session.home.buckets / session.default_bucket() / job_of(fitted).name / "output"
    assert sorted(os.listdir(folder)) == ["model", "output.tar.gz"], "no part of one is left"
    assert (folder / "model" / "deep" / "both").read_text() == "algo-1"
    assert sorted(os.listdir(folder / "model")) == ["algo-1", "algo-2", "deep"]
    assert (folder / "model" / "deep" / "empty").is_dir()


def test_intermediate_output_is_kept_while_the_job_runs(session: Session, tmp_path: Path) -> None:
    script = """
        import os, sys, time
        assert "--sagemaker_s3_output" not in sys.argv
        folder = os.environ["SM_OUTPUT_INTERMEDIATE_DIR"]
        os.mkdir(folder + "/deep")
        with open(folder + "/deep/first", "w") as file:
            file.write("1")
        until = time.monotonic() + 30
        while not os.path.exists(STORE + "/deep/first") and time.monotonic() < until:
            time.sleep(0.05)
        assert os.path.exists(STORE + "/deep/first"), "it is copied while the job runs"
        os.unlink(folder + "/deep/first")
        time.sleep(2.5)  # two looks without it
        open(folder + "/last", "w").close()
        sys.exit(3)
    """
    store = session.home.buckets / "b" / "p" / "mine" / "output" / "intermediate"
    fitted = estimator(
        tmp_path,
        session,
        script.replace("STORE", repr(str(store))),
        hyperparameters={"sagemaker_s3_output": "s3://b/p"},
    )
    with pytest.raises(UnexpectedStatusException, match="ExitCode 3"):
        fitted.fit(job_name="mine", logs=False)
    assert sorted(os.listdir(store)) == ["deep", "last"]
    assert (store / "deep" / "first").read_text() == "1", "nothing is deleted there"
    for wrong in ("nowhere", "s3://b/../x"):
        fitted.set_hyperparameters(sagemaker_s3_output=wrong)
        with pytest.raises(ConfigurationError, match="expected"):
            fitted.fit(job_name="other")
    assert not (session.home.jobs / "other").exists()


# --- where a script comes from --------------------------------------------------------------------


def test_a_script_in_a_git_repository(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    repo, temporary = tmp_path / "repo", tmp_path / "temporary"
    (repo / "src").mkdir(parents=True)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (repo / "src" / "train.py").write_text("import beside; print('from the repository')")
    (repo / "src" / "beside.py").write_text("")
    for words in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "--quiet", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(repo), *words], check=True)
    fitted = Estimator(
        entry_point="train.py",
        source_dir="src",
        git_config={"repo": f"file://{repo}", "token": "very-secret"},
        instance_count=1,
        instance_type="local",
        sagemaker_session=session,
    )
    fitted.fit(logs=False)
    assert "from the repository" in log_of(fitted)
    assert os.listdir(temporary) == []
    found = subprocess.run(["grep", "-r", "very-secret", str(session.home.root)])
    assert found.returncode == 1, "no file of the job has the secret"


def test_a_fit_that_is_refused_while_packing_leaves_nothing(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = estimator(tmp_path, session, "pass", dependencies=[str(tmp_path / "nothing")])
    with pytest.raises(ValueError, match=r"the dependency .* is not there"):
        fitted.fit()
    assert os.listdir(session.home.buckets) == []
    fitted = estimator(tmp_path, session, "pass")

    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(JobDirectory, "write", fails)
    with pytest.raises(ConfigurationError, match="the disk is full"):
        fitted.fit()
    assert os.listdir(session.home.buckets) == []
    assert [each for each in os.listdir(session.home.jobs) if not each.startswith(".")] == []


@pytest.mark.parametrize(
    "prints", ["print('x' * 5_000_000)", "for _ in range(90000): print('x' * 50)"]
)
def test_a_disk_that_the_log_fills_up_is_said_whatever_the_lines_are(
    tmp_path: Path, prints: str
) -> None:
    with mounted_disk(tmp_path / "disk", "size=3m") as disk:
        fitted = estimator(tmp_path, Session(home=Home(disk / "home")), prints)
        with pytest.raises(UnexpectedStatusException, match="the log of algo-1 could not be writt"):
            fitted.fit(logs=False)
