# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Deploys an endpoint on a Ray cluster: `python -m ...ray_serve.deploying FOLDER LOCK`.

This process sends the model there, waits until Serve serves it, and ends: who calls the endpoint
asks Serve. It needs the standard library only.
"""

from __future__ import annotations

import http.client
import secrets
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from smdistributed._common.errors import SmdistributedError
from smdistributed._common.version import __version__
from smdistributed.launch.backends.ray.api import RayApi
from smdistributed.launch.backends.ray.settings import RaySettings
from smdistributed.launch.ray_serve.jobs import Kept, outcome_of, submitted, take_away
from smdistributed.launch.ray_serve.messages import Wanted, route_of
from smdistributed.launch.ray_serve.package import packed
from smdistributed.launch.serve.endpoints import EndpointDirectory
from smdistributed.launch.serve.process import EndpointProcess
from smdistributed.launch.serve.record import EndpointStatus, whole

__all__ = ["Deploying", "main"]

_PORT = 8000
_PING_S = 30.0
_POLL_S = 0.2
_OK = 200


class Deploying(EndpointProcess):
    """Of one endpoint.

    Args:
        directory: of the endpoint.
    """

    def run(self) -> None:
        """Does all of it; writes why, if it cannot."""
        self._note_signals()
        try:
            self._deploy()
            if self._signal:
                self._fail(
                    f"it was told to end, by {signal.Signals(self._signal).name}. Something of it"
                    " may be on the cluster, until it is deleted."
                )
        except SmdistributedError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _deploy(self) -> None:
        settings = RaySettings.of(self._home)
        api = RayApi(settings.address)
        environment = self._record.model.environment
        timeout_s = float(whole(environment, "SAGEMAKER_MODEL_SERVER_TIMEOUT", 60))
        given = urllib.parse.urlsplit(settings.serve_address)
        with packed(self._record, self._home, settings.shared) as (file, size):
            package = api.send_package(f"_ray_pkg_{secrets.token_hex(16)}.zip", file, size)
        # Nobody else's has this name: Serve would take it for a new version of that one.
        application = f"{self._record.name}-{secrets.token_hex(4)}"
        kept = Kept(settings.address, settings.python, application, f"{application}-deploy")
        if self._is_over():
            return
        kept.write(self._directory.path)
        wanted = Wanted(
            application,
            package,
            self._record.instance_count,
            settings.cpus_per_host,
            settings.gpus_per_host,
            given.port or _PORT,
            __version__,
        )
        submitted(api, settings.python, kept.job, wanted)
        self._say(f"the application {application} of Ray Serve at {settings.address} is deployed")
        said = outcome_of(api, settings.python, kept.job, self._is_over)
        if said is None:
            return  # who deletes the endpoint ends what is there
        self._append(said.log)
        if said.problem:
            Kept.forget(self._directory.path)  # the driver has taken all away
            self._fail(said.problem)
            return
        host = given.hostname or urllib.parse.urlsplit(settings.address).hostname or ""
        listens = api.serve().get("http_options") or {}
        served = self._record.moved(
            EndpointStatus.IN_SERVICE,
            host=host,
            port=given.port or listens.get("port") or _PORT,
            prefix=route_of(application),
            timeout_s=timeout_s,
        )
        problem = _why_not_there(f"{served.address}/ping")
        if problem:
            take_away(kept)
            Kept.forget(self._directory.path)
            self._fail(
                f"the model is served, and cannot be reached from here: {problem}; expected an"
                f" answer. Ray Serve listens at {listens.get('host')}:{listens.get('port')} of its"
                " nodes, as who started it has said; 0.0.0.0 would be all their addresses. If it"
                " can be reached elsewhere, name that as serve_address under [ray]."
            )
            return
        self._record = served
        self._directory.write(served)
        self._say(f"in service at {served.address}")


def _why_not_there(url: str) -> str:
    """Why an endpoint does not answer; empty if it does."""
    until = time.monotonic() + _PING_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=_PING_S / 3) as answer:
                if answer.status == _OK:
                    return ""
                problem = f"{url} answers {answer.status}"
        except urllib.error.HTTPError as error:
            problem = f"{url} answers {error.code}"
        except (OSError, http.client.HTTPException) as error:
            problem = f"{url}: {error}"
        if time.monotonic() > until:
            return problem
        time.sleep(_POLL_S)


def main() -> int:
    """Deploys the endpoint of the folder that is the argument."""
    directory = EndpointDirectory(Path(sys.argv[1]))
    directory.lock.adopt(int(sys.argv[2]))
    Deploying(directory).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
