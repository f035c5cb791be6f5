# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process of an instance: `python -m ...ray_serve.host PACKAGE FOLDER CPUS`.

It is that of an endpoint on its own machine, and so answers as one does. It says on standard output
where it listens, or why it cannot, and ends when its standard input ends: with the replica, however
that ends. FOLDER goes with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from pathlib import Path

from smdistributed.launch.home import Home
from smdistributed.launch.jobs.files import make_writable
from smdistributed.launch.ray_serve.messages import Outcome
from smdistributed.launch.ray_serve.package import open_package, with_environment
from smdistributed.launch.serve.endpoint import Endpoint
from smdistributed.launch.serve.endpoints import EndpointDirectory, new_endpoint
from smdistributed.launch.serve.record import EndpointRecord, EndpointStatus, whole

__all__ = ["main"]

_POLL_S = 0.1
_MOST_LOG = 64 << 10


class _Told:
    """What the replica was told, once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._is_done = False

    def tell(self, outcome: Outcome) -> None:
        with self._lock, contextlib.suppress(OSError):  # nobody listens any more
            if not self._is_done:
                self._is_done = True
                os.write(self._descriptor, (outcome.to_line() + "\n").encode())


def _until_unwanted(directory: EndpointDirectory) -> None:
    while os.read(0, 1):
        pass
    directory.ask_to_stop()


def _watch(directory: EndpointDirectory, told: _Told) -> None:
    """Tells when it serves; what its workers print goes to this one's errors, which Ray keeps."""
    place = 0
    while True:
        with contextlib.suppress(OSError), directory.log.open("rb") as log:
            log.seek(place)
            content = log.read()
            place += len(content)
            if content:
                os.write(2, content)
        record = directory.read()
        if record.status is EndpointStatus.IN_SERVICE:
            told.tell(Outcome(port=record.port))
        time.sleep(_POLL_S)


def _record(package: Path, home: Home, cpus: int) -> EndpointRecord:
    """Of this instance: it has the processors that Ray keeps free, and not all of the machine."""
    record = open_package(package, home)
    workers = whole(record.model.environment, "SAGEMAKER_MODEL_SERVER_WORKERS", max(1, cpus))
    return with_environment(
        record,
        SAGEMAKER_MODEL_SERVER_WORKERS=str(workers),
        OMP_NUM_THREADS=str(max(1, cpus // workers)),
    )


def _last_of(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_LOG))
        return file.read().decode(errors="replace")
    return ""


def _go_apart() -> None:
    """Goes on in a child of this process, which waits for it.

    Ray kills the children of an actor when that ends, and not theirs: this one has to clean up.
    """
    child = os.fork()
    if child:
        os.closerange(0, 2)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def main() -> int:
    """Serves the package that is the argument."""
    _go_apart()
    package, folder, cpus = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    told = _Told(os.dup(1))
    os.dup2(2, 1)  # what prints there is not told
    try:
        home = Home(folder / "home")
        directory = new_endpoint(home, _record(package, home, cpus))
        endpoint = Endpoint(directory)  # it forks, so threads come later
        threading.Thread(target=_until_unwanted, args=(directory,), daemon=True).start()
        threading.Thread(target=_watch, args=(directory, told), daemon=True).start()
        endpoint.run()
        reason = directory.read().failure_reason or "it was not wanted any more."
        told.tell(Outcome(reason, _last_of(directory.log)))
    except Exception as error:
        told.tell(Outcome(f"{type(error).__name__}: {error}"))
    finally:
        with contextlib.suppress(OSError):
            make_writable(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
