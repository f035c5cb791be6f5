# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What small jobs run on the cluster: `python -m ...ray_serve.driver Wanted|Unwanted JSON`.

It prints an outcome as a line. Of Serve it changes its own application alone. Serve is started if
it does not run, and goes on: others may use it by the time that this application goes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from typing import Any

from smdistributed._common.errors import SmdistributedError
from smdistributed._common.version import __version__
from smdistributed.launch.ray_serve.keeper import Keeper
from smdistributed.launch.ray_serve.messages import (
    NAMESPACE,
    Outcome,
    Unwanted,
    Wanted,
    keeper_of,
    route_of,
)

__all__ = ["main"]

_DELETE_S = 120.0
_POLL_S = 0.2
# In service, a replica answers what has come in, and then its process ends.
_END_S = 50.0


class _ServeError(SmdistributedError):
    """It cannot be served; says why."""


def _deploy(wanted: Wanted) -> Outcome:
    ray: Any = importlib.import_module("ray")
    # First of all: without it nothing would take the package away again.
    keeper = (
        ray.remote(Keeper)
        .options(
            name=keeper_of(wanted.application),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            runtime_env={"working_dir": wanted.package},
        )
        .remote()
    )
    try:
        ray.get(keeper.told.remote())
        _require_same(wanted.version)
        _require_room(ray, wanted)
        _run(wanted)
    except Exception as error:
        problem, log = "", ""
        with contextlib.suppress(Exception):
            problem, log = ray.get(keeper.told.remote(), timeout=_END_S)
        with contextlib.suppress(_ServeError):
            _take_away(wanted.application)
        if not problem:
            is_ours = isinstance(error, _ServeError)
            problem = str(error) if is_ours else f"Ray Serve could not deploy it: {error}"
        return Outcome(problem, log)
    return Outcome()


def _run(wanted: Wanted) -> None:
    serve = _serve()
    replica = importlib.import_module("smdistributed.launch.ray_serve.replica")
    serve.start(proxy_location="EveryNode", http_options={"host": "0.0.0.0", "port": wanted.port})
    options = {
        "name": "model",
        "num_replicas": wanted.instances,
        "ray_actor_options": {
            "num_cpus": wanted.cpus,
            "num_gpus": wanted.gpus,
            "runtime_env": {
                "working_dir": wanted.package,
                "env_vars": {"RAY_worker_niceness": "0"},
            },
        },
        # Calls wait at the endpoint's own process, which knows for how long.
        "max_ongoing_requests": 1000,
        "health_check_period_s": 2,
        "graceful_shutdown_wait_loop_s": 0.2,
        "graceful_shutdown_timeout_s": _END_S,
        "max_constructor_retry_count": 1,  # a model that does not load will not the next time
    }
    serve.run(
        serve.deployment(replica.Replica).options(**options).bind(wanted.application, wanted.cpus),
        name=wanted.application,
        route_prefix=route_of(wanted.application),
    )


def _serve() -> Any:
    try:
        return importlib.import_module("ray.serve")
    except ImportError as error:
        raise _ServeError(
            f"Ray Serve is not on the head of the cluster ({error}); expected it on all nodes. Try:"
            " pip install 'smdistributed-open[ray-serve]'"
        ) from None


def _require_same(version: str) -> None:
    if version != __version__:
        raise _ServeError(
            f"the cluster has version {__version__} of smdistributed-open, and who deploys"
            f" {version}; expected the same on both."
        )


def _require_room(ray: Any, wanted: Wanted) -> None:
    """Refuses what the cluster can never have."""
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    there = [{name: each.get(name, 0) for name in ("CPU", "GPU")} for each in nodes]
    needs = {"CPU": wanted.cpus, "GPU": wanted.gpus}
    fits = [
        min((node[name] // number for name, number in needs.items() if number), default=10**9)
        for node in there
    ]
    if sum(fits) < wanted.instances:
        raise _ServeError(
            f"the endpoint asks for {wanted.instances} instances with {needs} each, and the cluster"
            f" has no room for them even if nothing else runs: its nodes have {there}; expected as"
            " much."
        )


def _take_away(application: str) -> None:
    """Deletes an application, and what keeps its package.

    Raises:
        _ServeError: it does not go.
    """
    ray: Any = importlib.import_module("ray")
    try:
        serve: Any = importlib.import_module("ray.serve")
    except ImportError:  # so it has no application
        pass
    else:
        _delete(serve, application)
    with contextlib.suppress(ValueError):  # there is none
        ray.kill(ray.get_actor(keeper_of(application), namespace=NAMESPACE))


def _delete(serve: Any, application: str) -> None:
    until = time.monotonic() + _DELETE_S
    no_serve = serve.exceptions.RayServeException
    # Or it has not gone in the time of Serve's own.
    with contextlib.suppress(no_serve, TimeoutError):
        serve.delete(application)
    with contextlib.suppress(no_serve):
        while application in serve.status().applications:
            if time.monotonic() > until:
                raise _ServeError(f"it is still there after {_DELETE_S:g} s")
            time.sleep(_POLL_S)


def _done(kind: str, fields: dict[str, Any]) -> Outcome:
    ray: Any = importlib.import_module("ray")
    ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False)
    if kind == Wanted.__name__:
        return _deploy(Wanted(**fields))
    try:
        _take_away(Unwanted(**fields).application)
    except _ServeError as error:
        return Outcome(str(error))
    return Outcome()


def main() -> int:
    """Does what the arguments say."""
    outcome = _done(sys.argv[1], json.loads(sys.argv[2]))
    print("\n" + outcome.to_line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
