# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the pages and plots under ``docs/benchmarks`` from one result file of ``run.py``.

Usage: python benchmarks/collectives/report.py [RESULT.json] [--docs FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from cases import COLLECTIVES, ITEM_SIZES, size_name
from common.page_parts import machine_words, number, package_words, table
from common.result_files import read_for_report
from core_state import COMPARABLE_TAGS, main_tag
from figures import paired_ratios
from libraries import LIBRARIES
from target_page import target_page

HERE = Path(__file__).resolve().parent
OWN = tuple(library.name for library in LIBRARIES if library.own)
# One colour per library, distinct for colour-blind readers; ours are the strong ones.
COLOURS = {
    "smddp-torch": "#d55e00",
    "smddp-torch-plain": "#f0a070",
    "smddp-shared": "#8c2d04",
    "smddp-direct": "#e69f00",
    "gloo": "#0072b2",
    "openmpi": "#009e73",
    "mpich": "#cc79a7",
    "intelmpi": "#56b4e9",
    "deepspeed": "#f0e442",
    "openmpi-yield": "#6fc9a6",
    "intelmpi-yield": "#a9d7f2",
    "floor-staged": "#444444",
    "floor-staged_rs": "#888888",
    "floor-ideal": "#000000",
}

# As result files before the change of 2026-11-24 call it.
_RENAMED = {"smddp-torch-foreign": "smddp-torch-plain"}

Record = dict[str, Any]
Row = dict[str, Record]  # library -> record, of one case


class Results:
    """One result file, by case."""

    def __init__(self, content: dict[str, Any]) -> None:
        libraries = content["libraries"]
        self.content = content | {
            "libraries": {_RENAMED.get(name, name): about for name, about in libraries.items()}
        }
        self.by_case: dict[tuple[str, str, int, int], Row] = {}
        for record in content["results"]:
            key = tuple(record[name] for name in ("collective", "dtype", "ranks", "size_bytes"))
            library = record["library"]
            self.by_case.setdefault(key, {})[_RENAMED.get(library, library)] = record

    def sections(self, collective: str) -> list[tuple[str, int]]:
        """``(dtype, ranks)`` that were measured for ``collective``, in reading order."""
        found = {(key[1], key[2]) for key in self.by_case if key[0] == collective}
        return sorted(found, key=lambda pair: (list(ITEM_SIZES).index(pair[0]), pair[1]))

    def rows(self, collective: str, dtype: str, ranks: int) -> list[tuple[int, Row]]:
        """``(size_bytes, records by library)`` in ascending size."""
        wanted = (collective, dtype, ranks)
        return sorted(
            ((key[3], row) for key, row in self.by_case.items() if key[:3] == wanted),
            key=lambda pair: pair[0],
        )

    def label(self, library: str) -> str:
        """Name for headings."""
        return str(self.content["libraries"].get(library, {}).get("label", library))

    def names(self, rows: Iterable[tuple[int, Row]]) -> list[str]:
        """Libraries in ``rows``, ours first, in the order of the run."""
        return list(dict.fromkeys(name for _, row in rows for name in row))


def tag_of_case(row: Row) -> str | None:
    """The core state in which most turns of the case took place, among those that compare."""
    return main_tag(record["by_tag"] for record in row.values())


def time_table(results: Results, rows: Sequence[tuple[int, Row]]) -> str:
    """Best / median time of each library, in the main core state of the row."""
    names = results.names(rows)
    lines = []
    for size, row in rows:
        tag = tag_of_case(row)
        cells = []
        for name in names:
            record = row.get(name)
            figures = record["by_tag"].get(tag) if record else None
            if figures:
                cells.append(f"{number(figures['best_us'])} / {number(figures['median_us'])}")
            else:
                cells.append(
                    "–" if record is None or record["status"] == "ok" else record["status"]
                )
        lines.append([size_name(size), tag or "no quiet turn", *cells])
    header = ["Size", "Cores", *(results.label(name) for name in names)]
    return "Time per call in µs, best / median:\n\n" + table(header, lines, 2)


def detail_table(results: Results, rows: Sequence[tuple[int, Row]]) -> str:
    """Spread, percentiles and bandwidths of our libraries and of the baseline."""
    lines = []
    for size, row in rows:
        tag = tag_of_case(row)
        for name in (*OWN, "gloo"):
            figures = row[name]["by_tag"].get(tag) if name in row else None
            if figures:
                lines.append(
                    [
                        size_name(size),
                        results.label(name),
                        str(figures["turns"]),
                        str(figures["samples"]),
                        *(number(figures[key]) for key in ("p90_us", "p95_us", "p99_us")),
                        f"{figures['spread']:.2f}",
                        f"{figures['algorithm_gbps']:.3g}",
                        f"{figures['bus_gbps']:.3g}",
                    ]
                )
    if not lines:
        return ""
    header = ["Size", "Library", "Turns", "Samples", "p90 µs", "p95 µs", "p99 µs"]
    header += ["Spread", "Alg. GB/s", "Bus GB/s"]
    return (
        "<details><summary>Percentiles, spread and bandwidths</summary>\n\n"
        + table(header, lines, 2)
        + "\n</details>\n"
    )


def ratio_table(results: Results, rows: Sequence[tuple[int, Row]], own: str) -> str:
    """How many times as long each peer takes as ``own``; pairs of one round and one core state."""
    peers = [name for name in results.names(rows) if name not in OWN and name != "floor-memcpy2"]
    lines = []
    for size, row in rows:
        if own not in row or row[own]["status"] != "ok":
            continue
        ratios = {name: paired_ratios(row[own], row[name]) for name in peers if name in row}
        for tag in COMPARABLE_TAGS:
            cells = []
            for name in peers:
                ratio = ratios.get(name, {}).get(tag)
                text = "–"
                if ratio:
                    text = f"{number(ratio['best'])} / {number(ratio['median'])} ({ratio['pairs']})"
                cells.append(text)
            if any(cell != "–" for cell in cells):
                lines.append([size_name(size), tag, *cells])
    if not lines:
        return ""
    header = ["Size", "Cores", *(results.label(name) for name in peers)]
    return (
        f"Time of the peer / time of {results.label(own)}, best / median (pairs); above 1 we are "
        "faster, and 0.77 beside a floor means 1.3 times its time:\n\n" + table(header, lines, 2)
    )


def notes(results: Results, collective: str) -> str:
    """Cases that gave no figures, in words, each reason once."""
    reasons: dict[tuple[str, str, str], set[str]] = {}
    for dtype, ranks in results.sections(collective):
        for _, row in results.rows(collective, dtype, ranks):
            for name, record in row.items():
                if record["status"] != "ok" and not name.startswith("floor"):
                    key = (results.label(name), record["status"], record.get("note", ""))
                    reasons.setdefault(key, set()).add(f"{dtype} with {ranks} ranks")
    return "\n".join(
        f"- {label}, {', '.join(sorted(where))}: {status}: {note}"
        for (label, status, note), where in sorted(reasons.items())
    )


def plot(results: Results, collective: str, dtype: str, folder: Path) -> str | None:
    """Time against size for each number of ranks, ratios below; returns the file's name."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    counts = [ranks for found, ranks in results.sections(collective) if found == dtype]
    if collective == "barrier" or not counts:
        return None
    figure, panels = plt.subplots(
        2,
        len(counts),
        figsize=(4.6 * len(counts) + 1, 6.4),
        squeeze=False,
        sharex=True,
        height_ratios=(2, 1),
        layout="constrained",
    )
    for column, ranks in enumerate(counts):
        rows = results.rows(collective, dtype, ranks)
        upper, lower = panels[0][column], panels[1][column]
        names = [name for name in results.names(rows) if name in COLOURS]
        curves = {name: _curve(rows, name) for name in names}
        reference = next((name for name in (*OWN, "gloo") if curves.get(name)), None)
        for name, curve in curves.items():
            if not curve:
                continue
            style = "--" if name.startswith("floor") else "-"
            width = 2.2 if name in OWN else 1.2
            look = {"color": COLOURS[name], "linestyle": style, "linewidth": width, "marker": "."}
            upper.loglog(curve.keys(), curve.values(), label=results.label(name), **look)
            shared = [size for size in curve if reference and size in curves[reference]]
            if reference and shared:
                ratios = [curve[size] / curves[reference][size] for size in shared]
                lower.loglog(shared, ratios, **look)
        upper.set_title(f"{collective} {dtype}, {ranks} rank{'s' if ranks > 1 else ''}")
        upper.set_ylabel("median time per call, µs")
        if reference:
            lower.set_ylabel(f"time / {results.label(reference)}", fontsize="small")
        lower.set_xlabel("size, bytes")
        for panel in (upper, lower):
            panel.grid(True, which="major", alpha=0.3)
    # Some libraries run with some rank counts only: the legend is the union of the panels'.
    lines = [line for panel in panels[0] for line in panel.get_lines()]
    legend = {line.get_label(): line for line in lines}
    figure.legend(legend.values(), legend.keys(), loc="outside right upper", fontsize="small")
    name = f"collectives_{collective}_{dtype}.png"
    figure.savefig(folder / name, dpi=110)
    plt.close(figure)
    return name


def _curve(rows: Sequence[tuple[int, Row]], name: str) -> dict[int, float]:
    curve = {}
    for size, row in rows:
        tag = tag_of_case(row)
        if name in row and tag in row[name]["by_tag"]:
            curve[size] = row[name]["by_tag"][tag]["median_us"]
    return curve


def collective_text(results: Results, collective: str, folder: Path) -> str:
    """All tables and plots of one collective."""
    parts = [f"## {collective}\n"]
    done: set[str] = set()
    for dtype, ranks in results.sections(collective):
        if dtype not in done:
            done.add(dtype)
            picture = plot(results, collective, dtype, folder)
            if picture:
                parts.append(f"![{collective} {dtype}]({picture})\n")
        rows = results.rows(collective, dtype, ranks)
        parts.append(f"### {collective}, {dtype}, {ranks} rank{'s' if ranks > 1 else ''}\n")
        parts.append(time_table(results, rows))
        parts += [text for own in OWN if (text := ratio_table(results, rows, own))]
        parts.append(detail_table(results, rows))
    words = notes(results, collective)
    if words:
        parts.append(f"Without figures:\n\n{words}\n")
    return "\n".join(part for part in parts if part)


def introduction(results: Results) -> str:
    """Machine, libraries, core states, and how to read and repeat the figures."""
    content = results.content
    machine = content["environment"]
    libraries = [
        [
            library["label"],
            library.get("version", "–"),
            f"absent: {library['absent']}" if "absent" in library else library["settings"],
        ]
        for library in content["libraries"].values()
    ]
    states = [
        [
            state["tag"],
            f"{state['median_flag_ns']:.0f}",
            "–" if state["upper_flag_ns"] is None else f"{state['upper_flag_ns']:.0f}",
            f"{state['median_compute_ratio']:.2f}",
            f"{state['share_of_quiet_probes']:.0%}",
        ]
        for state in content["core_states"]
    ]
    return f"""# Collectives: smddp beside its peers

<!-- Written by benchmarks/collectives/report.py; edit that, not this page. -->

Measured on {content["date"]} with

    {content["command"]}
    python benchmarks/collectives/report.py

{machine_words(machine)}, transparent huge pages `{machine["transparent_huge_pages"]}`, \
{package_words(machine)}, {machine["compiler"]}.

Libraries take turns inside one run, {content["rounds"]} rounds per case; the waiting ones sleep. \
A sample is the mean of one batch of calls on the slowest rank. Results are verified before and \
after the turns. What the sizes mean, what the floor is and why the core state matters:
[benchmarks/collectives](../../benchmarks/collectives/README.md).

{table(["Library", "Version", "Settings"], libraries, 3)}
Core states found by {content["probes"]} probes in this run; only turns of one state are compared:

{table(["State", "Flag, median ns", "Up to ns", "Compute ratio", "Share"], states)}"""


def write(results: Results, folder: Path) -> list[Path]:
    """Write all pages; all_reduce on the main page, every other collective on its own.

    A run of the cases that the targets need has too few sizes for these: it gives their page alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = target_page(results.content, results.by_case)
    if results.content.get("extent") == "targets":
        if text is None:
            return []
        page = folder / "targets.md"
        page.write_text(text)
        return [page]
    measured = [name for name in COLLECTIVES if results.sections(name)]
    pages = []
    others = [name for name in measured if name != "all_reduce"]
    main_parts = [introduction(results)]
    if others:
        links = ", ".join(f"[{name}](collectives_{name}.md)" for name in others)
        main_parts.append(f"Other collectives of the same run: {links}.\n")
    if "all_reduce" in measured:
        main_parts.append(collective_text(results, "all_reduce", folder))
    pages.append(folder / "collectives.md")
    pages[0].write_text("\n".join(main_parts))
    for name in others:
        page = folder / f"collectives_{name}.md"
        opening = f"# {name}\n\nMachine, libraries, method: [collectives](collectives.md).\n\n"
        page.write_text(opening + collective_text(results, name, folder))
        pages.append(page)
    return pages


def main() -> int:
    """Write the pages from the result file named on the command line, by default the newest."""
    content, folder = read_for_report(HERE, __doc__.splitlines()[0])
    for page in write(Results(content), folder):
        print(f"wrote {page.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
