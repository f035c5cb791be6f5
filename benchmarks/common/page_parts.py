# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of the reports' pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[str], lines: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """A Markdown table; the first ``text_columns`` to the left, the others to the right."""
    rule = [":--"] * text_columns + ["--:"] * (len(header) - text_columns)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines)) + "\n"


def number(value: float) -> str:
    """Three significant digits, no exponent: ``0.91``, ``17.2``, ``4649``."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def machine_words(machine: dict[str, Any]) -> str:
    """Processor, memory and kernel, from the ``environment`` of a result file."""
    extensions = ", ".join(machine["vector_extensions"]) or "no vector extensions"
    return (
        f"{machine['cpu_model']} (family/model/stepping {machine['cpu_family_model_stepping']}, "
        f"{extensions}), {machine['cpus']} CPUs{', virtual' if machine['hypervisor'] else ''}, "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}"
    )


def package_words(machine: dict[str, Any]) -> str:
    """Python and packages, from the ``environment`` of a result file."""
    packages = ", ".join(f"{name} {found}" for name, found in machine["packages"].items())
    return f"Python {machine['python']}, {packages}"
