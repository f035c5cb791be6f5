# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What estimators take, refuse and make of it (launch specification, sections 2 and 4)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError, UnsupportedError
from smdistributed.launch.home import Home
from smdistributed.sagemaker.estimator import Estimator
from smdistributed.sagemaker.huggingface import HuggingFace
from smdistributed.sagemaker.instance_group import InstanceGroup
from smdistributed.sagemaker.pytorch import PyTorch
from smdistributed.sagemaker.session import Session, get_execution_role
from smdistributed.sagemaker.tensorflow import TensorFlow

SIZE = {"instance_count": 1, "instance_type": "ml.p4d.24xlarge"}
VERSIONS = {"framework_version": "2.0", "py_version": "py310"}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(home=Home(tmp_path / "home"))


def request_of(estimator: Any) -> dict[str, Any]:
    request: dict[str, Any] = estimator._request("job-1", [])
    return request


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            VERSIONS,
            "instance_count and instance_type must be set if instance_groups is not set",
        ),
        (
            {**VERSIONS, **SIZE, "instance_groups": [InstanceGroup("a", "local", 1)]},
            "instance_count and instance_type cannot be set when instance_groups is set",
        ),
        (
            SIZE,
            (
                "framework_version or py_version was None, yet image_uri was also None. Either"
                " specify both framework_version and py_version, or specify image_uri."
            ),
        ),
        ({**VERSIONS, **SIZE, "instance_count": 0}, "instance_count is 0"),
        ({**VERSIONS, **SIZE, "instance_count": -1}, "instance_count is -1"),
        ({**VERSIONS, **SIZE, "instance_count": "2"}, "instance_count is '2'"),
        ({**VERSIONS, **SIZE, "instance_count": True}, "instance_count is True"),
        ({**VERSIONS, **SIZE, "max_run": 0}, "max_run is 0"),
        ({**VERSIONS, **SIZE, "instance_type": 5}, "instance_type is 5"),
        (
            {**VERSIONS, **SIZE, "metric_definitions": [{"Name": "a", "Regex": "("}]},
            "no regular expression",
        ),
        (
            {**VERSIONS, **SIZE, "distribution": {"smdistributed": "dataparallel"}},
            "smdistributed strategy requires a dictionary",
        ),
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 -- the text is looked at below
        PyTorch("train.py", **arguments)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"environment": ["A=1"]},
        {"environment": {1: "x"}},
        {"environment": {"A": "\ud800"}},
        {"environment": {"A": "x" * 200_000}},
        {"environment": {"A=B": "x"}},
        {"hyperparameters": ["a"]},
        {"metric_definitions": {"a": "b"}},
        {"dependencies": "helper"},
        {"output_path": Path("/tmp")},
        {"checkpoint_s3_uri": Path("/tmp")},
        {"sagemaker_session": "x"},
    ],
)
def test_arguments_of_another_type_are_named(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(changed))} (is|has) .*; expected"):
        PyTorch("train.py", **{**VERSIONS, **SIZE, **changed})


def test_paths_are_paths(session: Session, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    estimator = PyTorch(
        Path("train.py"), source_dir=tmp_path, sagemaker_session=session, **VERSIONS, **SIZE
    )  # type: ignore[arg-type]
    assert request_of(estimator)["HyperParameters"]["sagemaker_program"] == '"train.py"'


@pytest.mark.parametrize(
    "path", ["/opt/ml", "/opt/ml/code", "/opt/ml/model/x", "/opt/ml/input", "/tmp/x", "relative"]
)
def test_checkpoints_have_a_folder_of_their_own(session: Session, path: str) -> None:
    estimator = Estimator(
        entry_point=__file__,
        checkpoint_s3_uri="s3://kept/a",
        checkpoint_local_path=path,
        sagemaker_session=session,
        **SIZE,
    )
    with pytest.raises(UnsupportedError, match="checkpoint_local_path is"):
        estimator.fit()


@pytest.mark.parametrize("uri", ["s3://b/sourcedir.tar.gz", "file:///nowhere/sourcedir.tar.gz"])
def test_packed_sources_that_are_not_there_are_refused(session: Session, uri: str) -> None:
    estimator = Estimator(entry_point="train.py", source_dir=uri, sagemaker_session=session, **SIZE)
    with pytest.raises(ConfigurationError, match=f"source_dir is '{uri}', and .* is not there"):
        estimator.fit()


@pytest.mark.parametrize("argument", ["output_path", "checkpoint_s3_uri"])
def test_a_place_in_which_nothing_can_be_made_is_refused_before_the_training(
    session: Session, tmp_path: Path, argument: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    for place in ("file", "file/below/it", "link"):
        uri = f"file://{tmp_path}/{place}"
        estimator = Estimator(
            entry_point=__file__, sagemaker_session=session, **{**SIZE, argument: uri}
        )
        with pytest.raises(ConfigurationError, match=f"{argument} is .* is no directory that this"):
            estimator.fit()


@pytest.mark.parametrize("uri", ["file:///opt/ml/checkpoints", "file:///opt/../opt/ml", "LINK/x"])
@pytest.mark.parametrize("argument", ["checkpoint_s3_uri", "sagemaker_s3_output"])
def test_nothing_is_kept_where_each_host_has_its_own_folder(
    session: Session, tmp_path: Path, argument: str, uri: str
) -> None:
    (tmp_path / "link").symlink_to("/opt/ml")
    uri = uri.replace("LINK", f"file://{tmp_path}/link")
    estimator = Estimator(entry_point=__file__, sagemaker_session=session, **SIZE)
    if argument == "checkpoint_s3_uri":
        estimator.checkpoint_s3_uri = uri
    else:
        estimator.set_hyperparameters(sagemaker_s3_output=uri)
    with pytest.raises(ConfigurationError, match=f"{argument} is .*; expected a place that is not"):
        estimator.fit()


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("train_instance_count", "instance_count", 2),
        ("train_instance_type", "instance_type", "local"),
        ("train_max_run", "max_run", 5),
        ("train_max_wait", "max_wait", 5),
        ("train_use_spot_instances", "use_spot_instances", True),
        ("train_volume_size", "volume_size", 5),
        ("train_volume_kms_key", "volume_kms_key", "key"),
        ("image_name", "image_uri", "repo/image:1"),
    ],
)
def test_old_names_work_with_a_warning(
    old: str, new: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = {**VERSIONS, **SIZE, old: value}
    arguments.pop(new, None)
    logging.getLogger("smdistributed").addHandler(caplog.handler)
    try:
        estimator = PyTorch("train.py", **arguments)
    finally:
        logging.getLogger("smdistributed").removeHandler(caplog.handler)
    assert getattr(estimator, new) == value
    assert f"{old} has been renamed: call it {new}." in caplog.text


def test_an_argument_by_both_names_is_refused_if_its_values_differ() -> None:
    with pytest.raises(ValueError, match=r"instance_count is given twice: 1 and, by its old name"):
        PyTorch("train.py", **VERSIONS, **SIZE, train_instance_count=2)
    same = PyTorch("train.py", **VERSIONS, **SIZE, train_instance_count=1, train_max_run=7)
    assert (same.instance_count, same.max_run) == (1, 7)


def test_unknown_arguments_are_warned_of_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("smdistributed").addHandler(caplog.handler)
    try:
        PyTorch("train.py", **VERSIONS, **SIZE, metric_definition=[], zebra=1)
    finally:
        logging.getLogger("smdistributed").removeHandler(caplog.handler)
    assert "metric_definition=[]; did you mean metric_definitions?" in caplog.text
    assert "zebra=1." in caplog.text
    with pytest.raises(TypeError, match="nobody knows, zebra=1"):
        PyTorch("train.py", **VERSIONS, **SIZE, zebra=1, strict=True)


# What 33 published notebooks pass to estimators, by how many of 25 calls do: nearly all of them.
NOTEBOOKS: dict[str, Any] = {
    "source_dir": ".",
    "role": "arn:aws:iam::000000000000:role/mine",
    "instance_count": 2,
    "instance_type": "ml.p4d.24xlarge",
    "distribution": {"smdistributed": {"dataparallel": {"enabled": True}}},
    "entry_point": "train.py",
    "framework_version": "2.0",
    "py_version": "py310",
    "hyperparameters": {"epochs": 3, "batch-size": 8},
    "debugger_hook_config": False,
    "base_job_name": "mine",
    "subnets": ["subnet-1"],
    "security_group_ids": ["sg-1"],
    "image_uri": "account/pytorch-training:2.0",
    "output_path": "s3://results/here",
    "metric_definitions": [{"Name": "loss", "Regex": "loss: (.*)"}],
    "checkpoint_s3_uri": "s3://kept/a",
    "checkpoint_local_path": "/opt/ml/checkpoints",
    "max_run": 3600,
    "volume_size": 200,
    "disable_profiler": True,
    "disable_output_compression": True,
    "keep_alive_period_in_seconds": 1800,
}


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged, but for another version of the framework than the installed one."""
    monkeypatch.setattr(PyTorch, "_tell_of_version", lambda self: None)
    logging.getLogger("smdistributed").addHandler(caplog.handler)
    yield caplog
    logging.getLogger("smdistributed").removeHandler(caplog.handler)


def test_what_notebooks_pass_is_taken_without_a_word(
    session: Session, said: pytest.LogCaptureFixture
) -> None:
    estimator = PyTorch(**NOTEBOOKS, sagemaker_session=session, strict=True)
    assert said.text == ""
    for name, value in NOTEBOOKS.items():
        if name != "hyperparameters":
            assert getattr(estimator, name) == value, name
    assert NOTEBOOKS["hyperparameters"].items() <= estimator.hyperparameters().items()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("job_name", "base_job_name"),  # two notebooks pass it
        ("env", "environment"),
        ("framework_versions", "framework_version"),  # of the class itself
        ("entrypoint", "entry_point"),
        ("instance_counts", "instance_count"),
    ],
)
def test_the_nearest_known_name_is_said(
    said: pytest.LogCaptureFixture, name: str, near: str
) -> None:
    PyTorch(**NOTEBOOKS, **{name: "x"})
    assert f"nobody knows, {name}='x'; did you mean {near}? It has no effect." in said.text


def test_the_request_is_the_documented_one(session: Session, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    given = {"epochs": 3, "name": "x"}
    estimator = PyTorch(
        "train.py",
        source_dir=str(tmp_path),
        hyperparameters=given,
        role=get_execution_role(),
        output_path="s3://results/here",
        volume_size=50,
        max_run=60,
        max_wait=120,
        environment={"A": "1"},
        metric_definitions=[{"Name": "loss", "Regex": "loss: (.*)"}],
        checkpoint_s3_uri="s3://kept/a",
        checkpoint_local_path="/opt/ml/ck",
        distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
        sagemaker_session=session,
        **VERSIONS,
        **SIZE,
    )
    request = request_of(estimator)
    assert given == {"epochs": 3, "name": "x"}, "the caller's dict stays as it is"
    assert request["TrainingJobName"] == "job-1"
    assert request["OutputDataConfig"] == {"S3OutputPath": "s3://results/here"}
    assert request["ResourceConfig"] == {
        "VolumeSizeInGB": 50,
        "InstanceType": "ml.p4d.24xlarge",
        "InstanceCount": 1,
    }
    assert request["StoppingCondition"] == {
        "MaxRuntimeInSeconds": 60,
        "MaxWaitTimeInSeconds": 120,
    }
    assert request["Environment"] == {"A": "1"}
    assert request["CheckpointConfig"] == {"S3Uri": "s3://kept/a", "LocalPath": "/opt/ml/ck"}
    assert request["RoleArn"].startswith("arn:aws:iam::")
    hyperparameters = request["HyperParameters"]
    uri = f"s3://{session.default_bucket()}/job-1/source/sourcedir.tar.gz"
    assert hyperparameters["epochs"] == "3"
    assert hyperparameters["name"] == '"x"'
    assert hyperparameters["sagemaker_program"] == '"train.py"'
    assert hyperparameters["sagemaker_submit_directory"] == f'"{uri}"'
    assert hyperparameters["sagemaker_distributed_dataparallel_enabled"] == "true"
    assert hyperparameters["sagemaker_instance_type"] == '"ml.p4d.24xlarge"'
    assert all(isinstance(value, str) for value in hyperparameters.values())
    assert (session.home.buckets / uri.removeprefix("s3://")).is_file()


class _Hook:
    """As the SDK's DebuggerHookConfig says it."""

    def _to_request_dict(self) -> dict[str, Any]:
        return {"S3OutputPath": "s3://debug/here"}


# Section 2.1: what is stored, and shown by describe().
KEPT = [
    ({"role": "Me"}, {"RoleArn": "arn:aws:iam::000000000000:role/Me"}),
    (
        {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]},
        {"VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}},
    ),
    ({"tags": [{"Key": "a", "Value": "b"}]}, {"Tags": [{"Key": "a", "Value": "b"}]}),
    ({"tags": {"a": "b"}}, {"Tags": [{"Key": "a", "Value": "b"}]}),
    ({"debugger_hook_config": _Hook()}, {"DebugHookConfig": {"S3OutputPath": "s3://debug/here"}}),
    ({"disable_profiler": True}, {"ProfilerConfig": {"DisableProfiler": True}}),
    (
        {"tensorboard_output_config": {"S3OutputPath": "s3://b/c"}},
        {"TensorBoardOutputConfig": {"S3OutputPath": "s3://b/c"}},
    ),
    ({"max_retry_attempts": 2}, {"RetryStrategy": {"MaximumRetryAttempts": 2}}),
    ({"enable_infra_check": True}, {"InfraCheckConfig": {"EnableInfraCheck": True}}),
    ({"enable_remote_debug": True}, {"RemoteDebugConfig": {"EnableRemoteDebug": True}}),
    (
        {"enable_session_tag_chaining": True},
        {"SessionChainingConfig": {"EnableSessionTagChaining": True}},
    ),
]

PLAN = "arn:aws:sagemaker:us-east-1:000000000000:training-plan/mine"


@pytest.mark.parametrize(("arguments", "expected"), KEPT)
def test_what_only_the_service_obeys_is_kept(
    session: Session, arguments: dict[str, Any], expected: dict[str, Any]
) -> None:
    estimator = Estimator("image", sagemaker_session=session, **SIZE, **arguments)
    request = request_of(estimator)
    assert {key: request.get(key) for key in expected} == expected
    before = request_of(Estimator("image", sagemaker_session=session, **SIZE))
    assert set(request) == set(before) | set(expected), "and nothing else"


def test_what_only_the_service_obeys_is_kept_beside_what_is_obeyed(session: Session) -> None:
    request = request_of(
        Estimator(
            "image",
            volume_kms_key="v",
            output_kms_key="o",
            keep_alive_period_in_seconds=60,
            training_plan=PLAN,
            instance_placement_config={"EnableMultipleJobs": True},
            training_repository_access_mode="Vpc",
            training_repository_credentials_provider_arn="arn:aws:lambda",
            sagemaker_session=session,
            **SIZE,
        )
    )
    resources = request["ResourceConfig"]
    assert resources["VolumeKmsKeyId"] == "v"
    assert resources["KeepAlivePeriodInSeconds"] == 60
    assert resources["TrainingPlanArn"] == PLAN
    assert resources["InstancePlacementConfig"] == {"EnableMultipleJobs": True}
    assert request["OutputDataConfig"]["KmsKeyId"] == "o"
    assert request["AlgorithmSpecification"]["TrainingImageConfig"] == {
        "TrainingRepositoryAccessMode": "Vpc",
        "TrainingRepositoryAuthConfig": {
            "TrainingRepositoryCredentialsProviderArn": "arn:aws:lambda"
        },
    }


@pytest.mark.parametrize("config", [False, None, {}])
def test_a_debugger_that_is_off_is_not_in_the_request(session: Session, config: Any) -> None:
    estimator = Estimator("image", debugger_hook_config=config, sagemaker_session=session, **SIZE)
    assert "DebugHookConfig" not in request_of(estimator)
    assert estimator.debugger_hook_config is config


def test_an_experiment_is_kept(session: Session) -> None:
    given = {"ExperimentName": "a", "TrialName": "b"}
    request = Estimator("image", sagemaker_session=session, **SIZE)._request("job-1", [], given)
    assert request["ExperimentConfig"] == given


def test_the_network_may_be_overridden() -> None:
    estimator = Estimator("image", subnets=["a"], security_group_ids=["b"], **SIZE)
    assert estimator.get_vpc_config() == {"Subnets": ["a"], "SecurityGroupIds": ["b"]}
    assert estimator.get_vpc_config(None) is None
    assert estimator.get_vpc_config({"Subnets": ["c"]}) == {"Subnets": ["c"]}


def test_recipes_are_refused_by_fit(session: Session) -> None:
    estimator = PyTorch(training_recipe="x.yaml", sagemaker_session=session, **VERSIONS, **SIZE)
    with pytest.raises(UnsupportedError, match=r"training_recipe is 'x\.yaml'"):
        estimator.fit()
    with pytest.raises(ValueError, match="has got no entry_point"):
        PyTorch(**VERSIONS, **SIZE)


def test_the_generic_estimator_sends_text_unless_it_has_sources(session: Session) -> None:
    plain = Estimator(
        "repo/image:1", hyperparameters={"a": True}, sagemaker_session=session, **SIZE
    )
    assert request_of(plain)["HyperParameters"] == {"a": "True"}
    assert plain._base_name() == "image"


def test_instance_groups_are_in_the_request(session: Session) -> None:
    groups = [InstanceGroup("a", "ml.c5.large", 1), InstanceGroup("b", "ml.p4d.24xlarge", 2)]
    estimator = Estimator("image", instance_groups=groups, sagemaker_session=session)
    assert request_of(estimator)["ResourceConfig"]["InstanceGroups"][1] == {
        "InstanceGroupName": "b",
        "InstanceType": "ml.p4d.24xlarge",
        "InstanceCount": 2,
    }


def test_model_parallelism_is_in_the_hyperparameters() -> None:
    estimator = PyTorch(
        "train.py",
        distribution={
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}},
            "mpi": {"enabled": True, "processes_per_host": 2},
        },
        **VERSIONS,
        **SIZE,
    )
    found = estimator.hyperparameters()
    assert found["mp_parameters"] == {"partitions": 2}
    assert found["sagemaker_mpi_enabled"] is True
    assert found["sagemaker_mpi_num_of_processes_per_host"] == 2


@pytest.mark.parametrize(
    ("model_dir", "expected"),
    [(None, "/opt/ml/model"), ("s3://b/m", "s3://b/m"), (False, None)],
)
def test_tensorflow_tells_the_script_where_its_model_goes(model_dir: Any, expected: Any) -> None:
    estimator = TensorFlow(
        entry_point="train.py",
        model_dir=model_dir,
        framework_version="2.11",
        py_version="py39",
        **SIZE,
    )
    assert estimator.hyperparameters().get("model_dir") == expected


def test_hugging_face_takes_one_framework() -> None:
    estimator = HuggingFace("py310", "train.py", "4.28", pytorch_version="2.0", **SIZE)
    assert estimator.framework_version == "2.0"
    assert estimator._base_name() == "huggingface-pytorch-training"
    with pytest.raises(ValueError, match="expected one of them"):
        HuggingFace("py310", "train.py", "4.28", "2.11", "2.0", **SIZE)


def test_hyperparameters_are_copies() -> None:
    estimator = PyTorch("train.py", hyperparameters={"a": 1}, **VERSIONS, **SIZE)
    estimator.hyperparameters()["a"] = 2
    estimator.set_hyperparameters(b=3)
    assert estimator.hyperparameters() == {"a": 1, "b": 3}


def test_a_model_to_begin_with_is_a_channel() -> None:
    estimator = Estimator("image", model_uri="s3://b/model.tar.gz", **SIZE)
    channel = estimator._model_channel([])
    assert channel["ChannelName"] == "model"
    assert channel["ContentType"] == "application/x-sagemaker-model"
    with pytest.raises(ValueError, match=r"Duplicate channel model not allowed."):
        estimator._model_channel([{"ChannelName": "model"}])


def test_what_needs_a_job_says_so() -> None:
    estimator = Estimator("image", **SIZE)
    for ask in (
        estimator.logs,
        lambda: estimator.model_data,
        lambda: estimator.training_job_analytics,
    ):
        with pytest.raises(ValueError, match="Estimator is not associated with a training job"):
            ask()


@pytest.mark.parametrize("name", ["transformer", "register"])
def test_what_is_not_there_says_so(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        getattr(Estimator("image", **SIZE), name)()


@pytest.mark.parametrize("name", ["deploy", "create_model"])
def test_a_container_is_not_served(name: str) -> None:
    with pytest.raises(UnsupportedError, match="Estimator has no model that this machine serves"):
        getattr(Estimator("image", **SIZE), name)()


def test_a_hyperparameter_that_cannot_be_sent_is_named(session: Session) -> None:
    estimator = Estimator(
        "image", source_dir=".", hyperparameters={"a": object()}, sagemaker_session=session, **SIZE
    )
    with pytest.raises(ConfigurationError, match="hyperparameter 'a'"):
        request_of(estimator)


def test_session_without_an_account(session: Session, tmp_path: Path) -> None:
    assert session.default_bucket() == "sagemaker-us-east-1-000000000000"
    assert Session(default_bucket="mine").default_bucket() == "mine"
    assert get_execution_role().split(":")[4] == "000000000000"
    folder = tmp_path / "data" / "deep"
    folder.mkdir(parents=True)
    (folder / "a").write_text("x")
    uri = session.upload_data(str(tmp_path / "data"), bucket="b", key_prefix="p")
    assert uri == "s3://b/p"
    assert (session.home.buckets / "b/p/deep/a").read_text() == "x"
    with pytest.raises(ValueError, match="which is not there"):
        session.upload_data(str(tmp_path / "nothing"))
    with pytest.raises(ConfigurationError, match="leads out of its bucket"):
        session.upload_data(str(folder / "a"), bucket="b", key_prefix="../../x")
