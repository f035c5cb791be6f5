# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Run one function, or one script, as N ranks on this host, and get back what each did, as data.

    from harness import run_ranks

    def average(rank, world_size):          # at module level of the test file
        ...
        return result                       # anything that pickles

    def test_average():
        assert run_ranks(average, 3) == [..., ..., ...]

- Every rank is a process of its own with the documented variables set (`RANK`, `WORLD_SIZE`,
  `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, a free port).
- Ranks are forked from a server that has imported torch (`preloaded.py`), so that a test of eight
  ranks starts in a fraction of a second. A test marked `fresh` starts interpreters instead.
- Every run has a deadline, which grows with the slowness of the machine (`machine_speed.py`). When
  it is missed, the stacks of all threads of all ranks are printed in the failure, and every process
  is killed, children of ranks included.
- Whatever happens, no process of a run outlives the call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import importlib.util
import os
import pickle
import secrets
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from machine_speed import scaled
from ports import free_port as free_port  # for tests, too
from preloaded import Preload, Process, start_call, start_script

DEFAULT_DEADLINE_S = 60.0
_POLL_S = 0.01
_STACKS_SIGNAL = signal.SIGUSR2  # SIGUSR1 is the engine's: it prints the flight record
_STACKS_WAIT_S = 1.0


@dataclasses.dataclass(frozen=True)
class RankError:
    """An exception that a rank raised, as data: class names from the most derived up, and text."""

    type_name: str
    base_names: tuple[str, ...]
    message: str
    traceback: str


@dataclasses.dataclass(frozen=True)
class RankOutcome:
    """What one rank did.

    `exit_code` is negative when a signal ended the process, and None when it had to be killed at
    the deadline; `stacks` is filled only then. `value` is what the function returned. A rank whose
    process ended before the function did, with status 0 even, is not complete; a script always is.
    """

    rank: int
    value: Any
    error: RankError | None
    exit_code: int | None
    output: str
    stacks: str
    duration_s: float
    is_complete: bool = True

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and self.error is None and self.is_complete


class Place(Protocol):
    """Where a rank runs that is not to run simply here. Pickled on the way to its rank.

    `variables` are set in the rank instead of those that say that all ranks are on this host.
    """

    @property
    def variables(self) -> Mapping[str, str]: ...

    def enter(self) -> None:
        """Move the calling process there; called in the rank before all else."""


class RanksFailed(AssertionError):
    """Some rank did not end well. The text holds every rank's error, output and stacks."""

    def __init__(self, what: str, outcomes: Sequence[RankOutcome]) -> None:
        super().__init__("\n".join([what, *(_describe(outcome) for outcome in outcomes)]))
        self.outcomes = list(outcomes)
        self._what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return RanksFailed, (self._what, self.outcomes)


def run_ranks(
    target: Callable[..., Any] | str,
    world_size: int,
    *args: Any,
    deadline_s: float = DEFAULT_DEADLINE_S,
    env: Mapping[str, str] | None = None,
    places: Sequence[Place] | None = None,
    check: bool = True,
    preload: Preload = Preload.TORCH,
    **kwargs: Any,
) -> list[Any]:
    """Call `target(rank, world_size, *args, **kwargs)` in `world_size` processes.

    Args:
        target: a function at the top level of its module, or its name as `"path/to/file.py:name"`
            or `"package.module:name"`.
        args, kwargs: passed on; must pickle.
        deadline_s: seconds until every rank must have ended, on a machine that is idle.
        env: variables that every rank finds in its environment.
        places: by rank, where it runs; None is here.
        check: True returns the values by rank and raises `RanksFailed` if a rank raised, died or
            missed the deadline; False returns a `RankOutcome` for each rank.
        preload: what the ranks find imported.
    """
    location, name = _locate(target)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        variables = _rank_variables(world_size, env, places)
        call = _Call(folder, location, name, args, kwargs)
        processes: list[Process] = []
        try:
            for rank in range(world_size):
                place = None if places is None else places[rank]
                with open(_file(folder, rank, "output"), "ab") as output:
                    processes.append(
                        start_call(
                            preload,
                            _child_main,
                            call,
                            rank,
                            place,
                            number=rank,
                            variables=variables[rank],
                            output=output.fileno(),
                        )
                    )
            outcomes = _watch(processes, folder, deadline_s)
            outcomes = [
                dataclasses.replace(
                    outcome, is_complete=os.path.exists(_file(folder, outcome.rank, "result"))
                )
                for outcome in outcomes
            ]
        finally:
            _kill_all(processes)
    if not check:
        return outcomes
    require_success(outcomes, f"{name} on {world_size} ranks", deadline_s)
    return [outcome.value for outcome in outcomes]


def run_script(
    argv: Sequence[str],
    world_size: int,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
    env: Mapping[str, str] | None = None,
    places: Sequence[Place] | None = None,
    check: bool = True,
    preload: Preload = Preload.TORCH,
) -> list[RankOutcome]:
    """Run `python *argv` as `world_size` processes; the outcomes carry their output."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        variables = _rank_variables(world_size, env, places)
        processes: list[Process] = []
        try:
            for rank in range(world_size):
                with open(_file(folder, rank, "output"), "wb") as output:
                    processes.append(
                        start_script(
                            preload,
                            argv,
                            environ={**os.environ, **variables[rank]},
                            output=output.fileno(),
                            enter=None if places is None else places[rank].enter,
                        )
                    )
            outcomes = _watch(processes, folder, deadline_s)
        finally:
            _kill_all(processes)
    if check:
        require_success(outcomes, f"{' '.join(argv)} on {world_size} ranks", deadline_s)
    return outcomes


@dataclasses.dataclass(frozen=True)
class _Call:
    folder: str
    location: str
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def _locate(target: Callable[..., Any] | str) -> tuple[str, str]:
    """(file or module, name) of a function, so that a rank can load it by itself."""
    if isinstance(target, str):
        location, _, name = target.rpartition(":")
        return location, name
    if "." in target.__qualname__:
        raise ValueError(
            f"{target.__qualname__} is not at the top level of its module; ranks load their"
            " function by name. Move it there, and pass what it closes over as arguments."
        )
    return str(Path(target.__code__.co_filename).resolve()), target.__name__


def _rank_variables(
    world_size: int, env: Mapping[str, str] | None, places: Sequence[Place] | None
) -> list[dict[str, str]]:
    """What each rank finds in its environment; `env` goes before `places`, and both before us."""
    if places is not None and len(places) != world_size:
        raise ValueError(f"{len(places)} places for {world_size} ranks; pass one per rank.")
    shared = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "SMDDP_RUN_ID": secrets.token_hex(4),  # else rank 0 warns that a job has none
    }
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            **shared,
            **({} if places is None else places[rank].variables),
            **(env or {}),
        }
        for rank in range(world_size)
    ]


def _file(folder: str, rank: int, kind: str) -> str:
    return os.path.join(folder, f"rank{rank}.{kind}")


def _child_main(call: _Call, rank: int, place: Place | None) -> None:
    """Body of a rank: result or exception to a file."""
    if place is not None:
        place.enter()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    stacks = open(_file(call.folder, rank, "stacks"), "w")  # noqa: SIM115 -- open until the end
    faulthandler.enable()
    faulthandler.register(_STACKS_SIGNAL, file=stacks, all_threads=True)
    result: tuple[Any, RankError | None]
    try:
        function = getattr(_load(call.location), call.name)
        result = (function(rank, int(os.environ["WORLD_SIZE"]), *call.args, **call.kwargs), None)
        payload = pickle.dumps(result)
    except BaseException as error:  # SystemExit and KeyboardInterrupt are results here as well
        traceback.print_exc()
        payload = pickle.dumps((None, _as_data(error)))
    part = _file(call.folder, rank, "part")
    Path(part).write_bytes(payload)
    os.rename(part, _file(call.folder, rank, "result"))


def _load(location: str) -> types.ModuleType:
    if not location.endswith(".py"):
        return importlib.import_module(location)
    path = Path(location)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {location}; expected a Python file. Check the name.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _as_data(error: BaseException) -> RankError:
    return RankError(
        type_name=type(error).__name__,
        base_names=tuple(base.__name__ for base in type(error).__mro__[1:]),
        message=str(error),
        traceback=traceback.format_exc(),
    )


def _watch(processes: Sequence[Process], folder: str, deadline_s: float) -> list[RankOutcome]:
    """Wait until all have ended or the deadline has passed; then take the stacks of the rest."""
    deadline_s = scaled(deadline_s)
    start = time.monotonic()
    ended: dict[int, float] = {}
    while len(ended) < len(processes) and time.monotonic() - start < deadline_s:
        for rank, process in enumerate(processes):
            if rank not in ended and process.exit_code() is not None:
                ended[rank] = time.monotonic() - start
        time.sleep(_POLL_S)
    late = [rank for rank in range(len(processes)) if rank not in ended]
    for rank in late:
        with contextlib.suppress(ProcessLookupError):
            os.kill(processes[rank].pid, signal.SIGCONT)  # a stopped rank cannot tell its stacks
            os.kill(processes[rank].pid, _STACKS_SIGNAL)
    if late:
        time.sleep(_STACKS_WAIT_S)
    duration_s = time.monotonic() - start
    return [
        _outcome(
            rank,
            folder,
            processes[rank].exit_code() if rank in ended else None,
            ended.get(rank, duration_s),
        )
        for rank in range(len(processes))
    ]


def _outcome(rank: int, folder: str, exit_code: int | None, duration_s: float) -> RankOutcome:
    value, error = None, None
    result = Path(_file(folder, rank, "result"))
    if result.exists():
        value, error = pickle.loads(result.read_bytes())
    return RankOutcome(
        rank=rank,
        value=value,
        error=error,
        exit_code=exit_code,
        output=_text(folder, rank, "output"),
        stacks=_text(folder, rank, "stacks") if exit_code is None else "",
        duration_s=duration_s,
    )


def _text(folder: str, rank: int, kind: str) -> str:
    path = Path(_file(folder, rank, kind))
    return path.read_text(errors="replace") if path.exists() else ""


def _kill_all(processes: Sequence[Process]) -> None:
    """End every rank and what it started: each rank leads a process group."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        # Without its server a rank has ended, and who waited for it has been told.
        with contextlib.suppress(RuntimeError):
            if process.exit_code() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)  # killed before it became a leader
            while process.exit_code() is None:
                time.sleep(_POLL_S)


def require_success(outcomes: Sequence[RankOutcome], what: str, deadline_s: float) -> None:
    """Raises `RanksFailed` unless every rank ended well."""
    if all(outcome.ok for outcome in outcomes):
        return
    late = [outcome.rank for outcome in outcomes if outcome.exit_code is None]
    why = (
        f"ranks {late} missed the deadline of {scaled(deadline_s):.0f} s"
        if late
        else "a rank failed"
    )
    raise RanksFailed(f"{what}: {why}", outcomes)


def _describe(outcome: RankOutcome) -> str:
    if outcome.ok:
        state = "ended well"
    elif outcome.error is not None:
        state = f"raised {outcome.error.type_name}: {outcome.error.message}"
    elif outcome.exit_code is None:
        state = "was still running at the deadline"
    else:
        early = "" if outcome.is_complete else ", before its function returned"
        state = f"ended with exit code {outcome.exit_code}{early}"
    lines = [f"--- rank {outcome.rank} {state} ({outcome.duration_s:.1f} s)"]
    if not outcome.ok and outcome.output:
        lines.append(outcome.output[-6000:].rstrip())
    if outcome.stacks:
        lines.append(f"stacks of rank {outcome.rank}:\n{outcome.stacks.rstrip()}")
    return "\n".join(lines)
