# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The commands `smd cluster up` and `smd cluster down`."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.ray.cluster import RayNodes
from smdistributed.launch.home import home_directory
from smdistributed.smd.application import application

__all__ = ["down", "up"]

_cluster = typer.Typer(
    help="Start a cluster on your machines, and end it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
application.add_typer(_cluster, name="cluster")


def _say(text: str) -> None:
    print(text, flush=True)


@_cluster.command()
def up(
    hosts: Annotated[
        list[str],
        typer.Argument(metavar="HOST", help="As ssh knows them. The first one is the head."),
    ],
    ray: Annotated[bool, typer.Option("--ray", help="Of Ray; there is no other kind.")] = False,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Of the head, at which nodes join.")
    ] = 6379,
    dashboard_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Of the head, which takes jobs.")
    ] = 8265,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="One more of `ray start`: -o --num-cpus=4"),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds until all nodes have to be alive.")
    ] = 180,
) -> None:
    """Start Ray on machines with SSH, as one cluster, and say how jobs run there.

    You can log in to each HOST by ssh without typing a password, and each has Ray and this package,
    of the same versions:

    \b
      pip install 'smdistributed-open[ray]'

    If their Python is not the one that the shell there calls python, config.toml names it:

    \b
      [ray]
      python = "/opt/train/bin/python"

    If one of them cannot be started, what was started on the others is ended, and the error says
    which and why. Ray asks for a token that is made for this cluster.

    smd cluster down ends it. Until then it runs, also without this machine.
    """  # noqa: D301 - click asks for a real one: what follows it keeps its lines
    if not ray:
        raise ConfigurationError(
            f"which kind of cluster is not said; expected: smd cluster up --ray {shlex.join(hosts)}"
        )
    nodes = RayNodes(home_directory(), _say)
    was_there = nodes.record() is not None
    record = nodes.start(hosts, (port, dashboard_port), option or [], timeout)
    count = len(record.hosts)
    print(
        f"The cluster {'is up already' if was_there else 'is up'}, with"
        f" {count} node{'' if count == 1 else 's'}. Jobs run there with:"
    )
    print(f"  export RAY_ADDRESS={record.address}")
    print(f"  export RAY_AUTH_TOKEN_PATH={shlex.quote(str(nodes.token))}")
    print(f"  smd run --backend ray --instance-count {count} train.py")
    print("To end it, with the jobs that run there: smd cluster down")


@_cluster.command()
def down() -> None:
    """End the cluster that smd cluster up has started, with the jobs that run there.

    Only processes that it has started are ended: SIGTERM, and SIGKILL 10 s later. Another Ray on
    these machines goes on. A machine that does not answer is named, the status is 3, and the next
    smd cluster down tries it again.
    """
    if RayNodes(home_directory(), _say).end() is None:
        print("No cluster was started from here.")
    else:
        print("The cluster is down.")
