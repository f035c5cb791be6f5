# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Asks a cluster by the official client; its errors are ours."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Iterator
from typing import Any

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.kubernetes.manifests import (
    TRAINER_GROUP,
    TRAINER_VERSION,
    Kind,
)
from smdistributed.launch.backends.kubernetes.settings import KubernetesSettings

__all__ = ["ASK_S", "Api"]

ASK_S = 8.0
"""Seconds in which a cluster has to answer."""


class Api:
    """Of one cluster, by the official client.

    Args:
        settings: of the user.

    Raises:
        BackendError: the client is missing, or there is no kubeconfig.
    """

    def __init__(self, settings: KubernetesSettings) -> None:
        try:
            self._client: Any = importlib.import_module("kubernetes.client")
            config: Any = importlib.import_module("kubernetes.config")
        except ImportError as error:
            raise BackendError(
                f"the backend 'kubernetes' needs its client on this machine ({error});"
                " pip install 'smdistributed-open[kubernetes]'."
            ) from None
        try:
            configuration = self._client.Configuration()
            # As it is now: the client has read the variable when it was imported.
            file = os.environ.get("KUBECONFIG") or None
            config.load_kube_config(
                config_file=file,
                context=settings.context or None,
                client_configuration=configuration,
            )
            configuration.retries = 0  # each with the whole time limit
            made = self._client.ApiClient(configuration)
        except Exception as error:  # the client's own, of many kinds
            raise BackendError(
                f"there is no cluster to be asked: {error}. Try by hand: kubectl cluster-info"
            ) from None
        self.space = settings.namespace or _own_namespace(config, file, settings.context)
        self.core = self._client.CoreV1Api(made)
        self.batch = self._client.BatchV1Api(made)
        self.custom = self._client.CustomObjectsApi(made)
        self._groups = self._client.ApisApi(made)

    def require(self) -> None:
        """Finds out whether the cluster answers, and this user may ask for pods.

        Raises:
            BackendError: not so.
        """
        with self.asked("pods cannot be listed"):
            self.core.list_namespaced_pod(self.space, limit=1, _request_timeout=ASK_S)

    def kind(self) -> Kind:
        """What a job is asked for as: a TrainJob where Kubeflow Trainer is served."""
        with self.asked("its API groups cannot be listed"):
            found = self._groups.get_api_versions(_request_timeout=ASK_S)
        for group in found.groups:
            if group.name == TRAINER_GROUP and any(
                each.version == TRAINER_VERSION for each in group.versions
            ):
                return Kind.TRAIN_JOB
        return Kind.INDEXED_JOB

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Those that a selector of labels means, as the API has sent them."""
        answer = self.core.list_namespaced_pod(
            self.space, label_selector=selector, _request_timeout=ASK_S, _preload_content=False
        )
        found: list[dict[str, Any]] = json.loads(answer.data)["items"]
        return found

    @contextlib.contextmanager
    def asked(self, what: str, *, is_done_if_gone: bool = False) -> Iterator[None]:
        """In its block errors of the client are ours.

        Args:
            what: has failed then, in words.
            is_done_if_gone: what is not there need not be taken away.

        Raises:
            BackendError: says why.
        """
        try:
            yield
        except self._client.ApiException as error:
            if is_done_if_gone and error.status == 404:
                return
            raise BackendError(
                f"Kubernetes answers {error.status} {error.reason}, and {what} in the namespace"
                f" {self.space!r}: {_message_of(error)}. Try by hand: kubectl --namespace"
                f" {self.space} get pods"
            ) from None
        except BackendError:
            raise
        except Exception as error:  # of urllib3, and of what is below
            raise BackendError(
                f"Kubernetes cannot be reached, and {what}: {str(error)[:300]}. Try by hand:"
                " kubectl cluster-info"
            ) from None


def _own_namespace(config: Any, file: str | None, context: str) -> str:
    """That of a context of the kubeconfig."""
    contexts, current = config.list_kube_config_contexts(config_file=file)
    for each in contexts:
        if each["name"] == (context or current["name"]):
            return str(each["context"].get("namespace") or "default")
    return "default"


def _message_of(error: Any) -> str:
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(error.body)["message"])
    return str(error.body or "")[:300]
