# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""In which state were the cores while a library was measured? See ``probe.c`` for the signals.

Thresholds come from the data of the run, not from a constant. Flag times of a run fall into a few
narrow groups (on one virtual machine: 25 ns, 51 ns and 198 ns), so quiet probes are put into bins
whose limits grow by a factor of 1.25, and a bin with fewer than 2 % of the probes is a valley. The
middle of each valley is a threshold. A group whose median compute ratio is above 1.3 consists of
two hardware threads of one core: ``smt``. The others are separate cores: ``split``, and ``far`` for
a second, slower such group (cores that share no cache).

A turn carries the tag of the probes before and after it if both agree, else ``mixed``; ``noisy`` if
one of the probes was itself disturbed. Only turns of one tag are compared with each other.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from native_programs import build

_BIN_FACTOR = 1.25
_VALLEY_SHARE = 0.02
_MERGE_FACTOR = 1.5
_SMT_COMPUTE_RATIO = 1.3
_NOISY_FACTOR = 1.5
_NAMES_OF_SEPARATE_CORES = ("split", "far")
COMPARABLE_TAGS = ("smt", "split", "far", "single")


@dataclass(frozen=True)
class ProbeSample:
    """One answer of the probe."""

    flag_ns: float
    flag_median_ns: float
    compute_ratio: float
    memcpy2_gbps: float
    preemptions: int
    probe_ms: float

    @property
    def is_noisy(self) -> bool:
        """Whether something else ran on the probe's CPUs for a good part of it."""
        return self.flag_median_ns > _NOISY_FACTOR * self.flag_ns


class CoreProbe:
    """The running probe program; ``sample`` is ``None`` where the process may use one CPU only."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) >= 2:
            program = build(Path(__file__).with_name("probe.c"), ("-O2", "-pthread"))
            self._process = subprocess.Popen(
                [str(program), str(cpus[0]), str(cpus[1])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

    def sample(self) -> ProbeSample | None:
        """Probe now; takes one to a few milliseconds."""
        if self._process is None:
            return None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("probe\n")
        self._process.stdin.flush()
        return ProbeSample(**json.loads(self._process.stdout.readline()))

    def stop(self) -> None:
        """End the program."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


@dataclass(frozen=True)
class Group:
    """Probes whose flag time lies below ``upper_ns`` and above the group before."""

    tag: str
    upper_ns: float
    median_flag_ns: float
    median_compute_ratio: float
    share: float


class CoreStates:
    """Tags derived from all probes of a run."""

    def __init__(self, samples: Sequence[ProbeSample]) -> None:
        self.groups = _find_groups([sample for sample in samples if not sample.is_noisy])

    def tag_of(self, sample: ProbeSample | None) -> str:
        """``smt``, ``split``, ``far``, ``noisy``, or ``single`` without a probe."""
        if sample is None:
            return "single"
        if sample.is_noisy:
            return "noisy"
        return next(group.tag for group in self.groups if sample.flag_ns <= group.upper_ns)

    def tag_turn(self, before: ProbeSample | None, after: ProbeSample | None) -> str:
        """The tag of what was measured between two probes."""
        tags = {self.tag_of(before), self.tag_of(after)}
        if "noisy" in tags:
            return "noisy"
        return tags.pop() if len(tags) == 1 else "mixed"

    def to_json(self) -> list[dict[str, Any]]:
        """Groups with their limits, for the result file."""
        return [
            {
                "tag": group.tag,
                "upper_flag_ns": None if math.isinf(group.upper_ns) else round(group.upper_ns, 1),
                "median_flag_ns": round(group.median_flag_ns, 1),
                "median_compute_ratio": round(group.median_compute_ratio, 3),
                "share_of_quiet_probes": round(group.share, 3),
            }
            for group in self.groups
        ]


def main_tag(by_tags: Iterable[Mapping[str, Any]]) -> str | None:
    """The tag of most turns among those that are compared.

    ``by_tags`` maps, for each library or column, tags to figures with their number of ``turns``.
    """
    counts: Counter[str] = Counter()
    for by_tag in by_tags:
        for tag, figures in by_tag.items():
            if tag in COMPARABLE_TAGS:
                counts[tag] += figures["turns"]
    return counts.most_common(1)[0][0] if counts else None


def _find_groups(samples: Sequence[ProbeSample]) -> list[Group]:
    if not samples:
        return [Group("split", math.inf, 0.0, 0.0, 0.0)]
    ordered = sorted(samples, key=lambda sample: sample.flag_ns)
    bins = [int(math.log(max(sample.flag_ns, 1.0), _BIN_FACTOR)) for sample in ordered]
    counts = Counter(bins)
    is_hill = {index: counts[index] >= _VALLEY_SHARE * len(bins) for index in counts}
    clusters: list[list[ProbeSample]] = []
    previous = None
    for index, sample in zip(bins, ordered, strict=True):
        if not is_hill[index]:
            continue
        if previous is None or index - previous > 1:
            clusters.append([])
        clusters[-1].append(sample)
        previous = index
    merged: list[list[ProbeSample]] = []
    for cluster in clusters:
        close = merged and _flag_median(cluster) < _MERGE_FACTOR * _flag_median(merged[-1])
        if close:
            merged[-1].extend(cluster)
        else:
            merged.append(list(cluster))
    names = iter(_NAMES_OF_SEPARATE_CORES)
    last_name = _NAMES_OF_SEPARATE_CORES[-1]
    groups = []
    for position, cluster in enumerate(merged):
        ratio = median(sample.compute_ratio for sample in cluster)
        upper = math.inf
        if position + 1 < len(merged):
            upper = math.sqrt(cluster[-1].flag_ns * merged[position + 1][0].flag_ns)
        tag = "smt" if ratio > _SMT_COMPUTE_RATIO else next(names, last_name)
        share = len(cluster) / len(ordered)
        groups.append(Group(tag, upper, _flag_median(cluster), ratio, share))
    return groups


def _flag_median(cluster: Sequence[ProbeSample]) -> float:
    return median(sample.flag_ns for sample in cluster)
