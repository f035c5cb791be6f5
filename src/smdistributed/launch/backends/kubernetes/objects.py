# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The objects of a job in Kubernetes, made and taken away together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from smdistributed.launch.backends.kubernetes.api import ASK_S, Api
from smdistributed.launch.backends.kubernetes.manifests import (
    TRAINER_GROUP,
    TRAINER_VERSION,
    Kind,
    PodJob,
    indexed_job,
    owned_by,
    secret,
    selector_of_name,
    service,
    train_job,
    training_runtime,
)
from smdistributed.launch.backends.kubernetes.pods import PodState

__all__ = ["Objects"]

_SEND_S = 60.0


class Objects:
    """Of one name.

    Args:
        api: of the cluster.
        kind: what the job is asked for as.
        name: of all of them; empty: there are none. All of the namespace would be meant by it.
    """

    def __init__(self, api: Api, kind: Kind, name: str) -> None:
        self._api = api
        self.kind = kind
        self.name = name

    @property
    def _is_train_job(self) -> bool:
        return self.kind is Kind.TRAIN_JOB

    def make(self, asked: PodJob, files: Mapping[str, bytes]) -> None:
        """Asks for them. The Secret is the last: pods wait for it.

        Raises:
            BackendError: they are refused.
            ConfigurationError: the files are too large.
        """
        with self._api.asked("the job is refused"):
            owner = self._make_train_job(asked) if self._is_train_job else self._make_job(asked)
            self._api.core.create_namespaced_secret(
                self._api.space, owned_by(secret(asked, files), owner), _request_timeout=_SEND_S
            )

    def _make_train_job(self, asked: PodJob) -> Any:
        group = (TRAINER_GROUP, TRAINER_VERSION, self._api.space)
        create = self._api.custom.create_namespaced_custom_object
        create(*group, "trainingruntimes", training_runtime(asked), _request_timeout=ASK_S)
        return create(*group, "trainjobs", train_job(asked), _request_timeout=ASK_S)

    def _make_job(self, asked: PodJob) -> dict[str, Any]:
        space = self._api.space
        made = self._api.batch.create_namespaced_job(
            space, indexed_job(asked), _request_timeout=ASK_S
        )
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": made.metadata.name, "uid": made.metadata.uid},
        }
        self._api.core.create_namespaced_service(
            space, owned_by(service(asked), owner), _request_timeout=ASK_S
        )
        return owner

    def are_all_there(self) -> bool:
        """Whether the last one is.

        Raises:
            BackendError: the cluster does not say.
        """
        with self._api.asked("its Secret cannot be looked for"):
            found = self._api.core.list_namespaced_secret(
                self._api.space,
                label_selector=selector_of_name(self.name),
                _request_timeout=ASK_S,
            )
        return bool(found.items)

    def owner(self) -> Mapping[str, Any] | None:
        """Metadata of the one that all others go with; None: it is gone.

        Raises:
            BackendError: the cluster does not say.
        """
        found: Mapping[str, Any] = {}
        with self._api.asked("the job cannot be looked for", is_done_if_gone=True):
            if self._is_train_job:
                found = self._api.custom.get_namespaced_custom_object(
                    *(TRAINER_GROUP, TRAINER_VERSION, self._api.space, "trainjobs", self.name),
                    _request_timeout=ASK_S,
                )
            else:
                answer = self._api.batch.read_namespaced_job(
                    self.name, self._api.space, _request_timeout=ASK_S, _preload_content=False
                )
                found = json.loads(answer.data)
        return found.get("metadata")

    def pods(self) -> list[PodState]:
        """All of them.

        Raises:
            BackendError: the cluster does not say.
        """
        with self._api.asked("its pods cannot be listed"):
            return [PodState.of(each) for each in self._api.pods(selector_of_name(self.name))]

    def end_pods(self, pods: Iterable[PodState], grace_s: int) -> None:
        """Has pods end sooner than their manifest says.

        Raises:
            BackendError: the cluster was not told.
        """
        for pod in pods:
            with self._api.asked("a pod cannot be deleted", is_done_if_gone=True):
                self._api.core.delete_namespaced_pod(
                    pod.name,
                    self._api.space,
                    grace_period_seconds=grace_s,
                    _request_timeout=ASK_S,
                )

    def delete(self, *, is_last_one_waited_for: bool = False) -> None:
        """Deletes all; pods have their grace.

        Args:
            is_last_one_waited_for: `owner` stays until no pod is left, and none is made meanwhile.

        Raises:
            BackendError: the cluster was not told.
        """
        if not self.name:
            return
        space = self._api.space
        policy = "Foreground" if is_last_one_waited_for else "Background"
        if not self._is_train_job:
            with self._api.asked("the job cannot be deleted", is_done_if_gone=True):
                self._api.batch.delete_namespaced_job(
                    self.name, space, propagation_policy=policy, _request_timeout=ASK_S
                )
            return
        for plural in ("trainjobs", "trainingruntimes"):
            with self._api.asked(f"of {plural} one cannot be deleted", is_done_if_gone=True):
                self._api.custom.delete_namespaced_custom_object(
                    *(TRAINER_GROUP, TRAINER_VERSION, space, plural, self.name),
                    propagation_policy=policy,
                    _request_timeout=ASK_S,
                )
