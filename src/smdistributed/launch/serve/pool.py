# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The workers of an endpoint: as many processes as were asked for, for as long as it lives.

One that dies is replaced. It loses the call that it was at, and no other. One that does not answer
in time is killed, as nothing else ends a function of the user's. Its time begins when it has the
call, and the caller's when the call has come in: many callers kill no worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.agent.strays import reap_strays
from smdistributed.launch.orphans import Guardian
from smdistributed.launch.serve.messages import Answer, Call, Loaded, frame, read_frame

__all__ = ["Command", "LoadError", "Pool"]

_END_S = 5.0
_MOST_LAST, _NUM_LAST = 2000, 3
_MOMENT_S = 1.0
_BRIEF_S = 1.0
_MOST_WAIT_S = 30.0


class LoadError(SmdistributedError):
    """No worker could load the model; says why."""


class Command(NamedTuple):
    """How a worker is started.

    Attributes:
        words: of the command; the number of its end of the socket is added.
        environ: its variables.
    """

    words: Sequence[str]
    environ: dict[str, str]


class _Worker:
    """One process, and the socket to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, command: Command, log: Path) -> _Worker:
        ours, its = socket.socketpair()
        with its, log.open("ab") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command.words,
                    str(its.fileno()),
                    env=command.environ,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=(its.fileno(),),
                )
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def loaded(self) -> Loaded:
        fields, _ = await read_frame(self._reader)
        return Loaded(**fields)

    async def ask(self, call: Call) -> Answer:
        self._writer.write(frame(call))
        await self._writer.drain()
        fields, body = await read_frame(self._reader)
        return Answer(**fields, body=body)

    def kill(self) -> None:
        """It, and what it has started in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def say_farewell(self) -> None:
        """It ends when there is nobody to hear it."""
        self._writer.close()

    async def lost(self) -> str:
        """Its socket has ended: so does it, in a moment. Returns: how, in words."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT_S):
                await self.process.wait()
        self.kill()
        return await self.gone()

    async def gone(self) -> str:
        """Waits until it has ended. Returns: how, in words."""
        status = await self.process.wait()
        self.kill()  # what it has left in its session
        self._writer.close()
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"has ended with status {status}"


class Pool:
    """All workers of an endpoint.

    Args:
        commands: of each worker.
        log: file for what they print.
        timeout_s: for a call: to wait for a worker, and to be answered.
        startup_s: for a worker, to load the model.
        say: tells the log of the endpoint.
        guardian: ends workers, and what they have started, if this process is killed.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        log: Path,
        timeout_s: float,
        startup_s: float,
        say: Callable[[str], None],
        guardian: Guardian,
    ) -> None:
        self._commands = commands
        self._log = log
        self._timeout_s = timeout_s
        self._startup_s = startup_s
        self._say = say
        self._guardian = guardian
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._workers: dict[int, _Worker] = {}
        self._num_starting = 0
        self._ready: set[int] = set()
        self._has_been_ready = False
        self._tasks: list[asyncio.Task[None]] = []
        self._answering: set[asyncio.Task[Answer]] = set()

    @property
    def is_ready(self) -> bool:
        """Whether a worker has loaded the model."""
        return bool(self._ready)

    async def start(self) -> None:
        """Starts all workers; returns when each has loaded the model.

        Raises:
            LoadError: one of them could not.
        """
        firsts = [asyncio.get_running_loop().create_future() for _ in self._commands]
        for number, first in enumerate(firsts):
            self._tasks.append(asyncio.create_task(self._keep(number, first)))
        done, _ = await asyncio.wait(firsts, return_when=asyncio.FIRST_EXCEPTION)
        for first in done:
            first.result()

    async def ask(self, call: Call) -> Answer:
        """Has a worker answer a call. Never raises: what goes wrong is an answer too."""
        if not self._has_been_ready:
            return Answer.problem(503, "No worker has loaded the model yet; try again.")
        try:
            async with asyncio.timeout(self._timeout_s):
                worker = await self._idle_worker()
                # A call that has waited is over before its worker's time is: that one goes on.
                answering = asyncio.create_task(self._answer(worker, call))
                self._answering.add(answering)
                answering.add_done_callback(self._answering.discard)
                return await asyncio.shield(answering)
        except TimeoutError:
            if self.is_ready:
                return self._too_late()
            return Answer.problem(503, "No worker has the model: all are being replaced.")

    def reap(self) -> None:
        """Reaps what functions have left behind and has ended, which this process has adopted."""
        if not self._num_starting:  # of those the numbers are not known yet
            reap_strays({each.process.pid for each in self._workers.values()})

    async def close(self) -> None:
        """Ends all workers; a call that is not answered yet is lost."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers.values():
            worker.say_farewell()
        ends = [asyncio.create_task(each.process.wait()) for each in self._workers.values()]
        if ends:
            await asyncio.wait(ends, timeout=_END_S)
        for worker in self._workers.values():
            worker.kill()
        await asyncio.gather(*ends, *self._answering, return_exceptions=True)

    async def _idle_worker(self) -> _Worker:
        while True:
            worker = await self._idle.get()
            if worker.is_alive:
                return worker

    async def _answer(self, worker: _Worker, call: Call) -> Answer:
        """Never raises, but when it is cancelled."""
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await worker.ask(call)
        except TimeoutError:
            worker.kill()
            return self._too_late()
        except (asyncio.IncompleteReadError, ConnectionError):
            how = await worker.lost()
            return Answer.problem(
                500, f"The worker that had this call {how}; another one takes its place."
            )
        except BaseException:  # the server ends
            worker.kill()
            raise
        self._idle.put_nowait(worker)
        return answer

    def _too_late(self) -> Answer:
        return Answer.problem(
            504,
            f"The model has not answered within {self._timeout_s:g} s"
            " (SAGEMAKER_MODEL_SERVER_TIMEOUT).",
        )

    async def _keep(self, number: int, first: asyncio.Future[None]) -> None:
        """Keeps one worker alive."""
        wait_s = 0.0
        while True:
            await asyncio.sleep(wait_s)
            problem = await self._start(number)
            if not first.done():
                if problem:
                    first.set_exception(LoadError(problem))
                    return
                first.set_result(None)
            next_s = min(_MOST_WAIT_S, 2 * wait_s or 1.0)
            if problem:
                self._say(f"worker {number} could not be replaced: {problem}")
                wait_s = next_s
                continue
            begin = asyncio.get_running_loop().time()
            how = await self._gone(number)
            # One that has lived so shortly will again: no processor is to load it all the time.
            is_brief = asyncio.get_running_loop().time() - begin < _BRIEF_S
            wait_s = next_s if is_brief else 0.0
            self._ready.discard(number)
            self._say(f"worker {number} {how}; it is replaced")

    async def _started(self, number: int) -> _Worker:
        self._num_starting += 1
        try:
            worker = self._workers[number] = await _Worker.start(self._commands[number], self._log)
        finally:
            self._num_starting -= 1
        self._guardian.watch(worker.process.pid)
        return worker

    async def _start(self, number: int) -> str:
        """Starts a worker. Returns: why it cannot answer calls; empty if it can."""
        worker: _Worker | None = None
        try:
            async with asyncio.timeout(self._startup_s):
                worker = await self._started(number)
                problem = (await worker.loaded()).problem
        except TimeoutError:
            problem = (
                f"the model was not loaded within {self._startup_s:g} s (SAGEMAKER_STARTUP_TIMEOUT)"
            )
        except (asyncio.IncompleteReadError, ConnectionError):
            assert worker is not None
            how = await worker.lost()
            problem = f"the process that was to load the model {how}{self._last_lines()}"
        except OSError as error:
            problem = f"no process could be started: {error}"
        if not problem and worker is not None:
            self._ready.add(number)
            self._has_been_ready = True
            self._idle.put_nowait(worker)
        elif worker is not None:
            worker.kill()
            await self._gone(number)
        return problem

    def _last_lines(self) -> str:
        """What workers have printed last, for a reason."""
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_LAST))
            lines = file.read().decode(errors="replace").strip().splitlines()[-_NUM_LAST:]
            return "; its last lines: " + " / ".join(lines) if lines else ""
        return ""

    async def _gone(self, number: int) -> str:
        worker = self._workers[number]
        how = await worker.gone()
        self._guardian.forget(worker.process.pid)
        return how
