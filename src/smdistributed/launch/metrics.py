# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics that regular expressions find in what ranks print.

Source: launch specification, section 8.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from smdistributed._common.errors import ConfigurationError

__all__ = ["MetricDefinition", "Scanner", "without_prefix"]

MOST_DEFINITIONS = 40
MOST_NAME = 255
MOST_REGEX = 500

# "[1,mpirank:3,algo-1]<stdout>:", "[1,3]<stderr>:" as MPI's launchers write it, and smddprun's
# "[rank 3] ".
_PREFIX = re.compile(r"\[(?:1,(?:mpirank:)?\d+(?:,algo-\d+)?\]<std(?:out|err)>:?|rank \d+\]) ?")


class MetricDefinition(NamedTuple):
    """What a metric is called, and how it is found.

    Attributes:
        name: of the metric.
        regex: is searched for in each line; its first group is the value.
    """

    name: str
    regex: re.Pattern[str]

    @classmethod
    def all_of(cls, definitions: Sequence[Mapping[str, str]]) -> list[MetricDefinition]:
        """Those of an estimator's `metric_definitions`.

        Raises:
            ConfigurationError: one cannot work; names it.
        """
        if len(definitions) > MOST_DEFINITIONS:
            raise ConfigurationError(
                f"metric_definitions has {len(definitions)} entries; expected at most"
                f" {MOST_DEFINITIONS}."
            )
        return [cls._of(number, each) for number, each in enumerate(definitions)]

    @classmethod
    def _of(cls, number: int, definition: Mapping[str, str]) -> MetricDefinition:
        where = f"metric_definitions[{number}]"
        try:
            name, regex = definition["Name"], definition["Regex"]
        except (LookupError, TypeError):
            raise ConfigurationError(
                f"{where} is {definition!r:.200}; expected a dict with 'Name' and 'Regex'."
            ) from None
        for what, text, most in (("Name", name, MOST_NAME), ("Regex", regex, MOST_REGEX)):
            if type(text) is not str or not 1 <= len(text) <= most:
                raise ConfigurationError(
                    f"{where} has {what} {text!r:.200}; expected text of 1 to {most} characters."
                )
        try:
            pattern = re.compile(regex)
        except re.error as error:
            raise ConfigurationError(
                f"{where} has Regex {regex!r}, which is no regular expression ({error}); expected"
                " one with a group for the value, such as 'loss: ([0-9.]+)'."
            ) from None
        if pattern.groups == 0:
            raise ConfigurationError(
                f"{where} has Regex {regex!r} without a group; expected one, in parentheses, for"
                " the value, such as 'loss: ([0-9.]+)'."
            )
        return cls(name, pattern)


class Scanner:
    """Finds metrics in lines.

    Args:
        definitions: of the metrics.
        rank: the only one whose lines count; None: those of all.
    """

    def __init__(self, definitions: Sequence[MetricDefinition], rank: int | None = None) -> None:
        self._definitions = definitions
        self._rank = rank

    def found(self, line: str, rank: int | None = None) -> Iterator[tuple[str, float]]:
        """Names and values in a line; what is no finite number is left out.

        Args:
            line: as a rank has printed it, with or without a launcher's prefix.
            rank: that printed it, if that is known.
        """
        if self._rank is not None and rank is not None and rank != self._rank:
            return
        line = without_prefix(line)
        for name, regex in self._definitions:
            match = regex.search(line)
            value = _number(match[1]) if match else None
            if value is not None:
                yield name, value


def without_prefix(line: str) -> str:
    """A line as the rank has printed it."""
    match = _PREFIX.match(line)
    return line[match.end() :] if match else line


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
