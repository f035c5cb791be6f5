# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is done on a host before the script starts.

Source: launch specification, sections 5, 7.1 and 7.3.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from smdistributed._common.errors import ConfigurationError, SmdistributedError
from smdistributed.launch.agent.placement import place
from smdistributed.launch.agent.plan import Plan
from smdistributed.launch.contract import files
from smdistributed.launch.contract.archives import unpack
from smdistributed.launch.contract.paths import Paths
from smdistributed.launch.contract.resources import Resources
from smdistributed.launch.data.sources import Source

__all__ = ["PreparationError", "command_of", "install", "prepare"]

_LAST_LINES = 15
_POLL_S = 0.2


class PreparationError(SmdistributedError):
    """The host cannot run the script.

    Attributes:
        error_class: that the failure is called by, such as `InstallRequirementsError`.
        status: exit status of what failed.
    """

    def __init__(self, error_class: str, status: int, message: str) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.status = status


def prepare(
    plan: Plan, sources: Mapping[str, Source], paths: Paths, resources: Resources, views: Path
) -> None:
    """Makes the directories, unpacks the sources, writes the files, and puts the data there.

    Args:
        plan, paths, resources: of the host.
        sources: of its channels, as they are here.
        views: of its data (`placement`).

    Raises:
        PreparationError: a channel's data are not there, or have no room.
        ConfigurationError: the sources cannot be unpacked.
        OSError: the disk is full, or such.
    """
    paths.make()
    if plan.archive and not any(paths.code.iterdir()):
        unpack(Path(plan.archive), paths.code)
    files.write(paths, plan.hyperparameters, plan.channels, resources)
    try:
        for name, source in sources.items():
            place(name, source, views, paths.channel(name))
    except ConfigurationError as error:
        raise PreparationError("ClientError", 1, str(error)) from None


def install(
    code: Path,
    layer: Path,
    entry_point: str,
    environ: Mapping[str, str],
    is_unwanted: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Installs `requirements.txt`, and a package, into a folder of the job's.

    The user's own environment stays as it is, and what it has already is not installed again: the
    folder is a virtual environment that sees it.

    Args:
        code: the sources.
        layer: the folder, for the path of modules.
        entry_point: a shell script installs nothing, a package itself.
        environ: of pip.
        is_unwanted: asked now and then; once it says so, pip is ended.

    Returns: folders for the path of modules; none if there was nothing to install.

    Raises:
        PreparationError: pip has failed; with its own last lines.
    """
    wanted: list[tuple[str, list[str]]] = []
    if not entry_point.endswith(".sh"):
        if (code / "requirements.txt").is_file():
            wanted.append(("InstallRequirementsError", ["-r", "requirements.txt"]))
        if _is_package(code, entry_point):
            wanted.append(("InstallModuleError", ["."]))
    for error_class, what in wanted:
        packages = _layer_of(layer)
        command = [sys.executable, "-P", "-m", "pip", "--python", str(layer / "bin" / "python")]
        command += ["--disable-pip-version-check", "install", "--no-input", *what]
        # Also of a pip that is killed nothing is left.
        above = environ.get("TMPDIR", "")
        with tempfile.TemporaryDirectory(dir=above if os.path.isdir(above) else layer) as folder:
            own = {**environ, "TMPDIR": folder}
            status, text = _output_of(command, code, own, is_unwanted)
        if status and not is_unwanted():
            lines = text.rstrip().splitlines()[-_LAST_LINES:]
            raise PreparationError(error_class, status, "\n".join(lines))
    return [str(packages)] if wanted else []


def _layer_of(folder: Path) -> Path:
    """A virtual environment over this one. Returns: where its packages go."""
    if not (folder / "bin" / "python").exists():
        try:
            venv.create(folder, with_pip=False, symlinks=True)
        except ValueError as error:
            raise PreparationError("InstallRequirementsError", 1, str(error)) from None
    (packages,) = folder.glob("lib/python*/site-packages")
    below = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "below.pth").write_text("\n".join(below) + "\n")
    return packages


def _output_of(
    command: Sequence[str], code: Path, environ: Mapping[str, str], is_unwanted: Callable[[], bool]
) -> tuple[int, str]:
    """The exit status of a command, and what it has printed."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=code,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        while True:
            try:
                process.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                if is_unwanted():
                    os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace")


def _is_package(code: Path, entry_point: str) -> bool:
    return not entry_point.endswith((".py", ".sh")) and (code / "setup.py").is_file()


def command_of(entry_point: str, arguments: list[str], code: Path) -> list[str]:
    """The words of the command that runs an entry point in its directory.

    No shell reads the arguments.

    Args:
        entry_point: a Python file, a shell script, a package, or a command for the shell.
        arguments: of the script.
        code: the sources.
    """
    if entry_point.endswith(".py"):
        return [sys.executable, entry_point, *arguments]
    if entry_point.endswith(".sh"):
        script = code / entry_point
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        # The shell runs also what has no first line that names its interpreter.
        return ["/bin/sh", "-c", 'exec "$0" "$@"', f".{os.sep}{entry_point}", *arguments]
    if _is_package(code, entry_point):
        return [sys.executable, "-m", entry_point, *arguments]
    if (code / entry_point).is_file():
        return [f".{os.sep}{entry_point}", *arguments]
    return ["/bin/sh", "-c", f'{entry_point} "$@"', "sh", *arguments]
