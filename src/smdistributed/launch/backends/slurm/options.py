# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a job asks of Slurm: options of `sbatch`, of the request and of the table `[slurm]`.

    [slurm]
    partition = "gpu"
    account = "vision"
    qos = "long"
    gpus_per_node = 8
    cpus_per_node = 64
    options = ["--constraint=ib", "--mail-type=END"]

Source: launch specification, section 11.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.limits import Limits
from smdistributed.launch.data.settings import Settings

__all__ = ["SlurmOptions"]

# Slurm's limit is a net for jobs whose process hangs. It must not come before ours: data come and
# artifacts go beside the training.
_MARGIN_S = 3600
_TEXTS = ("partition", "account", "qos")
_NUMBERS = ("gpus_per_node", "cpus_per_node")
# These are what makes a job one of ours.
_OURS = (
    *("--nodes", "-N", "--ntasks", "-n", "--ntasks-per-node", "--time", "-t", "--output", "-o"),
    *("--error", "-e", "--input", "-i", "--wrap", "--array", "-a", "--parsable", "--export"),
    *("--requeue", "--no-requeue", "--open-mode", "--chdir", "-D", "--test-only", "--wait", "-W"),
    *("--job-name", "-J"),
    *("--clusters", "-M"),  # other commands would ask the cluster at hand
)


@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """What the table says.

    Attributes:
        partition, account, qos: as Slurm calls them; empty: Slurm's default.
        gpus_per_node, cpus_per_node: that a job gets of each node; with neither it has whole nodes.
        options: more of `sbatch`.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    options: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> SlurmOptions:
        """Reads the table.

        Raises:
            ConfigurationError: it is wrong; names the file and the key.
        """
        table: Mapping[str, Any] = settings.tables["slurm"]
        known = (*_TEXTS, *_NUMBERS, "options")
        for key, value in table.items():
            if key in _TEXTS:
                is_right, expected = isinstance(value, str) and bool(value), "a text"
            elif key in _NUMBERS:
                is_right, expected = type(value) is int and value > 0, "a whole number from 1"
            elif key == "options":
                is_right = isinstance(value, list) and all(map(_is_option, value))
                expected = 'a list of options of sbatch, each one text, such as "--constraint=ib"'
            else:
                raise _wrong(settings.file, key, value, f"one of the keys {', '.join(known)}")
            if not is_right:
                raise _wrong(settings.file, key, value, expected)
        for option in table.get("options", ()):
            name = option.partition("=")[0]
            if not name.startswith("--"):
                name = name[:2]
            if any(each.startswith(name) for each in _OURS):  # a beginning is as good as the whole
                raise _wrong(
                    settings.file, "options", option, "none of those that this library gives itself"
                )
        return cls(**{**table, "options": tuple(table.get("options", ()))})

    def of_job(self, name: str, num_hosts: int, limits: Limits, log: Path) -> list[str]:
        """All options of `sbatch` for a job.

        Args:
            name: of the job.
            num_hosts: nodes.
            limits: of the job.
            log: what its process prints.

        Raises:
            ConfigurationError: Slurm cannot write there.
        """
        if "\\" in str(log):
            raise ConfigurationError(
                f"{log} has a backslash in its name, which Slurm takes away from it; expected a"
                " path without. Set SMD_HOME to such a one."
            )
        minutes = math.ceil((limits.max_run_s + _MARGIN_S) / 60)
        found = [
            f"--job-name={name}",
            f"--nodes={num_hosts}",
            "--ntasks-per-node=1",
            f"--time={minutes}",
            f"--output={str(log).replace('%', '%%')}",
            "--open-mode=append",
            "--export=ALL",
            "--chdir=/",
            # A node that is lost need not end the job: its process may try again.
            "--no-kill",
            "--requeue" if limits.is_spot or limits.retries else "--no-requeue",
        ]
        if self.gpus_per_node is None and self.cpus_per_node is None:
            found += ["--exclusive", "--mem=0"]
        if self.gpus_per_node is not None:
            found.append(f"--gpus-per-node={self.gpus_per_node}")
        if self.cpus_per_node is not None:
            found.append(f"--cpus-per-task={self.cpus_per_node}")
        for key in _TEXTS:
            if value := getattr(self, key):
                found.append(f"--{key}={value}")
        return [*found, *self.options]


def _is_option(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("-") and "\0" not in value


def _wrong(file: Path, key: str, value: Any, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"slurm.{key} in {file} is {value!r:.200}; expected {expected}. Correct it."
    )
