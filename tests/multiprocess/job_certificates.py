# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Authorities and certificates for jobs, made with the commands of docs/security.md.

So those commands are tested as well. Needs the `openssl` command.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "security.md"

# Paths of a certificate, its key and the authority's certificate.
TlsFiles = tuple[str, str, str]


def make_authority(folder: Path, name: str = "job authority") -> Path:
    """Make the authority of one job in `folder`, which is made if need be."""
    folder.mkdir(exist_ok=True)
    _run(_documented_commands()[0].replace("/CN=job authority", f"/CN={name}"), folder)
    return folder


def make_files(authority: Path, name: str = "rank", valid_days: int = 30) -> TlsFiles:
    """Make a certificate `name`.pem of that authority, beside it."""
    for command in _documented_commands()[1:]:
        command = command.replace("rank.", f"{name}.").replace("-days 30", f"-days {valid_days}")
        _run(command, authority)
    return str(authority / f"{name}.pem"), str(authority / f"{name}.key"), str(authority / "ca.pem")


def settings_of(files: TlsFiles) -> dict[str, str]:
    return dict(zip(("SMDDP_TLS_CERT", "SMDDP_TLS_KEY", "SMDDP_TLS_CA"), files, strict=True))


def _documented_commands() -> list[str]:
    commands = re.findall(r"^\$ (openssl (?:req|x509) .*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) == 3, "docs/security.md promises three commands"
    return commands


def _run(command: str, folder: Path) -> None:
    subprocess.run(shlex.split(command), cwd=folder, check=True, capture_output=True)
