# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures all_reduce between test hosts, all libraries interleaved. See README.md.

Loop:  for layout, for rate: make the hosts, start the ranks of all libraries on them
         for size: every library prepares (and verifies)
           for round: for library, in an order that turns by one each round: measure
         stop the ranks, remove the hosts
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.command_line import add_turns, names
from common.result_files import ResultFile
from common.rounds import in_turn, percentile
from host_libraries import MEASURED, HostGroup, HostLibrary, on_hosts
from layouts import LAYOUTS, Layout, parse_layout
from shared import (
    HEADER_CAP,
    KIB,
    MIB,
    MTU,
    Case,
    CaseUnsupported,
    GroupFailed,
    LibraryAbsent,
    WorkerGroup,
    network,
    parse_size,
    size_name,
    why_not,
)

HERE = Path(__file__).resolve().parent
SIZES = (8, 4 * KIB, 64 * KIB, MIB, 25 * MIB, 100 * MIB)
RATES_GBIT = (1.0, 5.0)
QUICK_LIBRARIES = ("smddp-direct", "smddp-torch", "gloo")
BATCH_SECONDS = 1e-3  # short calls are timed in batches about this long


@dataclass
class Measurement:
    """What one library gave in one case."""

    library: str
    case: Case
    note: str = ""
    call_seconds: float = math.inf
    rounds: list[list[float]] = field(default_factory=list)  # seconds per call

    def figures(self, bound_seconds: float) -> dict[str, Any]:
        """Statistics over all samples; shares are of the bound, from the median and the best."""
        ordered = sorted(seconds for turn in self.rounds for seconds in turn)
        middle = median(ordered)
        return {
            "samples": len(ordered),
            "best_us": round(ordered[0] * 1e6, 2),
            "median_us": round(middle * 1e6, 2),
            "p90_us": round(percentile(ordered, 0.9) * 1e6, 2),
            "share": round(bound_seconds / middle, 4),
            "best_share": round(bound_seconds / ordered[0], 4),
            "round_medians_us": [round(median(turn) * 1e6, 2) for turn in self.rounds],
        }


class Run:
    """Everything measured so far, and the file that holds it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.file = ResultFile(HERE, arguments.out, "quick" if arguments.quick else "full")
        self._libraries: dict[str, dict[str, str]] = {}
        self._results: list[dict[str, Any]] = []

    def measure(self, layout: Layout, gbit: float) -> None:
        """All sizes and libraries on new hosts."""
        with network(layout.hosts, gbit=gbit) as hosts:
            groups: dict[str, WorkerGroup] = {}
            try:
                for library in on_hosts(self._arguments.libraries, hosts, layout.ranks_per_host):
                    self._start(library, layout, groups)
                for size in self._arguments.sizes:
                    self._measure_size(layout, gbit, size, groups)
                    self.save()
            finally:
                for group in groups.values():
                    group.stop()

    def _start(self, library: HostLibrary, layout: Layout, groups: dict[str, WorkerGroup]) -> None:
        known = self._libraries.setdefault(
            library.name, {"label": library.label, "settings": library.settings}
        )
        try:
            group = groups[library.name] = HostGroup(library, layout.ranks)
            known["version"] = group.version
        except (LibraryAbsent, GroupFailed) as reason:
            known["absent"] = str(reason)
            print(f"{library.label} on {layout}: left out, {reason}", flush=True)

    def _measure_size(
        self, layout: Layout, gbit: float, size: int, groups: dict[str, WorkerGroup]
    ) -> None:
        begin = time.monotonic()
        case = Case("all_reduce", "f32", layout.ranks, size)
        measurements = [Measurement(name, case) for name in groups]
        for each in measurements:
            self._attempt(each, groups, lambda group, each=each: _prepare(group, each))
        for number in range(self._arguments.rounds):
            for each in in_turn(measurements, number):
                self._attempt(each, groups, lambda group, each=each: self._take_turn(group, each))
        for each in measurements:
            self._attempt(each, groups, lambda group: group.verify(case))
            self._attempt(each, groups, lambda group: group.release(case))
        self._keep(layout, gbit, measurements, time.monotonic() - begin)

    def _attempt(
        self,
        measurement: Measurement,
        groups: dict[str, WorkerGroup],
        act: Callable[[WorkerGroup], object],
    ) -> None:
        """Do `act`; a failure is written into `measurement`, and the library is done with here."""
        if measurement.note:
            return
        group = groups.get(measurement.library)
        try:
            if group is None:
                raise GroupFailed("its ranks have ended in an earlier case")
            act(group)
        except CaseUnsupported as reason:
            measurement.note = str(reason)
        except GroupFailed as failure:
            measurement.note = str(failure)
            groups.pop(measurement.library, None)

    def _take_turn(self, group: WorkerGroup, measurement: Measurement) -> None:
        seconds = measurement.call_seconds
        inner = max(1, round(BATCH_SECONDS / seconds))
        batches = max(3, round(self._arguments.turn_ms * 1e-3 / (inner * seconds)))
        measurement.rounds.append(group.run(measurement.case, inner, batches))
        measurement.call_seconds = median(measurement.rounds[-1])

    def _keep(
        self, layout: Layout, gbit: float, measurements: Sequence[Measurement], seconds: float
    ) -> None:
        size = measurements[0].case.size_bytes if measurements else 0
        bound = layout.bound_seconds(size, gbit)
        print(
            f"\nall_reduce f32 {size_name(size)}, {layout} at {gbit:g} Gbit/s"
            f" (bound {bound * 1e3:.4g} ms, headers allow {HEADER_CAP:.3f} of it; {seconds:.0f} s)"
        )
        for each in measurements:
            record: dict[str, Any] = {
                "layout": str(layout),
                "gbit": gbit,
                "size_bytes": size,
                "library": each.library,
                "bound_us": round(bound * 1e6, 3),
            }
            if each.note or not each.rounds:
                self._results.append({**record, "note": each.note})
                print(f"  {each.library:14} {each.note}")
                continue
            figures = each.figures(bound)
            self._results.append({**record, **figures})
            print(
                f"  {each.library:14} median {figures['median_us'] / 1e3:10.3f} ms"
                f"  (best {figures['best_us'] / 1e3:.3f}, p90 {figures['p90_us'] / 1e3:.3f})"
                f"  share {figures['share']:.3f}  best {figures['best_share']:.3f}"
            )
        sys.stdout.flush()

    def save(self) -> None:
        """Write the result file: complete after every case, so an interrupted run is not lost."""
        self.file.write(
            rounds=self._arguments.rounds,
            network={
                "mtu": MTU,
                "header_cap": round(HEADER_CAP, 4),
                "congestion_control": _kernel_setting("net/ipv4/tcp_congestion_control"),
                "tcp_wmem": _kernel_setting("net/ipv4/tcp_wmem"),
                "tcp_rmem": _kernel_setting("net/ipv4/tcp_rmem"),
            },
            libraries=self._libraries,
            results=self._results,
        )


def _prepare(group: WorkerGroup, measurement: Measurement) -> None:
    measurement.call_seconds = max(1e-6, group.prepare(measurement.case))


def _kernel_setting(name: str) -> str:
    return " ".join(Path("/proc/sys", name).read_text().split())


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    def listed(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
        def parse_all(text: str) -> list[Any]:
            try:
                return [parse(part) for part in text.split(",")]
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from error

        return parse_all

    parser = argparse.ArgumentParser(
        prog="run.py", description="Measure all_reduce between test hosts (network namespaces)."
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="100 MiB by our library and Gloo, in about a minute; say where by --layout and --gbit",
    )
    parser.add_argument(
        "--layout", type=listed(parse_layout), metavar="HxR,...", help="hosts x ranks on each: 2x2"
    )
    parser.add_argument("--gbit", type=listed(float), metavar="G,...", help="rate of the links")
    parser.add_argument("--sizes", type=listed(parse_size), metavar="SIZE,...", help="4K,100M")
    parser.add_argument(
        "--libraries",
        type=names(MEASURED),
        metavar="NAME,...",
        help=f"of {', '.join(MEASURED)}",
    )
    add_turns(parser, turn_ms=100.0)
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    arguments.layout = arguments.layout or ([Layout(2, 2)] if quick else list(LAYOUTS))
    arguments.gbit = arguments.gbit or ([5.0] if quick else list(RATES_GBIT))
    arguments.sizes = arguments.sizes or ([100 * MIB] if quick else list(SIZES))
    arguments.libraries = arguments.libraries or list(QUICK_LIBRARIES if quick else MEASURED)
    arguments.rounds = arguments.rounds or (3 if quick else 7)
    return arguments


def main() -> int:
    """Measure what the command line asks for; the exit status is 0 unless hosts cannot be made."""
    arguments = _parse(sys.argv[1:])
    if reason := why_not():
        print(f"nothing was measured: {reason}", file=sys.stderr)
        return 1
    # Ends through `finally`: the ranks lead process groups of their own and would go on without us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = time.monotonic()
    run = Run(arguments)
    try:
        for layout in arguments.layout:
            for gbit in arguments.gbit:
                run.measure(layout, gbit)
    except KeyboardInterrupt:
        print("interrupted; the cases that were complete are in the result file")
        return 130
    print(f"\nresults: {run.file.name} ({(time.monotonic() - begin) / 60:.1f} min)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
