# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that are started once and then take turns: rank 0 of each is asked what to do next.

Columns of a benchmark that cannot live in one process (another version of a library, another number
of threads) are still measured under the same conditions.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_START_S = 180.0
_END_S = 30.0


class JobOnRequest:
    """Ranks of this host, started by smddprun, who wait for requests.

    Args:
        ranks: how many.
        program: calls `answer_requests`; gets the option `--socket`.
        options: more of its options.
        folder: where to put a socket; its path may have some 80 characters.
        tools: the folder of `smddprun` and `python`; default: of this Python.
        variables: added to the environment.

    Raises:
        RuntimeError: the ranks ended before they could be asked.
        TimeoutError: they are not ready after three minutes.
    """

    def __init__(
        self,
        ranks: int,
        program: Path,
        *options: object,
        folder: Path,
        tools: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        tools = tools or Path(sys.executable).parent
        number = len(list(folder.iterdir()))
        path, self._log = folder / f"{number}.socket", folder / f"{number}.log"
        command = [tools / "smddprun", "-np", ranks, tools / "python", "-W", "ignore", program]
        with socket.socket(socket.AF_UNIX) as listening, self._log.open("w") as log:
            listening.bind(str(path))
            listening.listen(1)
            listening.settimeout(1.0)
            self._process = subprocess.Popen(
                [str(word) for word in (*command, "--socket", path, *options)],
                env={**os.environ, **(variables or {})},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            self._lines = self._accept(listening).makefile("rw")
        self.greeting = self._lines.readline().strip()

    def _accept(self, listening: socket.socket) -> socket.socket:
        for _ in range(int(_START_S)):
            with contextlib.suppress(TimeoutError):
                return listening.accept()[0]
            if self._process.poll() is not None:
                raise RuntimeError(f"the ranks ended early:\n{self._log.read_text()[-3000:]}")
        self.end()
        raise TimeoutError(f"the ranks are not ready after {_START_S:.0f} s: {self._process.args}")

    def ask(self, what: str, count: int) -> float:
        """What rank 0 answers, a number: of a measurement, over `count` repetitions."""
        print(what, count, file=self._lines, flush=True)
        answer = self._lines.readline()
        if not answer:
            text = self._log.read_text()[-3000:]
            raise RuntimeError(f"the ranks ended while they measured {what}:\n{text}")
        return float(answer)

    def end(self) -> None:
        """Ends the ranks."""
        if hasattr(self, "_lines"):
            with contextlib.suppress(OSError):
                self._lines.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.terminate()


def answer_requests(
    path: str,
    is_first: bool,
    tell: Callable[[list[int]], list[int]],
    measures: Mapping[str, Callable[[int], float]],
    greeting: str = "",
) -> None:
    """Does what it is asked until nobody asks any more; on all ranks of a job.

    Args:
        path: of the socket.
        is_first: whether this is rank 0, which is asked.
        tell: gives all ranks rank 0's list of integers.
        measures: by name; what rank 0's returns is the answer.
        greeting: what `JobOnRequest.greeting` is.
    """
    names = list(measures)
    with contextlib.ExitStack() as stack:
        lines: Any = None
        if is_first:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(path)
            lines = stack.enter_context(connection.makefile("rw"))
            print(greeting, file=lines, flush=True)
        while True:
            request = [0, 0]
            if is_first and (words := lines.readline().split()):
                request = [names.index(words[0]), int(words[1])]
            which, count = tell(request)
            if not count:
                return
            answer = measures[names[which]](count)
            if is_first:
                print(answer, file=lines, flush=True)
