# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Sources of a job that are in a git repository: `git_config` of an estimator.

The program `git` clones the repository into a temporary folder, which is removed when the sources
have been packed. Secrets are given to git by a file in that folder: no command line has them.

Source: launch specification, sections 2.1 and 3.1.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.log import get_logger

__all__ = ["Code", "checked_out"]

_log = get_logger()

_TEXTS = ("repo", "branch", "commit", "username", "password", "token")
_2FA = "2FA_enabled"
_SECRETS = ("username", "password", "token")
_LAST_LINES = 5
_REPO = re.compile(r"(https?|ssh|file)://.+|[\w.-]+@[\w.-]+:.+|/.+", re.DOTALL)
# Variables that a hook of git has: they would lead to the repository that the hook is of.
_OF_OTHERS = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
)
# For services that take a token in the place of a password, with any name.
_NAME_OF_TOKEN = "x-access-token"


class Code(NamedTuple):
    """Where the sources of a job are, as an estimator's arguments of these names."""

    entry_point: str
    source_dir: str | None
    dependencies: Sequence[str]


@contextlib.contextmanager
def checked_out(git_config: Mapping[str, Any] | None, code: Code) -> Iterator[Code]:
    """The sources as paths that are there, as long as the block lasts.

    Args:
        git_config: None: they are there already; else `repo`, and perhaps `branch`, `commit`,
            `2FA_enabled`, `username`, `password`, `token`.
        code: with paths below the root of the repository, if there is one.

    Raises:
        ConfigurationError: (a ValueError) the config is wrong; there is no `git`; the repository,
            branch or commit cannot be had; or it does not have one of the paths.
    """
    if git_config is None:
        yield code
        return
    config = _checked(git_config)
    if shutil.which("git") is None:
        raise ConfigurationError(
            "git_config is given, and there is no program git on this machine's PATH; expected it."
            " Install it, or clone the repository yourself and give its folder as source_dir."
        )
    with tempfile.TemporaryDirectory(prefix="smd-git-") as folder:
        clone = Path(folder, "repo")
        _clone(config, clone, Path(folder))
        yield _below(clone, code, config["repo"])


def _checked(git_config: Mapping[str, Any]) -> dict[str, Any]:
    config = dict(git_config)
    for name, value in config.items():
        if name not in (*_TEXTS, _2FA):
            raise ConfigurationError(
                f"git_config has {name!r}; expected {', '.join(_TEXTS)} and {_2FA}."
            )
        kind = bool if name == _2FA else str
        if value is not None and not isinstance(value, kind):
            shown = "of another type" if name in _SECRETS else repr(value)
            expected = "True or False" if kind is bool else "text"
            raise ConfigurationError(f"{name} of git_config is {shown}; expected {expected}.")
        if isinstance(value, str) and re.search(r"[\0\r\n]", value):
            raise ConfigurationError(f"{name} of git_config has a line feed; expected one line.")
    repo = config.get("repo")
    if not repo:
        raise ConfigurationError("git_config has no repo; expected the URL of a git repository.")
    if not _REPO.fullmatch(repo):
        raise ConfigurationError(
            f"repo of git_config is {repo!r}; expected https://HOST/PATH, ssh://HOST/PATH,"
            " USER@HOST:PATH, file:///PATH or an absolute path."
        )
    if urlsplit(repo).scheme in ("http", "https") and urlsplit(repo).password:
        raise ConfigurationError(
            "repo of git_config has a password in it, which other processes would see; expected it"
            " as password or token of git_config."
        )
    if config.get(_2FA) and config.get("password") and not config.get("token"):
        raise ConfigurationError(
            f"git_config has {_2FA} and a password; expected a token, as a password alone is not"
            " enough then."
        )
    if bool(config.get("username")) != bool(config.get("password")) and not config.get("token"):
        raise ConfigurationError(
            "git_config has one of username and password; expected both, a token, or none of them."
        )
    return config


def _clone(config: Mapping[str, Any], clone: Path, folder: Path) -> None:
    repo = config["repo"]
    options = _credentials(config, folder)
    branch = [f"--branch={config['branch']}"] if config.get("branch") else []
    _git(config, [*options, "clone", "--quiet", *branch, "--", repo, str(clone)])
    if config.get("commit"):
        # A word that begins with a hyphen would be an option.
        commit = f"{config['commit']}^{{commit}}"
        words = ["rev-parse", "--quiet", "--verify", "--end-of-options", commit]
        found = _git(config, ["-C", str(clone), *words]).strip()
        _git(config, ["-C", str(clone), "checkout", "--quiet", "--detach", found])


def _credentials(config: Mapping[str, Any], folder: Path) -> list[str]:
    """Options by which git reads the secrets from a file, for the host of the repository alone."""
    secret = config.get("token") or config.get("password")
    if not secret:
        return []
    parts = urlsplit(config["repo"])
    if parts.scheme != "https":
        _log.warning(
            "username, password and token of git_config are not used: its repo does not begin with"
            " https://"
        )
        return []
    file = folder / "credentials"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(f"username={config.get('username') or _NAME_OF_TOKEN}\npassword={secret}\n")
    helper = f"!f() {{ cat {shlex.quote(str(file))}; }}; f"
    host = f"https://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    # The user's own helpers are left out: they would keep what is used.
    return ["-c", "credential.helper=", "-c", f"credential.{host}.helper={helper}"]


def _git(config: Mapping[str, Any], words: Sequence[str]) -> str:
    """What git has printed.

    Raises:
        ConfigurationError: it has failed; with its own last lines, without secrets.
    """
    environ = {
        **{key: value for key, value in os.environ.items() if key not in _OF_OTHERS},
        "GIT_TERMINAL_PROMPT": "0",  # nobody would answer
        "GIT_ASKPASS": "true",
        "SSH_ASKPASS": "true",
        "GIT_ALLOW_PROTOCOL": "http:https:ssh:file",
    }
    environ.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    slow = ["-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60"]
    done = subprocess.run(
        ["git", *slow, *words],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return done.stdout
    said = "; ".join(done.stderr.strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
    for name in ("password", "token"):
        if config.get(name):
            said = said.replace(config[name], "...")
    asked = ", ".join(
        f"{name} {config[name]!r}" for name in ("branch", "commit") if config.get(name)
    )
    raise ConfigurationError(
        f"the repo of git_config, {config['repo']!r}{', ' if asked else ''}{asked}, cannot be"
        f" checked out: git ended with status {done.returncode}: {said}; expected a repository,"
        " branch and commit that this user can read."
    )


def _below(clone: Path, code: Code, repo: str) -> Code:
    """The paths of the sources in the clone."""
    root = clone if code.source_dir is None else _there(clone, "source_dir", code.source_dir, repo)
    if not root.is_dir():
        raise ConfigurationError(
            f"source_dir {code.source_dir!r} is a file in the repo {repo!r}; expected a directory."
        )
    entry_point = _there(root, "entry_point", code.entry_point, repo)
    dependencies = [str(_there(clone, "dependency", each, repo)) for each in code.dependencies]
    if code.source_dir is None:
        return Code(str(entry_point), None, dependencies)
    return Code(code.entry_point, str(root), dependencies)


def _there(folder: Path, what: str, given: str, repo: str) -> Path:
    path = folder / given
    is_below = not os.path.isabs(given) and ".." not in Path(given).parts
    if not is_below or not path.exists():
        raise ConfigurationError(
            f"{what} {given!r} is not in the repo {repo!r} of git_config; expected a path from its"
            " root, or from source_dir for the entry point."
        )
    return path
