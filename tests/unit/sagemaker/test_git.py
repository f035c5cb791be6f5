# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Sources in a git repository (launch specification, 2.1 and 3.1)."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.sagemaker.git import Code, checked_out

if shutil.which("git") is None:
    pytest.skip("git is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where clones go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def git(repo: Path, *words: str) -> str:
    settings = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=trunk"]
    return subprocess.run(
        ["git", *settings, "-C", str(repo), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Three versions of train.py: the first commit, the branch `other`, and the default branch."""
    repo = tmp_path / "repo"
    (repo / "src").mkdir(parents=True)
    git(repo, "init", "--quiet")
    for version in ("first", "other", "last"):
        if version == "other":
            git(repo, "checkout", "--quiet", "-b", "other")
        if version == "last":
            git(repo, "checkout", "--quiet", "trunk")
        (repo / "src" / "train.py").write_text(version)
        (repo / "lib").write_text("")
        git(repo, "add", ".")
        git(repo, "commit", "--quiet", "-m", version)
        git(repo, "tag", f"at-{version}")
    return repo


@pytest.mark.parametrize(
    ("changed", "version"),
    [
        ({}, "last"),  # the repository's own default branch
        ({"branch": "other"}, "other"),
        ({"branch": "other", "commit": "FIRST"}, "first"),
        ({"commit": "at-other"}, "other"),
    ],
)
def test_what_is_checked_out(
    repo: Path, temporary: Path, changed: dict[str, str], version: str
) -> None:
    if changed.get("commit") == "FIRST":
        changed = {**changed, "commit": git(repo, "rev-parse", "at-first")}
    code = Code("train.py", "src", ["lib"])
    with checked_out({"repo": f"file://{repo}", **changed}, code) as there:
        assert there.source_dir is not None
        assert there.entry_point == "train.py"
        assert Path(there.source_dir, "train.py").read_text() == version
        assert Path(there.dependencies[0]).is_file()
    with checked_out({"repo": str(repo), **changed}, Code("src/train.py", None, ())) as there:
        assert there.source_dir is None
        assert Path(there.entry_point).read_text() == version
    assert os.listdir(temporary) == [], "the clones are removed"


def test_without_a_config_nothing_is_done() -> None:
    code = Code("train.py", None, ())
    with checked_out(None, code) as there:
        assert there is code


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"branch": "nothing"}, r"branch 'nothing', cannot be checked out: git ended.*nothing"),
        ({"commit": "nothing"}, r"commit 'nothing', cannot be checked out: git ended"),
        ({"commit": "--help"}, r"commit '--help', cannot be checked out"),
        ({"branch": "--upload-pack=touch x"}, "cannot be checked out"),
        ({"repo": "file:///nowhere"}, r"'file:///nowhere', cannot be checked out: git ended"),
        ({"repo": "--upload-pack=x"}, "expected https://HOST/PATH"),
        ({"repo": "ext::sh -c id"}, "expected https://HOST/PATH"),
        ({"repo": "relative/path"}, "expected https://HOST/PATH"),
        ({"repo": ""}, "has no repo"),
        ({"repo": 3}, "repo of git_config is 3; expected text"),
        ({"branch": "a\nb"}, "branch of git_config has a line feed"),
        ({"breadth": "a"}, "git_config has 'breadth'; expected repo, branch"),
        ({"2FA_enabled": "yes"}, "2FA_enabled of git_config is 'yes'; expected True or False"),
        ({"password": 12345}, "password of git_config is of another type; expected text"),
        ({"username": "me"}, "one of username and password"),
        ({"password": "secret"}, "one of username and password"),
        ({"2FA_enabled": True, "username": "u", "password": "secret"}, "expected a token"),
        ({"repo": "https://u:secret@host/x"}, "has a password in it"),
    ],
)
def test_what_cannot_be_checked_out(
    repo: Path, temporary: Path, changed: dict[str, Any], text: str
) -> None:
    config = {"repo": f"file://{repo}", **changed}
    with pytest.raises(ConfigurationError, match=text) as raised:  # noqa: SIM117
        with checked_out(config, Code("src/train.py", None, ())):
            pass
    assert "secret" not in str(raised.value)
    assert "12345" not in str(raised.value)
    assert os.listdir(temporary) == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Code("train.py", None, ()), "entry_point 'train.py' is not in the repo"),
        (Code("../repo/src/train.py", None, ()), "entry_point '../repo/src/train.py' is not"),
        (Code("train.py", "nothing", ()), "source_dir 'nothing' is not in the repo"),
        (Code("train.py", "/etc", ()), "source_dir '/etc' is not in the repo"),
        (Code("train.py", "lib", ()), "source_dir 'lib' is a file in the repo"),
        (Code("train.py", "src", ["nothing"]), "dependency 'nothing' is not in the repo"),
    ],
)
def test_paths_that_the_repository_does_not_have(repo: Path, code: Code, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):  # noqa: SIM117
        with checked_out({"repo": f"file://{repo}"}, code):
            pass


def test_a_machine_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="there is no program git"):  # noqa: SIM117
        with checked_out({"repo": "https://host/x"}, Code("train.py", None, ())):
            pass


ASKS = """#!/bin/sh
# In the place of git: keeps the command, and asks for credentials as git would.
echo "$@" >> "$SEEN"
env >> "$SEEN"
for word in "$@"; do
    case $word in
        credential.https://host:8443.helper=*) sh -c "${word#*=!} get" > "$ANSWER";;
    esac
done
for last in "$@"; do :; done
echo "fatal: token-secret is wrong" >&2
exit 128
"""


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"token": "token-secret"}, "username=x-access-token\npassword=token-secret\n"),
        (
            {"token": "token-secret", "2FA_enabled": True, "username": "me", "password": "p w'd"},
            "username=me\npassword=token-secret\n",
        ),
        ({"username": "me", "password": "p w'd"}, "username=me\npassword=p w'd\n"),
    ],
    ids=["token", "both", "password"],  # pytest puts them into a variable
)
def test_secrets_reach_git_by_a_file_alone(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    answer: str,
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(ASKS)
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("ANSWER", str(tmp_path / "answer"))
    config = {"repo": "https://host:8443/x.git", **given}
    with pytest.raises(ConfigurationError, match="status 128") as raised:  # noqa: SIM117
        with checked_out(config, Code("train.py", None, ())):
            pass
    assert (tmp_path / "answer").read_text() == answer
    seen = (tmp_path / "seen").read_text()
    for secret in (given.get("token"), given.get("password")):
        if secret:
            assert secret not in seen, "neither in the command nor in a variable"
    if "token" in given:
        assert "token-secret" not in str(raised.value)
    assert os.listdir(temporary) == []


def test_secrets_are_for_https_alone(repo: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"repo": f"file://{repo}", "token": "secret"}
    with caplog.at_level(logging.WARNING):  # noqa: SIM117
        with checked_out(config, Code("src/train.py", None, ())):
            pass
    assert "are not used: its repo does not begin with https://" in caplog.text
    assert "secret" not in caplog.text.replace("password and token", "")


def test_in_a_hook_of_git_the_repository_is_still_the_one_asked_for(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    git(mine, "init", "--quiet")
    (mine / "work").write_text("mine")
    git(mine, "add", ".")
    git(mine, "commit", "--quiet", "-m", "mine")
    git(mine, "tag", "at-first")
    monkeypatch.setenv("GIT_DIR", str(mine / ".git"))
    for work_tree in ("", str(mine)):
        if work_tree:
            monkeypatch.setenv("GIT_WORK_TREE", work_tree)
        config = {"repo": str(repo), "commit": "at-first"}
        with checked_out(config, Code("src/train.py", None, [])) as code:
            assert Path(code.entry_point).read_text() == "first"
    monkeypatch.undo()
    assert git(mine, "symbolic-ref", "HEAD") == "refs/heads/trunk", "which was checked out"
