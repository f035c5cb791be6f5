# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Replacing what others own, and putting it back."""

import types

import pytest

from smdistributed.dataparallel.torch.shims.patches import Patches


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    def own(self) -> str:
        return "own"

    @staticmethod
    def static() -> str:
        return "static"


@pytest.mark.parametrize("name", ["inherited", "own", "static"])
def test_what_a_class_had_comes_back_as_it_was(name: str) -> None:
    before = dict(vars(Owner))
    patches = Patches()
    patches.replace(Owner, name, lambda self: "replaced")
    assert getattr(Owner(), name)() == "replaced"
    assert getattr(Base(), name, None) != getattr(Owner(), name)
    patches.undo()
    assert dict(vars(Owner)) == before
    assert getattr(Owner(), name)() == ("base" if name == "inherited" else name)


def test_wrapping_twice_is_undone_in_reverse() -> None:
    module = types.ModuleType("module")
    module.name = "x"  # type: ignore[attr-defined]
    patches = Patches()
    patches.wrap(module, "name", lambda old: old + "y")
    patches.wrap(module, "name", lambda old: old + "z")
    assert (module.name, len(patches)) == ("xyz", 2)
    patches.undo()
    assert (module.name, len(patches)) == ("x", 0)


def test_a_name_that_is_not_there_is_left_out() -> None:
    module = types.ModuleType("module")
    patches = Patches()
    patches.wrap(module, "name", lambda old: old)
    assert not hasattr(module, "name")
    assert len(patches) == 0
