# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The command."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.multihost.hosts import network
from tests.multihost.namespaces import why_not
from tests.soak.data import MAX_RANKS
from tests.soak.over_hosts.driver import Options, Soak, SoakFailed
from tests.soak.over_hosts.faults import KINDS

_ENVIRONMENT = {
    # Reports of those who wait come often, so that they are part of what happens at once.
    "SMDDP_STALL_SECONDS": "2",
    # glibc keeps what threads have freed, hundreds of MiB in time, which hides what is not freed.
    # So: one arena, which measure() trims, and large blocks given back at once.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.over_hosts",
        description="Random collectives between test hosts, and random faults; needs root.",
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (default 1)")
    parser.add_argument("--first", type=int, default=0, metavar="ROUND", help="number to begin at")
    parser.add_argument("--rounds", type=int, help="how many, whatever time they take")
    parser.add_argument(
        "--faults", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help="draw these"
    )
    parser.add_argument(
        "--ranks-per-host", nargs="+", type=int, default=[2, 2], metavar="N", help="default: 2 2"
    )
    parser.add_argument("--logs", type=Path, help="folder for what ranks print (default: none)")
    return parser.parse_args()


def main() -> int:
    """Status 0 if nothing was found, 1 if something was, 2 if it cannot be looked for."""
    arguments = _parse()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    if not 2 <= sum(arguments.ranks_per_host) <= MAX_RANKS:
        print(
            f"--ranks-per-host has {sum(arguments.ranks_per_host)} ranks; expected 2 to"
            f" {MAX_RANKS}, for which the data are exact.",
            file=sys.stderr,
        )
        return 2
    options = Options(
        arguments.minutes * 60,
        arguments.rounds,
        arguments.first,
        arguments.seed,
        arguments.faults,
        arguments.ranks_per_host,
        _ENVIRONMENT,
    )
    with tempfile.TemporaryDirectory(prefix="smddp-soak-") as scratch:
        folder = arguments.logs or Path(scratch)
        folder.mkdir(exist_ok=True)
        with network(len(arguments.ranks_per_host), gbit=1) as hosts:
            soak = Soak(hosts, options, folder)
            try:
                soak.run()
            except SoakFailed as failure:
                print(f"{soak.report.summary()}\nsoak failed: {failure}", flush=True)
                return 1
    print(
        f"{soak.report.summary()}\nsoak passed (seed {options.seed}): after every fault all ranks"
        " had right results or an error that names the culprit; nothing grew, nothing hung",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
