# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process of an endpoint: `python -m smdistributed.launch.serve.endpoint FOLDER LOCK`.

    prepare   the model's folder, its code, and what that requires
    serve     listens at once, and says 503 until workers have loaded the model
    end       when somebody says so: calls that have come in are answered, nothing is left

Nobody waits for this process: who has deployed the model may be gone, and reads the endpoint's
directory. LOCK is the descriptor of its lock, which who has made it took.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from smdistributed._common.errors import ConfigurationError, SmdistributedError
from smdistributed.launch.agent.mounts import available_step, wrapped
from smdistributed.launch.agent.preparation import install
from smdistributed.launch.agent.strays import end_strays
from smdistributed.launch.contract.archives import unpack
from smdistributed.launch.contract.paths import OPT_ML
from smdistributed.launch.data.buckets import local_copy
from smdistributed.launch.environment import outside, usable_cores
from smdistributed.launch.jobs.files import make_writable
from smdistributed.launch.orphans import Guardian, adopt_orphans
from smdistributed.launch.serve.endpoints import EndpointDirectory
from smdistributed.launch.serve.pool import Command, Pool
from smdistributed.launch.serve.process import EndpointProcess
from smdistributed.launch.serve.record import MIB, EndpointStatus, Framework, whole
from smdistributed.launch.serve.server import Server

__all__ = ["Endpoint", "main"]

_HOST = "127.0.0.1"
_FIRST_PORT = 8080
_NUM_PORTS = 1000
_BACKLOG = 2048
_POLL_S = 0.1


class Endpoint(EndpointProcess):
    """Of one directory.

    Args:
        directory: of the endpoint.
    """

    def __init__(self, directory: EndpointDirectory) -> None:
        super().__init__(directory)
        self._guardian = Guardian()

    def run(self) -> None:
        """Does all of it; writes why, if it cannot."""
        self._note_signals()
        adopt_orphans()
        try:
            environ = self._prepare()
            if not self._is_over():
                asyncio.run(self._serve(environ))
        except SmdistributedError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._guardian.dismiss()
            end_strays()  # the lock goes with this process: then nothing is left

    # --- prepare ---------------------------------------------------------------------------------

    def _prepare(self) -> dict[str, str]:
        """Makes the model's folder. Returns: the variables of workers."""
        served = self._record.model
        model = self._directory.ml / "model"
        model.mkdir(mode=0o700, parents=True)
        copies = self._directory.path / "copies"
        data = local_copy(served.data, self._home, copies / "model")
        if data.is_dir():
            _copy(data, model)
        else:
            unpack(data, model)
        code = model / "code"
        if code.exists() and not code.is_dir():
            raise ConfigurationError(
                f"code in {data} is a file; expected the folder of the model's functions, or none."
            )
        code.mkdir(exist_ok=True)
        if served.code:
            unpack(local_copy(served.code, self._home, copies / "code"), code)
        shutil.rmtree(copies, ignore_errors=True)
        environ = {
            **outside(os.environ),
            "SAGEMAKER_PROGRAM": served.program,
            "SAGEMAKER_SUBMIT_DIRECTORY": str(OPT_ML / "model" / "code"),
            **served.environment,
            "PYTHONUNBUFFERED": "1",
        }
        folders = [str(code)]
        if not (served.framework is Framework.TENSORFLOW and (code / "lib").is_dir()):
            program = served.program or "inference.py"
            folders += install(code, self._directory.packages, program, environ, self._is_over)
        if importlib.util.find_spec("sagemaker_inference") is None:
            folders.append(str(Path(__file__).parent / "toolkit"))
        given = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = os.pathsep.join([*folders, *([given] if given else [])])
        return environ

    def _commands(self, environ: Mapping[str, str]) -> list[Command]:
        """Of all workers of all instances."""
        record = self._record
        cores = usable_cores()
        each = whole(environ, "SAGEMAKER_MODEL_SERVER_WORKERS", cores // record.instance_count or 1)
        count = each * record.instance_count
        step, _ = available_step(self._directory.ml)
        base = OPT_ML if step.is_mount else self._directory.ml
        words = [sys.executable, "-P", "-m", "smdistributed.launch.serve.worker", str(os.getpid())]
        words += [str(base / "model"), str(record.model.framework)]
        threads = str(max(1, cores // count))
        variables = {"OMP_NUM_THREADS": threads, **environ, "SM_MODEL_DIR": str(base / "model")}
        return [Command(wrapped(step, self._directory.ml, words), variables)] * count

    # --- serve -----------------------------------------------------------------------------------

    async def _serve(self, environ: Mapping[str, str]) -> None:
        timeout_s = float(whole(environ, "SAGEMAKER_MODEL_SERVER_TIMEOUT", 60))
        startup_s = float(whole(environ, "SAGEMAKER_STARTUP_TIMEOUT", 600))
        pool = Pool(
            self._commands(environ),
            self._directory.log,
            timeout_s,
            startup_s,
            self._say,
            self._guardian,
        )
        most = whole(environ, "SAGEMAKER_MAX_PAYLOAD_IN_MB", 6) * MIB
        with _listener(whole(environ, "SAGEMAKER_BIND_TO_PORT", _FIRST_PORT)) as listener:
            server = Server(pool, listener, most, timeout_s)
            serving = asyncio.create_task(server.run_until_told())
            try:
                await self._begin(pool, listener.getsockname()[1], timeout_s)
                while not self._is_over() and not serving.done():
                    pool.reap()
                    await asyncio.sleep(_POLL_S)
                self._tell_of_the_end()
            finally:
                server.should_exit = True
                await asyncio.gather(serving, return_exceptions=True)
                await pool.close()

    def _tell_of_the_end(self) -> None:
        if self._signal:
            self._fail(f"it was told to end, by {signal.Signals(self._signal).name}.")
        elif self._directory.path.is_dir():
            self._directory.write(self._record.moved(EndpointStatus.DELETING))

    async def _begin(self, pool: Pool, port: int, timeout_s: float) -> None:
        """Waits until the workers have loaded the model, or nobody wants them any more."""
        self._record = self._record.moved(EndpointStatus.CREATING, port=port, timeout_s=timeout_s)
        self._directory.write(self._record)
        starting = asyncio.create_task(pool.start())
        while not starting.done() and not self._is_over():
            await asyncio.wait([starting], timeout=_POLL_S)
        if not starting.done():
            starting.cancel()
            return
        starting.result()
        self._record = self._record.moved(EndpointStatus.IN_SERVICE)
        self._directory.write(self._record)
        self._say(f"in service at http://{_HOST}:{port}")


def _copy(data: Path, model: Path) -> None:
    try:
        shutil.copytree(data, model, dirs_exist_ok=True)
    except shutil.Error as error:
        path, _, why = error.args[0][0]
        raise ConfigurationError(
            f"the model's folder {data} cannot be copied: {path[:200]}: {why[:200]}; expected files"
            " that this user may read, and links that lead to such."
        ) from None
    make_writable(model)  # its code goes there, and all of it with the endpoint


def _listener(first_port: int) -> socket.socket:
    """A socket at the first free port from there on."""
    for port in range(first_port, min(first_port + _NUM_PORTS, 1 << 16)):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            continue
        listener.setblocking(False)
        return listener
    raise ConfigurationError(
        f"no port from {first_port} on is free; expected one of {_NUM_PORTS}. Set"
        " SAGEMAKER_BIND_TO_PORT to where there are some."
    )


def main() -> int:
    """Serves the endpoint of the folder that is the argument."""
    directory = EndpointDirectory(Path(sys.argv[1]))
    directory.lock.adopt(int(sys.argv[2]))
    Endpoint(directory).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
