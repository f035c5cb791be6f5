# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The user's `config.toml` (launch specification, 5 and 11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home

FILE = """
default_backend = "local"

[file_systems.FSxLustre.fs-1]
"/abcd" = "/mnt/fsx"
"/abcd/deep/er" = "/mnt/deeper"

[file_systems.EFS.fs-1]
"/" = "/mnt/efs"
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "config.toml").write_text(FILE)
    return Home(tmp_path)


def test_without_a_file_it_is_this_machine(tmp_path: Path) -> None:
    assert Settings.of(Home(tmp_path / "nothing")).default_backend == "local"


@pytest.mark.parametrize(
    ("kind", "directory", "place"),
    [
        ("FSxLustre", "/abcd", "/mnt/fsx"),
        ("FSxLustre", "/abcd/data/x/", "/mnt/fsx/data/x"),
        ("FSxLustre", "/abcd/deep/er/x", "/mnt/deeper/x"),  # the longest counts
        ("FSxLustre", "/abcd/deep/erx", "/mnt/fsx/deep/erx"),  # and whole folders
        ("EFS", "/", "/mnt/efs"),
        ("EFS", "/x", "/mnt/efs/x"),
    ],
)
def test_where_a_directory_is(home: Home, kind: str, directory: str, place: str) -> None:
    assert Settings.of(home).place_of(kind, "fs-1", directory) == Path(place)


def test_what_is_not_mounted_names_the_id_the_file_and_the_line(home: Home) -> None:
    settings = Settings.of(home)
    expected = (
        rf"fs-2 \(EFS\) is not mounted for '/data/x', as far as {home.config} says; expected there,"
        r' under \[file_systems.EFS.fs-2\], the line "/data" = "/where/it/is/mounted"'
    )
    with pytest.raises(ConfigurationError, match=expected):
        settings.place_of("EFS", "fs-2", "/data/x")
    with pytest.raises(ConfigurationError, match=r"under \[file_systems.FSxLustre.fs-1\]"):
        settings.place_of("FSxLustre", "fs-1", "/other")
    with pytest.raises(ConfigurationError, match="starts with the name of the mount"):
        settings.place_of("FSxLustre", "fs-1", "/")
    for wrong in ("x", "/x/../y", ""):
        with pytest.raises(ConfigurationError, match="expected an absolute path without"):
            settings.place_of("EFS", "fs-1", wrong)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("default_backend = 'local'\nx = \n", r"at line 2, column 5"),
        ("[file_systems.EFS.fs-1]\n'/a/' = '/x'\n'/a' = '/y'", "has '/a' twice, once with a slash"),
        ("backend = 'local'", "has the key 'backend', which nobody knows"),
        ("default_backend = 'none'", "is 'none'; expected one of 'local'"),
        ("default_backend = 1", "is 1; expected one of 'local'"),
        ("file_systems = 1", "file_systems in .* is 1; expected tables"),
        ("[file_systems.NFS.x]", "file_systems.NFS in .* is of no known type"),
        ("[file_systems.EFS]\nfs-1 = '/mnt'", "file_systems.EFS.fs-1 in .* is '/mnt'; expected"),
        ("[file_systems.EFS.fs-1]\n'/' = 'mnt'", "has '/' = 'mnt'; expected"),
        ("[file_systems.EFS.fs-1]\nx = '/mnt'", "has 'x' = '/mnt'; expected"),
        ("[file_systems.EFS.fs-1]\n'/' = '/a/../b'", "expected"),
        ("[file_systems.EFS.fs-1]\n'/' = 2", "has '/' = 2; expected"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, text: str, what: str) -> None:
    home = Home(tmp_path)
    home.config.write_text(text)
    with pytest.raises(ConfigurationError, match=what) as raised:
        Settings.of(home)
    assert str(home.config) in str(raised.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.config.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Settings.of(home)
