# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The stand-in for Kubernetes does what the official client and backends expect of the real one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.kubernetes.manifests import (
    FILES,
    Claim,
    Kind,
    PodJob,
    host_address,
    indexed_job,
    object_name,
    owned_by,
    secret,
    selector_of,
    service,
    train_job,
    training_runtime,
)
from tests.clusters.kubernetes_api import Kubernetes, kubernetes, why_not

SPACE = "default"
GROUP = ("trainer.kubeflow.org", "v1alpha1", SPACE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with kubernetes(nodes=2, has_trainer=True, claims=["data"]) as made:
        yield made


@pytest.fixture
def apis(cluster: Kubernetes) -> Any:
    return apis_of(cluster.kubeconfig)


def apis_of(kubeconfig: Path) -> Apis:
    import kubernetes as client

    api = client.config.new_client_from_config(str(kubeconfig))
    return Apis(
        client.client.CoreV1Api(api),
        client.client.BatchV1Api(api),
        client.client.CustomObjectsApi(api),
        client.client.ApisApi(api),
        client.watch.Watch,
        client.client.ApiException,
    )


@dataclasses.dataclass
class Apis:
    core: Any
    batch: Any
    custom: Any
    groups: Any
    watch: Any
    error: Any


def asked(cluster: Kubernetes, path: str, body: Any = None) -> tuple[int, bytes]:
    """What the API answers, without the client, which checks what it is given."""
    token = json.loads(cluster.kubeconfig.read_text())["users"][0]["user"]["token"]
    request = urllib.request.Request(
        f"{cluster.url}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=scaled(30)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def job_of(script: str, hosts: int = 1, **fields: Any) -> PodJob:
    command = ["bash", "-c", script]
    return PodJob(object_name("A-Job"), "A-Job", SPACE, hosts, "image:1", command, **fields)


def submit(apis: Any, job: PodJob, files: dict[str, bytes] | None = None) -> None:
    """As a backend does: the job first, what goes with it after."""
    made = apis.batch.create_namespaced_job(SPACE, indexed_job(job))
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": made.metadata.name, "uid": made.metadata.uid},
    }
    apis.core.create_namespaced_service(SPACE, owned_by(service(job), owner))
    apis.core.create_namespaced_secret(SPACE, owned_by(secret(job, files or {}), owner))


def delete(apis: Any, job: PodJob, **how: Any) -> None:
    with contextlib.suppress(apis.error):
        apis.batch.delete_namespaced_job(
            job.name, SPACE, **{"propagation_policy": "Foreground", **how}
        )
    until(lambda: not pods_of(apis, job))


def pods_of(apis: Any, job: PodJob) -> list[Any]:
    return list(apis.core.list_namespaced_pod(SPACE, label_selector=selector_of(job)).items)


def until(holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + scaled(30)
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def running(apis: Any, job: PodJob) -> list[Any]:
    """All pods of the job, once they run."""

    def all_run() -> list[Any]:
        pods = [each for each in pods_of(apis, job) if each.status.phase == "Running"]
        return pods if len(pods) == job.hosts else []

    return sorted(until(all_run), key=lambda pod: pod.metadata.name)


def ended(apis: Any, job: PodJob) -> Any:
    """The condition with which a job has ended."""

    def last() -> Any:
        status = apis.batch.read_namespaced_job(job.name, SPACE).status
        return next(iter(status.conditions or []), None)

    return until(last)


def log_of(apis: Any, pod: Any, **options: Any) -> str:
    return str(apis.core.read_namespaced_pod_log(pod.metadata.name, SPACE, **options))


def logged(apis: Any, pod: Any, text: str) -> str:
    return str(until(lambda: text in (found := log_of(apis, pod)) and found))


WAITS = "until [ -e /mnt/data/on ]; do sleep 0.1; done"
# A pod that has ended has no name any more: each waits until the other one has found it.
FINDS = f"until getent hosts $0; do sleep 0.1; done; {WAITS}"


def go_on_once_said(cluster: Kubernetes, apis: Any, job: PodJob, text: str) -> None:
    """Pods that wait go on, once all have printed a text."""
    for pod in running(apis, job):
        logged(apis, pod, text)
    (cluster.claims / "data" / "on").touch()


@pytest.fixture(autouse=True)
def pods_wait(cluster: Kubernetes) -> None:
    (cluster.claims / "data" / "on").unlink(missing_ok=True)


def test_pods_have_their_files_names_and_variables_and_nothing_of_ours(
    cluster, apis, tmp_path
) -> None:
    (cluster.claims / "data" / "key").write_text("of the claim")
    script = f"""
        cat {FILES}/text; echo; cat /mnt/data/key; echo; touch /mnt/data/x || echo read-only
        echo $JOB_COMPLETION_INDEX $SMD_POD_IP $HOSTNAME; touch /opt/ml/x && df /dev/shm
        ls {tmp_path}; env | grep -c PYTEST; echo pid $$
        {FINDS}
    """
    job = job_of(script, 2, claims=[Claim("data", PurePosixPath("/mnt/data"))])
    other = host_address(job, Kind.INDEXED_JOB, 1)
    job = dataclasses.replace(job, command=[*job.command, other])
    submit(apis, job, {"text": b"a secret"})
    go_on_once_said(cluster, apis, job, other)
    assert ended(apis, job).type == "Complete"
    pods = sorted(pods_of(apis, job), key=lambda each: each.metadata.name)
    lines = log_of(apis, pods[0]).splitlines()
    assert lines[:2] == ["a secret", "of the claim"]
    assert "read-only" in lines
    assert f"0 {pods[0].status.pod_ip} {job.name}-0" in lines
    assert "0" in lines  # none of our variables
    assert "pid 1" in lines
    assert any(f"cannot access '{tmp_path}'" in line for line in lines)
    assert lines[-1].split()[0] == pods[1].status.pod_ip
    delete(apis, job)
    with pytest.raises(apis.error, match="NotFound"):  # it goes with its job
        until(lambda: not apis.core.read_namespaced_secret(job.name, SPACE))  # asks again


def test_a_rank_that_fails_ends_the_job_and_all_its_pods(cluster, apis) -> None:
    # The first process of a container hears no signal before it has said what to do.
    script = f"""
        [ $JOB_COMPLETION_INDEX = 0 ] && trap 'exit 0' TERM; echo ready
        {WAITS}; [ $JOB_COMPLETION_INDEX = 1 ] && exit 7; sleep 100 & wait
    """
    job = job_of(script, 2, claims=[Claim("data", PurePosixPath("/mnt/data"))])
    submit(apis, job)
    go_on_once_said(cluster, apis, job, "ready")
    condition = ended(apis, job)
    assert (condition.type, condition.reason) == ("Failed", "PodFailurePolicy")
    assert "failed with exit code 7 matching FailJob rule at index 1" in condition.message
    left = until(lambda: (found := pods_of(apis, job)) and len(found) == 1 and found)
    state = left[0].status.container_statuses[0].state.terminated
    assert (state.exit_code, state.reason) == (7, "Error")
    delete(apis, job)


def test_a_pod_that_runs_out_of_memory_says_so(cluster, apis) -> None:
    job = job_of("sleep 100")
    submit(apis, job)
    (pod,) = running(apis, job)
    cluster.nodes.run_out_of_memory(SPACE, pod.metadata.name)
    assert ended(apis, job).reason == "PodFailurePolicy"
    state = pods_of(apis, job)[0].status.container_statuses[0].state.terminated
    assert (state.exit_code, state.reason) == (137, "OOMKilled")
    delete(apis, job)


def test_a_pod_that_is_evicted_comes_again(cluster, apis) -> None:
    job = job_of("sleep 100", grace_s=0)
    submit(apis, job)
    (pod,) = running(apis, job)
    cluster.nodes.evict(SPACE, pod.metadata.name)
    until(lambda: len(pods_of(apis, job)) == 2)
    (again,) = running(apis, job)
    assert again.metadata.name != pod.metadata.name
    first = apis.core.read_namespaced_pod(pod.metadata.name, SPACE)
    assert (first.status.phase, first.status.reason) == ("Failed", "Evicted")
    types = [each.type for each in first.status.conditions]
    assert "DisruptionTarget" in types
    delete(apis, job)


def test_pods_that_are_deleted_get_sigterm_and_their_grace(cluster, apis) -> None:
    job = job_of("trap 'echo told; sleep 0.3; echo saved; exit 0' TERM; echo up; sleep 100 & wait")
    submit(apis, job)
    (pod,) = running(apis, job)
    logged(apis, pod, "up")
    lines: list[str] = []
    stream = apis.core.read_namespaced_pod_log(
        pod.metadata.name, SPACE, follow=True, _preload_content=False
    )
    reader = threading.Thread(target=lambda: lines.extend(map(bytes.decode, stream)))
    reader.start()
    delete(apis, job)
    reader.join()
    assert "".join(lines).split() == ["up", "told", "saved"]
    stubborn = job_of("trap '' TERM; echo up; while true; do sleep 0.1; done", grace_s=1)
    submit(apis, stubborn)
    (pod,) = running(apis, stubborn)
    logged(apis, pod, "up")
    process = cluster.nodes.process_of(SPACE, pod.metadata.name)
    delete(apis, stubborn)
    assert not Path(f"/proc/{process}").exists()


def test_a_job_deleted_without_a_policy_leaves_its_pods(cluster, apis) -> None:
    job = job_of("sleep 100", grace_s=0)
    submit(apis, job)
    (pod,) = running(apis, job)
    apis.batch.delete_namespaced_job(job.name, SPACE)
    time.sleep(0.3)
    assert pods_of(apis, job)[0].status.phase == "Running"
    apis.core.delete_namespaced_pod(pod.metadata.name, SPACE, grace_period_seconds=0)
    until(lambda: not pods_of(apis, job))


def test_logs_have_times_and_continue_from_one(cluster, apis) -> None:
    job = job_of("echo one; sleep 2.5; echo two; head -c 100000 /dev/zero | tr '\\0' x; echo")
    submit(apis, job)
    assert ended(apis, job).type == "Complete"
    (pod,) = pods_of(apis, job)
    one, two, long = log_of(apis, pod, timestamps=True).splitlines()
    assert one.endswith("Z one")
    assert len(long.partition(" ")[2]) == 100_000
    when = one.split()[0]
    assert time.strptime(when[:19], "%Y-%m-%dT%H:%M:%S")
    assert log_of(apis, pod, tail_lines=2).startswith("two\n")
    since = f"/api/v1/namespaces/{SPACE}/pods/{pod.metadata.name}/log?sinceTime={two.split()[0]}"
    assert asked(cluster, since)[1].startswith(b"two\n")  # from the beginning of its second
    delete(apis, job)


@pytest.mark.parametrize(
    ("fields", "reason", "said"),
    [
        ({"resources": {"nvidia.com/gpu": "1"}}, "Unschedulable", "Insufficient nvidia.com/gpu"),
        ({"claims": [Claim("none", PurePosixPath("/mnt/x"))]}, "Unschedulable", '"none" not found'),
    ],
)
def test_pods_without_a_place_say_why(apis, fields, reason, said) -> None:
    job = job_of("true", **fields)
    submit(apis, job)

    def condition() -> Any:
        pods = pods_of(apis, job)
        return pods and pods[0].status.conditions

    (found,) = until(condition)
    assert (found.type, found.status, found.reason) == ("PodScheduled", "False", reason)
    assert said in found.message
    with pytest.raises(apis.error, match="has no host"):
        log_of(apis, pods_of(apis, job)[0])
    delete(apis, job)


def test_an_image_that_cannot_be_had_is_told_of() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with kubernetes(nodes=1, images=lambda image: False) as cluster:
        apis = apis_of(cluster.kubeconfig)
        job = job_of("true")
        submit(apis, job)

        def waiting() -> Any:
            states = [each.status.container_statuses for each in pods_of(apis, job)]
            found = states and states[0] and states[0][0].state.waiting
            return found if found and found.message else None

        assert until(waiting).reason == "ImagePullBackOff"
        assert "image:1" in until(waiting).message
        with pytest.raises(apis.error, match="waiting to start: ImagePullBackOff"):
            log_of(apis, pods_of(apis, job)[0])
        groups = [each.name for each in apis.groups.get_api_versions().groups]
        assert groups == ["batch"]  # no Trainer here


def test_a_node_that_loses_its_power_is_not_told_of() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with kubernetes(nodes=1) as cluster:
        apis = apis_of(cluster.kubeconfig)
        job = job_of("sleep 100", grace_s=0)
        submit(apis, job)
        (pod,) = running(apis, job)
        process = cluster.nodes.process_of(SPACE, pod.metadata.name)
        cluster.nodes.power_off(SPACE, pod.metadata.name)
        assert not Path(f"/proc/{process}").exists()
        time.sleep(0.3)
        assert pods_of(apis, job)[0].status.phase == "Running"
        delete(apis, job)
        again = job_of("true")
        submit(apis, again)
        said = until(lambda: (found := pods_of(apis, again)) and found[0].status.conditions)
        assert said[0].reason == "Unschedulable"  # its node is gone


def test_a_long_log_loses_its_beginning() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with kubernetes(nodes=1, most_log_bytes=1000) as cluster:
        apis = apis_of(cluster.kubeconfig)
        job = job_of("for i in $(seq 1 400); do echo line $i; done; sleep 100")
        submit(apis, job)
        (pod,) = running(apis, job)
        text = logged(apis, pod, "line 400\n")
        assert "line 1\n" not in text
        assert len(text) <= 1000


def test_a_train_job_becomes_pods_with_names(cluster, apis) -> None:
    assert "trainer.kubeflow.org" in [each.name for each in apis.groups.get_api_versions().groups]
    script = f"cat /var/run/smdistributed/text; {FINDS}"
    job = job_of(script, 2, claims=[Claim("data", PurePosixPath("/mnt/data"))])
    host = host_address(job, Kind.TRAIN_JOB, 1)
    job = dataclasses.replace(job, command=[*job.command, host])
    apis.custom.create_namespaced_custom_object(*GROUP, "trainingruntimes", training_runtime(job))
    made = apis.custom.create_namespaced_custom_object(*GROUP, "trainjobs", train_job(job))
    apis.core.create_namespaced_secret(SPACE, owned_by(secret(job, {"text": b"hello "}), made))
    go_on_once_said(cluster, apis, job, host)

    def condition() -> Any:
        found = apis.custom.get_namespaced_custom_object(*GROUP, "trainjobs", job.name)
        return found.get("status", {}).get("conditions")

    assert until(condition)[0]["type"] == "Complete"
    first, second = sorted(pods_of(apis, job), key=lambda each: each.metadata.name)
    assert log_of(apis, first).split()[:2] == ["hello", second.status.pod_ip]
    apis.custom.delete_namespaced_custom_object(*GROUP, "trainjobs", job.name)
    apis.custom.delete_namespaced_custom_object(*GROUP, "trainingruntimes", job.name)
    until(lambda: not pods_of(apis, job))


def test_a_watch_tells_what_changes_and_410_from_a_time_that_is_forgotten(cluster, apis) -> None:
    listed = apis.core.list_namespaced_pod(SPACE).metadata.resource_version
    job = job_of("true")
    submit(apis, job)
    seen = []
    for event in apis.watch().stream(
        apis.core.list_namespaced_pod,
        SPACE,
        label_selector=selector_of(job),
        resource_version=listed,
        timeout_seconds=20,
    ):
        seen.append((event["type"], event["object"].status.phase))
        if seen[-1][1] == "Succeeded":
            break
    phases = [phase for _, phase in seen]
    assert seen[0] == ("ADDED", "Pending")
    assert sorted(set(phases), key=phases.index)[-2:] == ["Running", "Succeeded"]
    delete(apis, job)
    cluster.store.forget_events()
    with pytest.raises(apis.error) as caught:
        for _ in apis.watch().stream(
            apis.core.list_namespaced_pod, SPACE, resource_version=listed, timeout_seconds=5
        ):
            pass
    assert caught.value.status == 410


def test_errors_are_as_the_api_says_them(cluster, apis, tmp_path) -> None:
    job = job_of("sleep 100", grace_s=0)
    submit(apis, job)
    for code, reason, call in (
        (409, "AlreadyExists", lambda: apis.batch.create_namespaced_job(SPACE, indexed_job(job))),
        (404, "NotFound", lambda: apis.batch.read_namespaced_job("none", SPACE)),
    ):
        with pytest.raises(apis.error) as caught:
            call()
        assert caught.value.status == code
        assert json.loads(caught.value.body)["reason"] == reason
    code, body = asked(cluster, f"/apis/batch/v1/namespaces/{SPACE}/jobs", wrong(job))
    assert (code, json.loads(body)["reason"]) == (400, "BadRequest")
    assert b'unknown field \\"spec.template.spec.containers[0].imge\\"' in body
    cluster.forbidden.add(("create", "secrets"))
    with pytest.raises(apis.error, match='cannot create resource \\\\"secrets\\\\"') as caught:
        apis.core.create_namespaced_secret(SPACE, secret(job, {}))
    assert caught.value.status == 403
    cluster.forbidden.clear()
    cluster.is_broken = True
    with pytest.raises(apis.error) as caught:
        pods_of(apis, job)
    assert caught.value.status == 500
    cluster.is_broken = False
    strangers = tmp_path / "kubeconfig"
    strangers.write_text(cluster.kubeconfig.read_text().replace("a-token", "another-token"))
    stranger = apis_of(strangers)
    with pytest.raises(apis.error) as caught:
        stranger.core.list_namespaced_pod(SPACE)
    assert caught.value.status == 401
    delete(apis, job)


def wrong(job: PodJob) -> Any:
    made = indexed_job(dataclasses.replace(job, name=object_name("other")))
    made["spec"]["template"]["spec"]["containers"][0]["imge"] = "x"
    return made


def test_a_job_has_a_deadline(cluster, apis) -> None:
    job = job_of("sleep 100", deadline_s=1, grace_s=0)
    submit(apis, job)
    assert ended(apis, job).reason == "DeadlineExceeded"
    until(lambda: not pods_of(apis, job))
    delete(apis, job)
