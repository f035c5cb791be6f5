# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where jobs, buckets and endpoints of this user lie: `SMD_HOME`, else `~/.smdistributed`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from smdistributed._common.errors import ConfigurationError

__all__ = ["HOME", "Home", "home_directory"]

HOME = "SMD_HOME"
"""Variable: the directory, an absolute path."""


class Home:
    """The folders of one user. Nothing is made before it is needed.

    Args:
        root: the directory.

    Attributes:
        jobs, buckets, endpoints: a folder for each job, bucket and endpoint.
        cluster: of the cluster that was started from here, if there is one.
        config: settings, `config.toml`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs = root / "jobs"
        self.buckets = root / "buckets"
        self.endpoints = root / "endpoints"
        self.cluster = root / "cluster"
        self.config = root / "config.toml"

    def make(self) -> None:
        """Makes the folders of jobs and buckets, for their user alone, whatever the umask.

        Raises:
            OSError: they cannot be made.
        """
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for path in (self.root, self.jobs, self.buckets):
            path.mkdir(mode=0o700, exist_ok=True)


def home_directory(environ: Mapping[str, str] | None = None) -> Home:
    """The home that the environment names.

    Args:
        environ: the variables; None: those of this process.

    Raises:
        ConfigurationError: there is none, or it is no absolute path.
    """
    environ = os.environ if environ is None else environ
    given = environ.get(HOME)
    if given:
        if not os.path.isabs(given):
            raise ConfigurationError(
                f"{HOME} is {given!r}; expected an absolute path, as processes of one job work in"
                " different directories."
            )
        return Home(Path(given))
    user = environ.get("HOME")
    if not user or not os.path.isabs(user):
        raise ConfigurationError(
            f"HOME is {user!r}, so there is no place for jobs; expected the user's directory. Set"
            f" {HOME} to a directory of yours, such as {HOME}=/data/$USER/smdistributed."
        )
    return Home(Path(user) / ".smdistributed")
