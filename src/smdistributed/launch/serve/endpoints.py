# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Endpoints of this user: a folder each, by which any process finds one.

    endpoint.json   the record; whole or not there
    lock            held by the endpoint's process while it lives
    stop            somebody wants it to end
    log             what workers print, and what has become of them
    endpoint.log    what the endpoint's own process has printed: nothing, unless it is in trouble
    ml/             what workers have at `/opt/ml`: the model, and its code
    packages/       what its requirements.txt has installed

Standard library only.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from smdistributed._common.errors import ConfigurationError, UnsupportedError
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import require_own
from smdistributed.launch.jobs.files import (
    Lock,
    make_writable,
    one_at_a_time,
    write_or_make,
    write_whole,
)
from smdistributed.launch.jobs.names import check_name
from smdistributed.launch.serve.record import EndpointRecord, EndpointStatus

__all__ = [
    "EndpointDirectory",
    "create_endpoint",
    "delete_endpoint",
    "endpoint_names",
    "find_endpoint",
    "missing_packages",
    "new_endpoint",
    "require_free_name",
]

_MODULE = "smdistributed.launch.serve.endpoint"
_POLL_S = 0.05
# The server's 30 s for calls that have come in, and some for its workers.
_END_S = 60.0


class EndpointDirectory:
    """Of one endpoint.

    Args:
        path: the directory.

    Attributes:
        path: as given.
        lock: of the endpoint's process.
        ml, log, packages: see this module.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = Lock(path / "lock")
        self.ml = path / "ml"
        self.log = path / "log"
        self.packages = path / "packages"
        self._record = path / "endpoint.json"
        self._stop = path / "stop"

    @property
    def name(self) -> str:
        """Of the endpoint."""
        return self.path.name

    def poll(self) -> EndpointRecord:
        """The record as it is now; Failed if the endpoint's process has gone without a word.

        One that a cluster serves needs no process here, once it is in service.

        Raises:
            ConfigurationError: it cannot be read.
        """
        is_alive = self.lock.is_held_elsewhere()
        record = self.read()
        is_elsewhere = not record.is_here and record.status is EndpointStatus.IN_SERVICE
        if is_alive or is_elsewhere or record.status is EndpointStatus.FAILED:
            return record
        return record.failed(
            "the process of the endpoint is gone (killed, or the machine was restarted)."
        )

    def read(self) -> EndpointRecord:
        """The record as it was written last.

        Raises:
            ConfigurationError: it cannot be read.
        """
        try:
            return EndpointRecord.of_json(json.loads(self._record.read_bytes()))
        except ConfigurationError:
            raise
        except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"the record of endpoint {self.name!r} ({self._record}) cannot be read"
                f" ({type(error).__name__}: {error}); expected what this library writes there."
                " Other endpoints are not affected; remove the directory if it is of no more use."
            ) from None

    def write(self, record: EndpointRecord) -> None:
        """Makes this the record. Of the endpoint's process alone, or of who creates it.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(self._record, json.dumps(record.to_json(), indent=1).encode())

    def ask_to_stop(self) -> None:
        """Has the endpoint's process end.

        Raises:
            OSError: this user may not.
        """
        write_or_make(self._stop, b"delete_endpoint() was called")

    def is_to_stop(self) -> bool:
        """Whether somebody wants it to end; also if its directory was removed."""
        return self._stop.exists() or not self.path.is_dir()


def create_endpoint(home: Home, record: EndpointRecord, module: str = _MODULE) -> EndpointDirectory:
    """Starts an endpoint; its process goes on without this one. Returns at once.

    Args:
        home: where endpoints lie.
        record: of the new one.
        module: that is run with the directory and the descriptor of its lock.

    Raises:
        ConfigurationError: the name is taken or not valid, or the directory cannot be written.
        UnsupportedError: a package that is needed is not installed.
        OSError: the process could not be started.
    """
    if record.is_here:
        _require_packages()
    directory = new_endpoint(home, record)
    with _removed_unless_done(directory):
        _start(directory, module)
    directory.lock.hand_over()
    return directory


def new_endpoint(home: Home, record: EndpointRecord) -> EndpointDirectory:
    """The directory of a new endpoint, whose lock this process holds.

    Raises:
        ConfigurationError: the name is taken or not valid, or the directory cannot be written.
    """
    try:
        home.make()
        home.endpoints.mkdir(mode=0o700, exist_ok=True)
        require_own(home.endpoints)
        with one_at_a_time(home.endpoints / ".creating"):
            require_free_name(home, record.name)
            return _made(home.endpoints / record.name, record)
    except OSError as error:
        raise ConfigurationError(
            f"the directory of a new endpoint cannot be made in {home.endpoints}: {error}; expected"
            " a directory of this user, on a disk that is not full."
        ) from None


def require_free_name(home: Home, name: str) -> None:
    """Refuses the name of an endpoint that there is.

    Raises:
        ConfigurationError: it is taken, or not valid.
    """
    path = home.endpoints / check_name(name, "an endpoint")
    if path.exists():
        raise ConfigurationError(
            f'Cannot create already existing endpoint "{name}" ({path}); expected a new name.'
            " Delete that endpoint, or give endpoint_name."
        )


def _made(path: Path, record: EndpointRecord) -> EndpointDirectory:
    """The directory of a new one: made beside, so that it is never there without its record.

    This process holds its lock.
    """
    beside = EndpointDirectory(path.parent / f".new-{path.name}-{os.urandom(4).hex()}")
    beside.path.mkdir(mode=0o700)
    directory = EndpointDirectory(path)
    with _removed_unless_done(beside):
        beside.write(record)
        beside.lock.acquire()
        os.rename(beside.path, path)
    directory.lock.take_over(beside.lock)
    return directory


@contextlib.contextmanager
def _removed_unless_done(directory: EndpointDirectory) -> Iterator[None]:
    """If the block fails, the directory goes, and this process holds its lock no longer."""
    try:
        yield
    except BaseException:
        directory.lock.release()
        shutil.rmtree(directory.path, ignore_errors=True)
        raise


def find_endpoint(home: Home, name: str) -> EndpointDirectory:
    """The directory of an endpoint.

    Raises:
        ConfigurationError: there is none of that name; names those that are called nearly so.
    """
    path = home.endpoints / check_name(name, "an endpoint")
    if path.is_dir():
        return EndpointDirectory(path)
    near = difflib.get_close_matches(name, endpoint_names(home), n=3)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    raise ConfigurationError(
        f'Could not find endpoint "{name}" in {home.endpoints}; expected the name of one that was'
        f" deployed there.{hint}"
    )


def endpoint_names(home: Home) -> list[str]:
    """Of all endpoints, sorted."""
    try:
        entries = list(os.scandir(home.endpoints))
    except FileNotFoundError:
        return []
    return sorted(each.name for each in entries if each.is_dir() and each.name[:1] != ".")


def delete_endpoint(
    directory: EndpointDirectory, take_away: Callable[[], None] = lambda: None
) -> None:
    """Ends an endpoint, and removes its directory; returns when nothing is left.

    Args:
        directory: of the endpoint.
        take_away: what is elsewhere; it is called when no process is left here.

    Raises:
        ConfigurationError: this user may not, or its process does not end.
    """
    try:
        directory.ask_to_stop()
        until = time.monotonic() + _END_S
        while directory.lock.is_held_elsewhere():
            if time.monotonic() > until:
                raise ConfigurationError(
                    f"the process of endpoint {directory.name!r} has not ended within {_END_S:g} s;"
                    f" expected it to. {directory.path / 'endpoint.log'} may say why."
                )
            time.sleep(_POLL_S)
        _reap()
        take_away()
        try:
            shutil.rmtree(directory.path)
        except PermissionError:
            make_writable(directory.path)
            shutil.rmtree(directory.path)
    except FileNotFoundError:
        if directory.path.is_dir():  # somebody else removes it too
            shutil.rmtree(directory.path, ignore_errors=True)
    except OSError as error:
        raise ConfigurationError(
            f"endpoint {directory.name!r} cannot be deleted: {error}; expected the user who has"
            " deployed it."
        ) from None


def _start(directory: EndpointDirectory, module: str) -> None:
    lock = directory.lock.descriptor
    with (directory.path / "endpoint.log").open("ab") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", module),
                *(str(directory.path), str(lock)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(lock,),
        )
    _started.append(process)
    _reap()


# Children of this process: they are its to reap.
_started: list[subprocess.Popen[bytes]] = []


def _reap() -> None:
    _started[:] = [each for each in _started if each.poll() is None]


def missing_packages() -> list[str]:
    """Of those that an endpoint's process needs."""
    return [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]


def _require_packages() -> None:
    missing = missing_packages()
    if missing:
        raise UnsupportedError(
            f"an endpoint needs {' and '.join(missing)}; expected packages of the extra serve."
            " Install them: pip install 'smdistributed-open[serve]'"
        )
