# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The page and the defaults of settings are those of the list of variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smdistributed._common.settings import Settings
from smdistributed._common.variable_table import VARIABLES, table

_ROOT = Path(__file__).parents[3]
_WORDS = ("", "off", "best", "set by smddprun")  # no texts that a user could write


def test_the_page_has_the_table_of_the_list() -> None:
    page = (_ROOT / "docs/environment.md").read_text(encoding="utf-8")
    assert f"{table()}\n\n" in page, "run python tools/settings_table.py and review the change"


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.names[0])
def test_who_writes_the_default_changes_nothing(variable: tuple[tuple[str, ...], str, str]) -> None:
    (name, *others), default, _ = variable
    if default in _WORDS:
        return
    assert not others
    assert Settings.from_environ({name: default.strip("`")}) == Settings()


def test_every_variable_that_settings_read_is_in_the_list() -> None:
    source = (_ROOT / "src/smdistributed/_common/settings.py").read_text(encoding="utf-8")
    read = set(re.findall(r"\bSMDDP_[A-Z0-9_]*[A-Z0-9]\b", source))
    assert len(read) > 15
    assert read <= {name for variable in VARIABLES for name in variable.names}


def test_names_are_there_once() -> None:
    names = [name for variable in VARIABLES for name in variable.names]
    assert len(names) == len(set(names))
