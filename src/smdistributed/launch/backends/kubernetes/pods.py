# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What became of a pod, read from what the API says of it. Nothing here talks to a cluster.

A pod of ours has one container and is never restarted, so it has one life:

    PENDING -> RUNNING -> SUCCEEDED, FAILED, OUT_OF_MEMORY or TAKEN_AWAY
       `-> STUCK

Sources: Kubernetes documentation, "Pod Lifecycle", "Disruptions" and "Images".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

__all__ = ["Life", "PodState"]

_INDEX = "batch.kubernetes.io/job-completion-index"
# While one of them is why a container waits, it will not begin until somebody changes something.
_STUCK = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
}
_KILLED = 137
_SIGNALLED = 128  # and the number of the signal


class Life(Enum):
    """Where a pod is in it."""

    PENDING = auto()
    """It waits for a node, for its image or for its volumes; it may get them."""
    STUCK = auto()
    """It waits for what somebody has to put right, such as the name of its image."""
    RUNNING = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    OUT_OF_MEMORY = auto()
    """It was ended, as it wanted more memory than it may have."""
    TAKEN_AWAY = auto()
    """The cluster ended it: evicted, preempted, or its node is gone or drained."""


@dataclasses.dataclass(frozen=True)
class PodState:
    """Of one pod.

    Attributes:
        name: of the pod.
        index: of the host that it is.
        life: where it is in it.
        why: in the cluster's words; empty if it says nothing.
        exit_code: of its container, as a shell has it; None: it has not ended, or nobody knows.
        is_ending: it was deleted, and has its time of grace.
    """

    name: str
    index: int
    life: Life
    why: str = ""
    exit_code: int | None = None
    is_ending: bool = False

    @classmethod
    def of(cls, pod: Mapping[str, Any]) -> PodState:
        """Reads a pod, as the API has sent it."""
        metadata, status = pod["metadata"], pod.get("status", {})
        notes = {**metadata.get("labels", {}), **metadata.get("annotations", {})}
        life, why, code = _life_of(status)
        return cls(
            name=metadata["name"],
            index=int(notes.get(_INDEX, 0)),
            life=life,
            why=why,
            exit_code=code,
            is_ending="deletionTimestamp" in metadata,
        )

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.life not in (Life.PENDING, Life.STUCK, Life.RUNNING)

    @property
    def was_lost(self) -> bool:
        """Whether somebody else than its own program has ended it; its memory was not too little.

        A node that refuses a pod, or goes down with it, tells no status.
        """
        is_killed = self.exit_code is None or self.exit_code > _SIGNALLED
        return self.life is Life.TAKEN_AWAY or (self.life is Life.FAILED and is_killed)


def _life_of(status: Mapping[str, Any]) -> tuple[Life, str, int | None]:
    phase = status.get("phase", "Pending")
    states = [each.get("state", {}) for each in status.get("containerStatuses", [])]
    state: Mapping[str, Any] = states[0] if states else {}
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    disruption = conditions.get("DisruptionTarget", {})
    is_disrupted = disruption.get("status") == "True"
    if phase == "Pending":
        return _waiting(state, conditions)
    if phase == "Running":
        return Life.RUNNING, _words(disruption) if is_disrupted else "", None
    if phase == "Unknown":  # of API servers of old: the node does not answer
        return Life.TAKEN_AWAY, _words(status), None
    ended = state.get("terminated", {})
    code = ended.get("exitCode")
    if phase == "Succeeded":  # also one that was drained, and has ended well in its grace
        return Life.SUCCEEDED, _words(disruption) if is_disrupted else "", code
    if is_disrupted:
        return Life.TAKEN_AWAY, _words(status) or _words(disruption), code
    if ended.get("reason") == "OOMKilled":
        return Life.OUT_OF_MEMORY, _words(ended), _KILLED
    return Life.FAILED, _words(status) or _words(ended), code


def _waiting(
    state: Mapping[str, Any], conditions: Mapping[str, Any]
) -> tuple[Life, str, int | None]:
    waiting = state.get("waiting", {})
    if waiting.get("reason") in _STUCK:
        return Life.STUCK, _words(waiting), None
    place = conditions.get("PodScheduled", {})
    if place.get("status") == "False":
        return Life.PENDING, _words(place), None
    return Life.PENDING, _words(waiting), None


def _words(said: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (said.get("reason"), said.get("message"))))
