# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests are what the API takes: checked by the models that are made from its OpenAPI schema."""

from __future__ import annotations

import base64
import dataclasses
import importlib.util
import re
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.kubernetes.manifests import (
    MOST_IN_SECRET,
    Claim,
    Kind,
    PodJob,
    host_address,
    indexed_job,
    labels_of,
    object_name,
    owned_by,
    secret,
    selector_of,
    service,
    train_job,
    training_runtime,
)

SMALL = PodJob(
    name=object_name("digits", "0123abcd"),
    job="digits",
    namespace="default",
    hosts=1,
    image="training:1",
    command=["python", "-P", "-m", "a.module"],
)
LARGE = PodJob(
    name=object_name("My-Job-2026-11-29-01-02-03-004", "0123abcd"),
    job="My-Job-2026-11-29-01-02-03-004",
    namespace="team-a",
    hosts=16,
    image="registry.example/training@sha256:0",
    command=["python", "-P", "-m", "a.module"],
    resources={"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"},
    claims=[
        Claim("fsx", PurePosixPath("/mnt/fsx")),
        Claim("kept", PurePosixPath("/mnt/kept"), is_read_only=False),
    ],
    deadline_s=90_000,
    grace_s=600,
    service_account="trainer",
    pull_secrets=["registry"],
    priority_class="low",
    node_selector={"gpu": "a100"},
    tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    labels={"kueue.x-k8s.io/queue-name": "queue"},
    annotations={"team/cost": "1"},
)
JOBS = [pytest.param(SMALL, id="small"), pytest.param(LARGE, id="large")]
MODELS = {
    ("batch/v1", "Job"): "IoK8sApiBatchV1Job",
    ("v1", "Service"): "IoK8sApiCoreV1Service",
    ("v1", "Secret"): "IoK8sApiCoreV1Secret",
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "TrainerV1alpha1TrainJob",
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): "TrainerV1alpha1TrainingRuntime",
}
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # of RFC 1035
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
JOB_NAMES = st.from_regex(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", fullmatch=True).filter(
    lambda name: len(name) <= 63
)


def require_valid(manifest: dict[str, Any]) -> None:
    """What the model does not know vanishes in it, and what it misses or mistypes is an error."""
    models = importlib.import_module("kubeflow_trainer_api.models")
    model = getattr(models, MODELS[manifest["apiVersion"], manifest["kind"]])
    assert model.from_dict(manifest).to_dict() == manifest


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("make", [indexed_job, service, training_runtime, train_job])
def test_manifests_are_valid(make, job) -> None:
    require_clusters()
    manifest = make(job)
    require_valid(manifest)
    owner = {**manifest, "metadata": {**manifest["metadata"], "uid": "1-2-3"}}
    require_valid(owned_by(secret(job, {"a": b"1"}), owner))


@pytest.mark.parametrize(
    "change",
    [
        lambda job: job["spec"].update(backofLimit=0),
        lambda job: job["spec"].update(backoffLimit="none"),
        lambda job: job["spec"]["template"]["spec"]["containers"][0].pop("name"),
    ],
)
def test_what_is_wrong_is_found(change) -> None:
    require_clusters()
    job = indexed_job(LARGE)
    change(job)
    with pytest.raises((AssertionError, ValueError)):
        require_valid(job)


def test_a_pod_of_either_kind_is_the_same_one() -> None:
    as_job = indexed_job(LARGE)["spec"]
    (node,) = training_runtime(LARGE)["spec"]["template"]["spec"]["replicatedJobs"]
    as_train_job = node["template"]["spec"]
    assert as_job["template"]["spec"].pop("subdomain") == service(LARGE)["metadata"]["name"]
    assert (as_job.pop("completions"), as_job.pop("parallelism")) == (16, 16)
    assert as_job == as_train_job
    assert train_job(LARGE)["spec"]["runtimeRef"]["name"] == LARGE.name


def test_pods_that_fail_end_the_job_and_those_taken_away_come_again() -> None:
    first, second = indexed_job(SMALL)["spec"]["podFailurePolicy"]["rules"]
    assert first["action"] == "Ignore"  # the first rule that fits holds
    assert first["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert second["action"] == "FailJob"
    spec = indexed_job(SMALL)["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 120
    assert "activeDeadlineSeconds" not in spec
    assert indexed_job(LARGE)["spec"]["activeDeadlineSeconds"] == 90_000


def test_volumes_and_their_mounts_belong_together() -> None:
    pod = indexed_job(LARGE)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert [each["name"] for each in pod["volumes"]] == [
        each["name"] for each in container["volumeMounts"]
    ]
    paths = [each["mountPath"] for each in container["volumeMounts"]]
    assert paths[-2:] == ["/mnt/fsx", "/mnt/kept"]
    assert len(set(paths)) == len(paths)
    assert container["volumeMounts"][-2]["readOnly"] is True
    assert "readOnly" not in container["volumeMounts"][-1]
    assert container["resources"]["limits"] == container["resources"]["requests"]


def test_a_service_and_a_list_find_the_pods_of_their_job_alone() -> None:
    pods = indexed_job(LARGE)["spec"]["template"]["metadata"]["labels"]
    other = labels_of(dataclasses.replace(LARGE, name=object_name(LARGE.job)))
    wanted = service(LARGE)["spec"]["selector"]
    assert wanted.items() <= pods.items()
    assert not wanted.items() <= other.items()
    key, _, value = selector_of(LARGE).partition("=")
    assert {key: value} == wanted


def test_a_label_of_the_user_does_not_take_the_place_of_ours() -> None:
    key, _, value = selector_of(SMALL).partition("=")
    assert labels_of(dataclasses.replace(SMALL, labels={key: "mine"}))[key] == value


@given(job=JOB_NAMES)
def test_names_are_labels_of_dns_even_with_what_is_added(job: str) -> None:
    name = object_name(job)
    assert LABEL.fullmatch(name)
    pods = dataclasses.replace(SMALL, name=name, job=job, hosts=9999)
    for kind in Kind:
        host, _, subdomain = host_address(pods, kind, 9998).partition(".")
        assert LABEL.fullmatch(host)
        assert len(host) <= 63
        assert subdomain == name
    assert all(len(each) <= 63 and LABEL_VALUE.fullmatch(each) for each in labels_of(pods).values())


def test_jobs_of_one_name_have_objects_of_several() -> None:
    assert object_name("job") != object_name("job")
    assert object_name("JOB", "01234567") == "smd-job-01234567"
    assert object_name("9" + "-" * 61 + "9", "01234567") == "smd-9-01234567"


def test_hosts_are_called_as_their_pods_are() -> None:
    assert host_address(SMALL, Kind.INDEXED_JOB, 3) == "smd-digits-0123abcd-3.smd-digits-0123abcd"
    assert (
        host_address(SMALL, Kind.TRAIN_JOB, 3) == "smd-digits-0123abcd-node-0-3.smd-digits-0123abcd"
    )


def test_a_secret_has_files_up_to_a_size() -> None:
    made = secret(SMALL, {"package.tar.gz": b"\x00\xff"})
    assert base64.b64decode(made["data"]["package.tar.gz"]) == b"\x00\xff"
    assert made["immutable"]
    half = bytes(MOST_IN_SECRET // 2)
    secret(SMALL, {"a": half, "b": half})
    with pytest.raises(ConfigurationError, match=r"1,000,001 bytes; expected at most 1,000,000"):
        secret(SMALL, {"a": half, "b": half, "c": b"1"})


@pytest.mark.parametrize("hosts", [0, 10_000])
def test_as_many_hosts_as_names_have_room_for(hosts: int) -> None:
    with pytest.raises(ConfigurationError, match=f"asks for {hosts} hosts"):
        dataclasses.replace(SMALL, hosts=hosts)


def require_clusters() -> None:
    """The models come with the tests of clusters."""
    if importlib.util.find_spec("kubeflow_trainer_api") is None:
        pytest.skip("kubeflow_trainer_api is not installed; make env-clusters installs it")
