# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which files are the user's own."""

from pathlib import Path

import pytest

from smdistributed.dataparallel.torch.shims import questions
from smdistributed.dataparallel.torch.shims.questions import UserFiles


@pytest.mark.parametrize(
    ("filename", "is_users"),
    [
        ("train.py", True),
        ("models/net.py", True),
        ("venv/lib/python3.11/site-packages/torch/cuda/__init__.py", False),
        ("/usr/lib/python3/dist-packages/six.py", False),
        ("../other/train.py", False),
        ("../project2/train.py", False),
        ("<string>", False),
    ],
)
def test_files_around_the_script(tmp_path: Path, filename: str, is_users: bool) -> None:
    project = tmp_path / "project"
    project.mkdir()
    path = filename if filename.startswith("<") else str(project / filename)
    files = UserFiles(project)
    for _ in range(2):  # the second answer is remembered
        assert files.contains("module", path) is is_users


def test_a_project_reached_through_a_link_is_the_same_project(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert UserFiles(tmp_path / "link").contains("module", str(tmp_path / "real" / "a.py"))
    assert UserFiles(tmp_path / "real").contains("module", str(tmp_path / "link" / "a.py"))


def test_this_library_is_never_the_users_own() -> None:
    assert not UserFiles(Path("/")).contains("module", questions.__file__)


@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_the_main_module_is_the_users_even_without_a_file(name: str) -> None:
    assert UserFiles(None).contains(name, "<stdin>")
    assert not UserFiles(None).contains("module", "/anywhere/module.py")
