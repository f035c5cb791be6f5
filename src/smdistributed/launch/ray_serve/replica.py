# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One instance of an endpoint: an actor of Ray Serve. A process of its own has the model (`host`).

What that process answers, this one passes on. Between them lies the loopback of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from smdistributed.launch.backends.ray.surroundings import without_ray
from smdistributed.launch.ray_serve.messages import NAMESPACE, Outcome, keeper_of
from smdistributed.launch.ray_serve.package import open_record
from smdistributed.launch.serve.messages import Answer, Call
from smdistributed.launch.serve.record import MIB, whole
from smdistributed.launch.serve.server import invocation, response_of

__all__ = ["Replica"]

# Untyped, as it need not be installed where types are checked; Ray needs it.
aiohttp: Any = importlib.import_module("aiohttp")

_END_S = 40.0
# Of the connection, and not of what is asked.
_OF_THE_HOP = ("connection", "content-length", "expect", "keep-alive", "transfer-encoding")
_OWN = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # that aiohttp would add


class Replica:
    """Passes calls on to the process that has the model.

    Args:
        application: of Serve.
        cpus: that Ray keeps free for this.
    """

    async def __init__(self, application: str, cpus: int) -> None:  # type: ignore[misc] # Serve awaits it
        ray: Any = importlib.import_module("ray")
        package = Path.cwd()
        self._is_ending = False
        self._folder = tempfile.mkdtemp(prefix="smd-serve-")
        words = [sys.executable, "-P", "-m", "smdistributed.launch.ray_serve.host"]
        self._process = subprocess.Popen(
            [*words, str(package), self._folder, str(cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=without_ray(os.environ, has_gpus=bool(ray.get_gpu_ids())),
        )
        outcome = await asyncio.to_thread(self._outcome)
        if outcome.problem:
            self.__del__()
            keeper = ray.get_actor(keeper_of(application), namespace=NAMESPACE)
            await keeper.tell.remote(outcome.problem, outcome.log)
            raise RuntimeError(outcome.problem)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        environment = open_record(package).model.environment
        self._most_bytes = whole(environment, "SAGEMAKER_MAX_PAYLOAD_IN_MB", 6) * MIB
        self._timeout_s = float(whole(environment, "SAGEMAKER_MODEL_SERVER_TIMEOUT", 60))
        self._address = f"http://127.0.0.1:{outcome.port}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),  # the process has its own
            auto_decompress=False,
            skip_auto_headers=_OWN,
        )

    def _outcome(self) -> Outcome:
        assert self._process.stdout is not None
        text = self._process.stdout.readline().decode(errors="replace")
        return Outcome.of_text(text) or Outcome(
            f"the process of the model has ended with status {self._process.wait()}"
        )

    async def __call__(self, request: Request) -> Response:
        """Answers as the endpoint's process does."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if request.method == "POST" and path == "/invocations":
            return await invocation(request, self._ask, self._most_bytes, self._timeout_s)
        return response_of(await self._passed(request.method, path or "/", {}, b""))

    async def _ask(self, call: Call) -> Answer:
        kept = {name: value for name, value in call.headers.items() if name not in _OF_THE_HOP}
        return await self._passed("POST", "/invocations", kept, call.body)

    async def _passed(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        try:
            async with self._session.request(
                method, self._address + path, headers=headers, data=body
            ) as answer:
                content = await answer.read()
                return Answer(answer.status, answer.headers.get("Content-Type", ""), content)
        except (aiohttp.ClientError, OSError) as error:
            return Answer.problem(
                503, f"The process of the model is gone, and is replaced ({type(error).__name__})."
            )

    def _watch(self) -> None:
        """Ends with the process, at once: Serve then asks others, and starts another replica."""
        self._process.wait()
        if not self._is_ending:
            shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(1)

    def __del__(self) -> None:
        """Asked by Serve at the end: ends the process; what has come in is answered."""
        self._is_ending = True
        process = getattr(self, "_process", None)
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()  # it ends when nobody holds this
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
