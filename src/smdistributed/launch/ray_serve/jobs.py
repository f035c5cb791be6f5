# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Small jobs of Ray's, by which Serve is asked to serve something, or to serve it no longer.

Serve's own HTTP interface is for reading alone: what it is told to serve replaces all else.

Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import secrets
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ray.api import TERMINAL, RayApi, how_it_ended
from smdistributed.launch.jobs.files import write_whole
from smdistributed.launch.ray_serve.messages import Outcome, Unwanted, Wanted

__all__ = ["Kept", "outcome_of", "submitted", "take_away"]

_MODULE = "smdistributed.launch.ray_serve.driver"
_POLL_S = 0.2
_PATIENCE_S = 300.0
_DELETE_S = 180.0


@dataclasses.dataclass(frozen=True)
class Kept:
    """What the directory of an endpoint has about the cluster while something is there: `ray.json`.

    Attributes:
        address: of the Jobs API.
        python: of the nodes.
        application: of Serve.
        job: of Ray's, that deploys it.
    """

    address: str
    python: str
    application: str
    job: str

    @classmethod
    def of(cls, folder: Path) -> Kept | None:
        """Of an endpoint; None if the cluster has nothing of it.

        Raises:
            ConfigurationError: it cannot be read.
        """
        path = _file_of(folder)
        try:
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{path} cannot be read ({type(error).__name__}: {error}); expected what this"
                " library writes there. Remove the endpoint's folder; an application of Ray Serve"
                " may be left on the cluster."
            ) from None

    def write(self, folder: Path) -> None:
        """Keeps it.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(_file_of(folder), json.dumps(dataclasses.asdict(self)).encode())

    @staticmethod
    def forget(folder: Path) -> None:
        """Nothing is there any more."""
        _file_of(folder).unlink(missing_ok=True)


def _file_of(folder: Path) -> Path:
    return folder / "ray.json"


def submitted(api: RayApi, python: str, job: str, what: Wanted | Unwanted) -> None:
    """Starts a job. It has no runtime environment: Serve would have it, if the job starts Serve.

    Raises:
        BackendError: it is refused.
    """
    words = [python, "-P", "-m", _MODULE, type(what).__name__, json.dumps(dataclasses.asdict(what))]
    api.submit(
        {
            "entrypoint": f"exec {shlex.join(words)}",
            "submission_id": job,
            "metadata": {"smdistributed_endpoint": what.application},
            "entrypoint_num_cpus": 0,
        }
    )


def outcome_of(
    api: RayApi, python: str, job: str, is_unwanted: Callable[[], bool]
) -> Outcome | None:
    """Waits for the end of a job. Returns: what its driver said; None if it was not wanted longer.

    Raises:
        BackendError: Ray does not answer for minutes, or the driver has said nothing.
    """
    answered_at = time.monotonic()
    while not is_unwanted():
        try:
            found = api.job(job)
            answered_at = time.monotonic()
            if found is None or found["status"] in TERMINAL:
                said = _said(api, job, found)
                if said is None:
                    raise _SilentError(how_it_ended(found, python))
                return said
        except _SilentError:
            raise
        except BackendError:
            if time.monotonic() - answered_at > _PATIENCE_S:
                raise
        time.sleep(_POLL_S)
    return None


def _said(api: RayApi, job: str, found: Mapping[str, Any] | None) -> Outcome | None:
    node = str((found or {}).get("driver_node_id") or "")
    if not node:
        return None
    try:
        with api.log(job, node, is_whole=True) as answer:
            return Outcome.of_text(answer.read().decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        raise BackendError(f"the log of the job {job} cannot be read: {error}") from None


class _SilentError(BackendError):
    """A driver has ended without a word; says what Ray says."""


def take_away(kept: Kept) -> None:
    """Ends what the cluster has of an endpoint; returns when nothing is left.

    Raises:
        BackendError: Ray does not answer, or something is left; says what.
    """
    api = RayApi(kept.address)
    until = time.monotonic() + _DELETE_S
    with contextlib.suppress(BackendError):  # it says so again in a moment
        api.stop(kept.job)
    while (found := api.job(kept.job)) is not None and found["status"] not in TERMINAL:
        if time.monotonic() > until:
            raise BackendError(
                f"the job {kept.job} at {kept.address} does not end; expected it to. Try by hand:"
                f" ray job stop --address {shlex.quote(kept.address)} {shlex.quote(kept.job)}"
            )
        time.sleep(_POLL_S)
    job = f"{kept.application}-delete-{secrets.token_hex(4)}"
    submitted(api, kept.python, job, Unwanted(kept.application))
    said = outcome_of(api, kept.python, job, lambda: time.monotonic() > until)
    problem = f"it has not ended within {_DELETE_S:g} s" if said is None else said.problem
    if problem:
        raise BackendError(
            f"the application {kept.application} of Ray Serve at {kept.address} could not be"
            f" deleted: {problem}; expected it to go. Delete the endpoint again."
        )
