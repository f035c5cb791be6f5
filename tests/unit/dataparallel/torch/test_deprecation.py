# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Warnings of the legacy modules: once, at the user's line, visible by default."""

from __future__ import annotations

import inspect
import warnings

import pytest

from smdistributed.dataparallel.torch import deprecation


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecation, "_told", set())


def test_once_per_text() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for text in ("first", "second", "first"):
            deprecation.warn_legacy(text)
    assert [str(w.message) for w in caught] == ["first", "second"]
    assert {w.category for w in caught} == {deprecation.LegacyModuleWarning}


def test_it_points_at_the_line_outside_of_the_library() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = inspect.stack()[0].lineno + 1
        deprecation.warn_legacy("here")
    assert caught[0].filename == __file__
    assert caught[0].lineno == line


def test_pythons_default_filters_show_it_and_a_users_filter_hides_it() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        deprecation.warn_legacy("shown")
        warnings.filterwarnings("ignore", category=deprecation.LegacyModuleWarning)
        deprecation.warn_legacy("hidden")
    assert [str(w.message) for w in caught] == ["shown"]
