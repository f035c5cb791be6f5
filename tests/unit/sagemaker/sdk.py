# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The published SDK, which is read and never imported: what it needs is not installed.

`make env` puts it into `.venv/sdk`, with botocore and what that needs.
"""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

FOLDER = Path(sys.prefix) / "sdk"


def sdk_folder() -> Path:
    """Where it is; a test fails where it is not."""
    assert (FOLDER / "sagemaker").is_dir(), f"{FOLDER} has no SDK; `make env` puts it there"
    assert (FOLDER / "botocore").is_dir(), f"{FOLDER} has no botocore; `make env` puts it there"
    return FOLDER


@functools.cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse((sdk_folder() / "sagemaker" / file).read_text(encoding="utf-8"))
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}


class SdkMethod:
    """How the SDK's method is called.

    Attributes:
        positions: names of its arguments, in order, without the first.
        defaults: values of those whose default is plain.
        takes_more: it has `**kwargs`.
    """

    def __init__(self, function: ast.FunctionDef, is_static: bool) -> None:
        given = function.args
        names = [each.arg for each in given.posonlyargs + given.args][0 if is_static else 1 :]
        self.positions = names
        self.keywords = [each.arg for each in given.kwonlyargs]
        self.takes_more = given.kwarg is not None
        self.defaults: dict[str, object] = {}
        # Of the last arguments.
        for name, value in zip(reversed(names), reversed(given.defaults), strict=False):
            if isinstance(value, ast.Constant):
                self.defaults[name] = value.value


def sdk_methods(file: str, name: str) -> dict[str, SdkMethod]:
    """Public methods of a class, and its constructor, as its own body has them."""
    found = {}
    for each in _classes(file)[name].body:
        if not isinstance(each, ast.FunctionDef):
            continue
        if each.name.startswith("_") and each.name != "__init__":
            continue
        marks = {getattr(mark, "id", getattr(mark, "attr", "")) for mark in each.decorator_list}
        if not marks & {"property", "setter", "abstractmethod"}:
            found[each.name] = SdkMethod(each, "staticmethod" in marks)
    return found
