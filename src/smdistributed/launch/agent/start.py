# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the agent of a host on the machine that this process runs on."""

from __future__ import annotations

import os
import subprocess
import sys

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.agent.mounts import MOUNTED, Step, wrapped
from smdistributed.launch.agent.placement import make_views
from smdistributed.launch.agent.plan import HostDirectory, Plan

__all__ = ["start_agent"]


def start_agent(host: HostDirectory, plan: Plan, step: Step) -> subprocess.Popen[bytes]:
    """Starts an agent, in a session of its own, with a clean folder.

    Args:
        host: its folder.
        plan: what it is to do.
        step: how the folder comes to `/opt/ml`.

    Raises:
        OSError: it cannot be started.
        SmdistributedError: there is one already.
    """
    if plan.attempt > 1 and host.path.is_dir():
        host.renew()
    host.write_plan(plan)
    host.ml.mkdir(mode=0o700, exist_ok=True)
    make_views(host.views, host.sources(plan))
    host.write_names(plan.addresses)
    if not host.lock.acquire():
        raise SmdistributedError(f"there is an agent of {host.path} already.")
    lock = host.lock.descriptor
    command = [sys.executable, "-P", "-m", "smdistributed.launch.agent.agent"]
    command += [str(host.path), str(lock)]
    environ = {**os.environ, **({} if step is Step.NONE else {MOUNTED: "1"})}
    with (host.path / "agent.log").open("ab") as output:
        process = subprocess.Popen(
            wrapped(step, host.ml, command, host.views, host.names),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(lock,),
        )
    host.lock.hand_over()
    return process
