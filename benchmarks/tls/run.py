# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures what TLS costs an all_reduce between two test hosts. See README.md.

Loop:  for rate: make the hosts, start a rank on each
         for round: a call in the clear, a call inside TLS (verified)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`
sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `tests`
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "multiprocess"))

from common.command_line import names
from common.result_files import ResultFile
from common.rounds import slowest
from job_certificates import TlsFiles, make_authority, make_files
from tls_ranks import Samples, measure

from tests.multihost.hosts import network
from tests.multihost.namespaces import why_not
from tests.multihost.placement import run_ranks_on

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
HOSTS = 2
UNLIMITED = "unlimited"
RATES = ("5", UNLIMITED)
DEADLINE_S = 600.0


def _figures(ranks: list[dict[str, Samples]], name: str) -> dict[str, float]:
    """Of one kind of connection. A call takes as long as on its slowest rank."""
    calls = slowest([rank[name].wall_s for rank in ranks])
    cpu = [sum(times) for times in zip(*(rank[name].cpu_s for rank in ranks), strict=True)]
    return {
        "best_ms": round(min(calls) * 1e3, 2),
        "median_ms": round(median(calls) * 1e3, 2),
        "cpu_ms": round(median(cpu) * 1e3, 2),
    }


def _measure_at(rate: str, files: TlsFiles, size_bytes: int, rounds: int) -> dict[str, Any]:
    gbit = None if rate == UNLIMITED else float(rate)
    with network(HOSTS, gbit=gbit) as hosts:
        ranks = run_ranks_on(
            hosts, [1] * HOSTS, measure, files, size_bytes, rounds, deadline_s=DEADLINE_S
        )
    clear, tls = _figures(ranks, "clear"), _figures(ranks, "tls")
    record = {"gbit": gbit, "size_bytes": size_bytes, "clear": clear, "tls": tls}
    record["time_ratio"] = round(tls["median_ms"] / clear["median_ms"], 3)
    record["cpu_ratio"] = round(tls["cpu_ms"] / clear["cpu_ms"], 3)
    return record


def _print(rate: str, record: dict[str, Any]) -> None:
    clear, tls = record["clear"], record["tls"]
    link = rate if rate == UNLIMITED else f"{rate} Gbit/s"
    print(
        f"{link:>10}: clear {clear['median_ms']:8.1f} ms (best {clear['best_ms']:.1f}, processor"
        f" {clear['cpu_ms']:.1f})  TLS {tls['median_ms']:8.1f} ms (best {tls['best_ms']:.1f},"
        f" processor {tls['cpu_ms']:.1f})  time x {record['time_ratio']:.2f}"
        f"  processor x {record['cpu_ratio']:.2f}",
        flush=True,
    )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--gbit",
        type=names(("1", "5", "10", "25", UNLIMITED)),
        default=list(RATES),
        metavar="G,...",
        help=f"rate of the links, or {UNLIMITED}: as fast as the processor",
    )
    parser.add_argument("--mib", type=int, default=100, help="size of the array")
    parser.add_argument("--rounds", type=int, default=15, help="calls of each kind")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def main() -> int:
    """Measure what the command line asks for; the exit status is 0 unless hosts cannot be made."""
    arguments = _parse(sys.argv[1:])
    if reason := why_not():
        print(f"nothing was measured: {reason}", file=sys.stderr)
        return 1
    print(f"all_reduce f32 {arguments.mib} MiB, {HOSTS} hosts with a rank each, medians")
    file = ResultFile(HERE, arguments.out)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(make_authority(Path(folder)))
        for rate in arguments.gbit:
            results.append(_measure_at(rate, files, arguments.mib * MIB, arguments.rounds))
            _print(rate, results[-1])
    file.write(rounds=arguments.rounds, results=results)
    print(f"results: {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
