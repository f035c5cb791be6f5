# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The table `ssh` of the settings: machines that can be logged in to, and how.

[ssh]
hosts = ["gpu-1", "gpu-2"]        # as `ssh` knows them; in the order of the job's hosts
python = "/opt/train/bin/python"  # which has this package; as it is called there
shared = ["/mnt/data"]            # folders that the machines have at the same path
command = ["ssh"]                 # with options of one's own

[ssh.addresses]                   # where the machines reach one another, if not as `ssh` does
gpu-1 = "10.0.0.1"
"""

from __future__ import annotations

import dataclasses
import ipaddress
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home

__all__ = ["SshSettings", "for_a_shell", "is_name"]

# Beside what a user's own configuration says; nobody is there to type a password.
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=8"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
_COURIER = ("-P", "-m", "smdistributed.launch.courier.host")


@dataclasses.dataclass(frozen=True)
class SshSettings:
    """What the table `ssh` of the settings says.

    Attributes:
        hosts: machines, as `ssh` knows them.
        python: with this package, as it is called there.
        shared: folders that the machines have at the same path as this one.
        command: of the client.
        addresses: by machine, at which the others reach it.
    """

    hosts: tuple[str, ...]
    python: str = "python3"
    shared: tuple[Path, ...] = ()
    command: tuple[str, ...] = ("ssh",)
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, home: Home, hosts: Sequence[str] | None = None) -> SshSettings:
        """Reads them.

        Args:
            home: has the settings.
            hosts: machines in the place of those of the settings.

        Raises:
            ConfigurationError: they are wrong, or name no machine; says which key.
        """
        settings = Settings.of(home)
        table = dict(settings.tables["ssh"])
        named = table.get("hosts", [])
        if hosts is not None:
            table["hosts"] = list(hosts)
        found: dict[str, Any] = {}
        for key in ("hosts", "shared", "command"):
            if key in table:
                found[key] = tuple(_texts(settings.file, key, table.pop(key)))
        if "python" in table:
            (found["python"],) = _texts(settings.file, "python", [table.pop("python")])
        addresses = table.pop("addresses", {})
        if not isinstance(addresses, dict):
            raise _wrong(settings.file, "addresses", addresses, "a table of addresses by machine")
        for host, address in addresses.items():
            if host not in (*found.get("hosts", ()), *named):
                raise _wrong(settings.file, "addresses", host, "names that ssh.hosts has")
            _require_address(settings.file, host, address)
        if table:
            key = next(iter(table))
            raise ConfigurationError(
                f"ssh.{key} in {settings.file} is a key that nobody knows; expected hosts, python,"
                " shared, command and addresses. Remove it, or correct its name."
            )
        if not found.get("hosts"):
            raise ConfigurationError(
                f"the backend 'ssh' has no machines: {settings.file} has no ssh.hosts; expected"
                ' there, under [ssh], a line such as hosts = ["gpu-1", "gpu-2"]. Add it.'
            )
        for host in found["hosts"]:
            if not is_name(host):
                raise _wrong(settings.file, "hosts", host, "names as ssh takes them")
        if len(set(found["hosts"])) < len(found["hosts"]):
            raise _wrong(settings.file, "hosts", list(found["hosts"]), "each machine once")
        for path in found.get("shared", ()):
            if not Path(path).is_absolute():
                raise _wrong(settings.file, "shared", path, "absolute paths")
        found["shared"] = tuple(Path(each) for each in found.get("shared", ()))
        return cls(**found, addresses=addresses)

    def courier(self, host: str) -> list[str]:
        """The command that runs a courier on a machine, on the standard input and output."""
        return self.on(host, f"exec {for_a_shell(self.python)} {shlex.join(_COURIER)}")

    def on(self, host: str, command: str) -> list[str]:
        """What runs a shell's command on a machine, on the standard input and output."""
        return [*self.command, *_OPTIONS, "--", host, command]

    def trial(self, host: str) -> str:
        """What a person types to see whether a machine can run a courier."""
        return self.by_hand(
            host, f"{for_a_shell(self.python)} -c 'import smdistributed.launch.courier.host'"
        )

    def by_hand(self, host: str, command: str) -> str:
        """What a person types to run a shell's command on a machine."""
        return shlex.join([*self.command, "-o", "BatchMode=yes", host, command])


def is_name(host: str) -> bool:
    """Whether ssh takes it for a machine, and for no option."""
    return bool(host) and not host.startswith("-") and not any(map(str.isspace, host))


def for_a_shell(path: str) -> str:
    """A program's path, quoted for a shell, which is to know the home directory by itself."""
    if path.startswith("~/"):
        return "~/" + shlex.quote(path[2:])
    return shlex.quote(path)


def _texts(file: Path, key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(type(each) is str for each in value):
        expected = "text" if key == "python" else "a list of texts"
        raise _wrong(file, key, value, expected)
    return value


def _require_address(file: Path, host: str, address: Any) -> None:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise _wrong(file, f"addresses.{host}", address, "an IP address") from None


def _wrong(file: Path, key: str, value: Any, expected: str) -> ConfigurationError:
    return ConfigurationError(f"ssh.{key} in {file} is {value!r:.200}; expected {expected}.")
