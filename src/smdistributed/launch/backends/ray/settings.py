# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the table `ray` of the settings says.

    [ray]
    address = "http://head:8265"      # of the Jobs API; else RAY_ADDRESS
    python = "python"                 # which has this package, as nodes call it
    cpus_per_host = 4                 # of a bundle; without: 1
    gpus_per_host = 8                 # without: 0
    shared = ["/mnt/data"]            # folders that nodes have at the same path
    serve_address = "http://head:8000"    # of Ray Serve; without: the host of address, and its port

Source: launch specification, section 11.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home

__all__ = ["RaySettings"]

_KEYS: dict[str, type] = {
    "address": str,
    "python": str,
    "cpus_per_host": int,
    "gpus_per_host": int,
    "shared": list,
    "serve_address": str,
}
_NAMES = {str: "text", int: "a whole number from 0", list: "a list of absolute paths"}


@dataclasses.dataclass(frozen=True)
class RaySettings:
    """Attributes are as in the module's text."""

    address: str
    python: str = "python"
    cpus_per_host: int = 1
    gpus_per_host: int = 0
    shared: tuple[Path, ...] = ()
    serve_address: str = ""

    @classmethod
    def of(cls, home: Home, environ: Mapping[str, str] | None = None) -> RaySettings:
        """Reads them.

        Args:
            home: has the settings.
            environ: the variables; None: those of this process.

        Raises:
            ConfigurationError: they are wrong, or there is no address; says which key.
        """
        environ = os.environ if environ is None else environ
        settings = Settings.of(home)
        found = _found(settings)
        address = found.pop("address", None) or environ.get("RAY_ADDRESS", "")
        if not address.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"the address of Ray's Jobs API is {address!r}; expected a URL such as"
                f" http://head:8265, as address under [ray] in {settings.file}, or in the variable"
                " RAY_ADDRESS."
            )
        made = cls(address, **found)
        if made.serve_address:
            _require_http(made.serve_address, settings.file)
        return made

    @classmethod
    def python_of(cls, home: Home) -> str:
        """The key `python` alone, for who has no address yet.

        Raises:
            ConfigurationError: the settings are wrong; says which key.
        """
        return str(_found(Settings.of(home)).get("python", cls.python))


def _found(settings: Settings) -> dict[str, Any]:
    """By its key, what is there."""
    found: dict[str, Any] = {}
    for key, value in settings.tables["ray"].items():
        kind = _KEYS.get(key)
        if kind is None:
            raise ConfigurationError(
                f"ray.{key} in {settings.file} is a key that nobody knows; expected one of"
                f" {', '.join(_KEYS)}. Remove it, or correct its name."
            )
        is_wrong = type(value) is not kind or (isinstance(value, int) and value < 0)
        if isinstance(value, list):
            is_wrong = not all(isinstance(each, str) and each[:1] == "/" for each in value)
        if is_wrong:
            raise ConfigurationError(
                f"ray.{key} in {settings.file} is {value!r:.200}; expected {_NAMES[kind]}."
            )
        found[key] = tuple(map(Path, value)) if kind is list else value
    return found


def _require_http(address: str, file: Path) -> None:
    parts = urllib.parse.urlsplit(address)
    with contextlib.suppress(ValueError):  # of a port that is none
        if parts.scheme == "http" and parts.hostname and parts.path in ("", "/"):
            parts.port  # noqa: B018 - asked whether it is one
            return
    raise ConfigurationError(
        f"ray.serve_address in {file} is {address!r}; expected where Ray Serve listens, such as"
        " http://head:8000."
    )
