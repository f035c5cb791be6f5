# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages: from here to the driver, and back from there.

Standard library only.
"""

from __future__ import annotations

import dataclasses
import json

__all__ = ["NAMESPACE", "Outcome", "Unwanted", "Wanted", "keeper_of", "route_of"]

NAMESPACE = "smdistributed"
"""Of the actors that are ours."""

_MARK = "smd-outcome "


def route_of(application: str) -> str:
    """The prefix of its routes."""
    return f"/smd/{application}"


def keeper_of(application: str) -> str:
    """The name of the actor that keeps its package on the cluster, and what its replicas say."""
    return f"smd-serve-{application}"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """An application that is to be there.

    Attributes:
        application: its name, which nobody else has.
        package: URI of the package.
        instances: how many replicas.
        cpus, gpus: that Ray keeps free for each.
        port: of Serve, if it does not run yet.
        version: of this package here.
    """

    application: str
    package: str
    instances: int
    cpus: int
    gpus: int
    port: int
    version: str


@dataclasses.dataclass(frozen=True)
class Unwanted:
    """An application that is to go."""

    application: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What has become of what was wanted; also of a process that was to load a model.

    Attributes:
        problem: why it failed; empty if it did not.
        log: the end of what the model's functions have printed.
        port: where the process listens, on its machine.
    """

    problem: str = ""
    log: str = ""
    port: int = 0

    def to_line(self) -> str:
        """A line of ASCII, without its end."""
        return _MARK + json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Outcome | None:
        """The last one among other lines; None if there is none."""
        for line in reversed(text.splitlines()):
            if line.startswith(_MARK):
                return cls(**json.loads(line.removeprefix(_MARK)))
        return None
