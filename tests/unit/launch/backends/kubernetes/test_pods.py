# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the API says of a pod, and what it means."""

from __future__ import annotations

from typing import Any

import pytest

from smdistributed.launch.backends.kubernetes.pods import Life, PodState


def pod_of(phase: str, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = [] if state is None else [{"name": "node", "state": state}]
    return {
        "metadata": {
            "name": "job-3-abcde",
            "annotations": {"batch.kubernetes.io/job-completion-index": "3"},
        },
        "status": {"phase": phase, "containerStatuses": containers, **status},
    }


def condition(kind: str, status: str = "True", **words: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": status, **words}]


def waiting(reason: str, **words: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, **words}}


def terminated(code: int, reason: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


@pytest.mark.parametrize(
    ("pod", "life", "why", "code"),
    [
        (pod_of("Pending"), Life.PENDING, "", None),
        (
            pod_of(
                "Pending",
                conditions=condition(
                    "PodScheduled", "False", reason="Unschedulable", message="0/2 nodes"
                ),
            ),
            Life.PENDING,
            "Unschedulable: 0/2 nodes",
            None,
        ),
        (
            pod_of("Pending", waiting("ContainerCreating"), conditions=condition("PodScheduled")),
            Life.PENDING,
            "ContainerCreating",
            None,
        ),
        (
            pod_of("Pending", waiting("ImagePullBackOff", message='Back-off pulling image "x"')),
            Life.STUCK,
            'ImagePullBackOff: Back-off pulling image "x"',
            None,
        ),
        (
            pod_of("Pending", waiting("InvalidImageName")),
            Life.STUCK,
            "InvalidImageName",
            None,
        ),
        (pod_of("Running", {"running": {}}), Life.RUNNING, "", None),
        (pod_of("Succeeded", terminated(0, "Completed")), Life.SUCCEEDED, "", 0),
        (
            pod_of(
                "Succeeded",
                terminated(0, "Completed"),
                conditions=condition("DisruptionTarget", reason="EvictionByEvictionAPI"),
            ),
            Life.SUCCEEDED,
            "EvictionByEvictionAPI",
            0,
        ),
        (pod_of("Failed", terminated(7, "Error")), Life.FAILED, "Error", 7),
        (pod_of("Failed", terminated(137, "OOMKilled")), Life.OUT_OF_MEMORY, "OOMKilled", 137),
        # The kernel has killed one of its processes, and the first one ended for it.
        (pod_of("Failed", terminated(1, "OOMKilled")), Life.OUT_OF_MEMORY, "OOMKilled", 137),
        (
            pod_of(
                "Failed",
                terminated(137, "Error"),
                conditions=condition("DisruptionTarget", reason="PreemptionByScheduler"),
            ),
            Life.TAKEN_AWAY,
            "PreemptionByScheduler",
            137,
        ),
        (
            pod_of(
                "Failed",
                reason="Evicted",
                message="The node was low on resource: memory.",
                conditions=condition("DisruptionTarget", reason="TerminationByKubelet"),
            ),
            Life.TAKEN_AWAY,
            "Evicted: The node was low on resource: memory.",
            None,
        ),
        (pod_of("Failed", reason="DeadlineExceeded"), Life.FAILED, "DeadlineExceeded", None),
        (pod_of("Unknown", reason="NodeLost"), Life.TAKEN_AWAY, "NodeLost", None),
    ],
)
def test_what_the_api_says_is_understood(pod, life, why, code) -> None:
    state = PodState.of(pod)
    assert (state.life, state.why, state.exit_code) == (life, why, code)
    assert (state.name, state.index, state.is_ending) == ("job-3-abcde", 3, False)
    assert state.has_ended == (pod["status"]["phase"] in ("Succeeded", "Failed", "Unknown"))


def test_a_pod_that_was_deleted_is_ending() -> None:
    pod = pod_of("Running", {"running": {}})
    pod["metadata"]["deletionTimestamp"] = "2026-11-29T00:00:00Z"
    assert PodState.of(pod).is_ending


def test_one_that_was_just_made_has_no_status() -> None:
    state = PodState.of({"metadata": {"name": "x", "labels": {}}})
    assert (state.life, state.index) == (Life.PENDING, 0)


@pytest.mark.parametrize(
    ("pod", "was_lost"),
    [
        (pod_of("Running", {"running": {}}), False),
        (pod_of("Succeeded", terminated(0, "Completed")), False),
        (pod_of("Failed", terminated(1, "Error")), False),
        (pod_of("Failed", terminated(128, "Error")), False),
        (pod_of("Failed", terminated(137, "OOMKilled")), False),
        (pod_of("Failed", terminated(137, "Error")), True),
        (pod_of("Failed", reason="OutOfcpu"), True),  # its node has refused it
        (pod_of("Failed", terminated(1, "Error"), conditions=condition("DisruptionTarget")), True),
    ],
)
def test_whether_a_pod_was_lost(pod: dict[str, Any], was_lost: bool) -> None:
    """Else it would end so again."""
    assert PodState.of(pod).was_lost is was_lost


def test_why_a_pod_is_taken_away_is_known_while_it_runs() -> None:
    why = condition("DisruptionTarget", reason="EvictionByEvictionAPI", message="drained")
    pod = PodState.of(pod_of("Running", {"running": {}}, conditions=why))
    assert (pod.life, pod.why) == (Life.RUNNING, "EvictionByEvictionAPI: drained")
