# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Runs on one host of a job: `python -m smdistributed.launch.agent.agent FOLDER LOCK`.

    prepare       directories, sources, files, data, packages
    train         the script's processes, watched by the supervisor that smddprun has
    report        how each rank ended

While ranks run it looks, once a second, whether all are to end, and whether the job's process
lives. LOCK is the descriptor of its lock, which its parent took.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError, SmdistributedError
from smdistributed.launch import contract
from smdistributed.launch.agent.checkpoints import CheckpointSync
from smdistributed.launch.agent.ending import end_orphaned_job
from smdistributed.launch.agent.fetching import DataError, bring
from smdistributed.launch.agent.log import HostLog, rank_prefix
from smdistributed.launch.agent.mounts import MOUNTED
from smdistributed.launch.agent.pipes import ChannelPipes
from smdistributed.launch.agent.placement import notes_on
from smdistributed.launch.agent.plan import HostDirectory, Phase, Plan, RankEnd, Report
from smdistributed.launch.agent.preparation import PreparationError, command_of, install, prepare
from smdistributed.launch.agent.store_mounts import StoreMounts
from smdistributed.launch.agent.strays import end_strays
from smdistributed.launch.agent.surroundings import (
    common_environment,
    environments_of,
    gpus_of,
    script_of,
)
from smdistributed.launch.agent.usage import Usage
from smdistributed.launch.contract.failures import (
    NOT_THE_SCRIPTS,
    failure_text,
    told_error,
    write_failure,
)
from smdistributed.launch.contract.hyperparameters import Hyperparameters, command_line, decode
from smdistributed.launch.contract.paths import OPT_ML, Paths
from smdistributed.launch.contract.resources import Resources
from smdistributed.launch.contract.variables import Script
from smdistributed.launch.data.stores.folder import FolderStore
from smdistributed.launch.data.stores.remote import Abandoned, RemoteStore
from smdistributed.launch.data.stores.s3 import S3Settings
from smdistributed.launch.debugging import DebuggedRank, opened
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.metrics import MetricDefinition, Scanner
from smdistributed.launch.supervisor import CommandError, Supervisor

__all__ = ["Agent", "main"]

_ORPHAN_GRACE_S = 5.0
_MOST_OF_FAILURE = 4096


class Agent:
    """Of one host.

    Args:
        directory: the host's folder.
    """

    def __init__(self, directory: HostDirectory) -> None:
        self._directory = directory
        self._job = JobDirectory(directory.path.parent.parent)
        self._plan: Plan = directory.read_plan()
        self._name = self._plan.job or self._job.name
        self._is_mounted = bool(os.environ.get(MOUNTED))
        self._paths = Paths(OPT_ML if self._is_mounted else directory.ml)
        self._s3 = S3Settings(**self._plan.s3) if self._plan.s3 is not None else None
        self._sources = directory.sources(self._plan)
        self._stores: list[RemoteStore] = []
        self._mounts = StoreMounts(self._directory.say, self._is_mounted)
        self._pipes = ChannelPipes(self._sources, self._paths.data, directory.views, self._s3)
        self._failure = ""
        self._supervisor: Supervisor | None = None
        self._to_begin: list[CheckpointSync | Usage] = []
        self._is_ending = False
        self._num_reported = 0
        self._is_python = True
        self._is_orphan = False

    def run(self) -> bool:
        """Does all of it. Returns: whether the job is left to the agents to be ended."""
        if not self._directory.lock.acquire():
            raise SmdistributedError(f"there is an agent of {self._directory.path} already.")
        self._report(Phase.PREPARING)
        if self._plan.attempt > 1:
            self._directory.say(f"attempt {self._plan.attempt} of the job begins")
        command: list[str] = []
        try:
            resources = Resources.of_json(_json_of(self._plan))
            self._bring_data()
            prepare(self._plan, self._sources, self._paths, resources, self._directory.views)
            for note in notes_on(self._sources, self._directory.views, self._is_mounted):
                self._directory.say(note)
            hyperparameters = Hyperparameters.of(self._decoded())
            script = script_of(self._plan, self._name, hyperparameters)
            self._is_python = script.entry_point.endswith(".py")
            command = command_of(
                script.entry_point, command_line(hyperparameters.user), self._paths.code
            )
            environments = self._environments(resources, hyperparameters, script)
            self._tell_of_paths(script)
            if not self._is_unwanted():
                with self._keeping_checkpoints(), self._pipes, self._debugged_rank() as debugged:
                    self._train(command, environments, debugged)
        except Abandoned:
            pass  # there was nothing to end
        except DataError as error:
            self._fail(_failure_of(str(error), error.is_passing))
        except PreparationError as error:
            self._fail(failure_text(error.error_class, error.status, str(error), command))
        except CommandError as error:
            self._fail(failure_text("ExecuteUserScriptError", error.status, str(error), command))
        except Exception as error:
            self._fail(f"Framework Error: \n{type(error).__name__}: {error}")
        self._mounts.close()
        self._directory.give_room()
        self._report(Phase.ENDED)
        is_ours_to_end = self._directory.is_kept() is None and not self._job.is_alive()
        self._directory.lock.release()
        return is_ours_to_end

    def _bring_data(self) -> None:
        """What is in an S3 store comes here, or is mounted: that is in its place then."""
        given = self._plan.data()
        mounted = self._mounts.mount(given, self._s3, self._paths.data, self._is_unwanted)
        self._sources = {
            name: source for name, source in self._sources.items() if name not in mounted
        }
        given = {name: source for name, source in given.items() if name not in mounted}
        bring(given, self._s3, self._directory.data, self._directory.say, self._is_unwanted)

    # --- before ----------------------------------------------------------------------------------

    def _decoded(self) -> dict[str, Any]:
        """The hyperparameters; a path in the place of `/opt/ml` where that is not there."""
        values = decode(self._plan.hyperparameters)
        given = values.get("model_dir")
        if isinstance(given, str) and given.startswith("/"):
            values["model_dir"] = str(self._seen(given))
        return values

    def _seen(self, path: str) -> Path:
        """Where a path is that a script has for `/opt/ml`."""
        given = Path(path)
        if self._is_mounted or not given.is_relative_to(OPT_ML):
            return given
        return self._paths.base / given.relative_to(OPT_ML)

    def _tell_of_paths(self, script: Script) -> None:
        """A script that has `/opt/ml` in it, where that is not there, will not find its things."""
        if self._is_mounted:
            return
        with contextlib.suppress(OSError):
            text = (self._paths.code / script.entry_point).read_text(errors="replace")
            for number, line in enumerate(text.splitlines(), 1):
                if "/opt/ml" in line:
                    self._directory.say(
                        f"WARNING: line {number} of {script.entry_point} has /opt/ml, which is not"
                        f" there on this machine ({line.strip():.80}); use the variables SM_..., or"
                        f" {self._paths.base}"
                    )

    @contextlib.contextmanager
    def _keeping_checkpoints(self) -> Iterator[None]:
        plan = self._plan
        syncs = []
        if plan.checkpoints:
            here, store = self._seen(plan.checkpoints_here), self._store_of(plan.checkpoints)
            syncs.append(CheckpointSync(here, store, self._directory.say))
            try:
                syncs[0].restore()
            except (ConfigurationError, OSError) as error:
                store.close()
                what = f"checkpoints cannot be brought from {plan.checkpoints}"
                raise DataError(what, error) from None
        if plan.intermediate:
            here, store = self._paths.intermediate, self._store_of(plan.intermediate)
            called = "intermediate output"
            syncs.append(
                CheckpointSync(here, store, self._directory.say, deletes=False, called=called)
            )
        self._to_begin = list(syncs)
        try:
            yield
        finally:
            if self._directory.path.is_dir():  # else what is not there was not the script's to keep
                ended_well = all(rank.returncode == 0 for rank in self._ranks())
                for sync in syncs:
                    problem = sync.end(ended_well=ended_well)
                    if problem and not self._failure:
                        self._fail(f"ClientError: {problem}")

    def _store_of(self, place: str) -> FolderStore | RemoteStore:
        """What a place is, that a plan says."""
        if not place.startswith("s3://"):
            return FolderStore(Path(place), f"{self._name}-{self._plan.host}")
        assert self._s3 is not None
        bucket, _, prefix = place.removeprefix("s3://").partition("/")
        prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
        store = RemoteStore(bucket, self._s3, prefix, is_unwanted=self._is_never_to_train)
        self._stores.append(store)
        return store

    def _is_never_to_train(self) -> bool:
        """Whether nothing need come: a stop waits for no store. What ranks have made is kept."""
        return self._supervisor is None and self._is_unwanted()

    def _environments(
        self, resources: Resources, hyperparameters: Hyperparameters, script: Script
    ) -> list[dict[str, str]]:
        plan, code = self._plan, self._paths.code
        base = common_environment(plan, resources, script, self._directory.say)
        layer = self._directory.packages
        folders = [str(code)]
        folders += install(code, layer, script.entry_point, base, self._is_unwanted)
        if importlib.util.find_spec("sagemaker_training") is None:
            folders.append(str(Path(contract.__file__).parent / "toolkit"))
        token = self._job.path / "token"
        return environments_of(
            plan, base, folders, token, self._paths, resources, hyperparameters, script
        )

    # --- while ranks run -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _debugged_rank(self) -> Iterator[DebuggedRank | None]:
        """Of this host, if it is one of its own."""
        plan = self._plan
        own = range(plan.index * plan.processes, (plan.index + 1) * plan.processes)
        if plan.debug_rank is None or plan.debug_rank not in own:
            yield None
            return
        with contextlib.ExitStack() as stack:
            try:
                local_rank = own.index(plan.debug_rank)
                debugged = stack.enter_context(opened(plan.terminal, local_rank))
            except ConfigurationError as error:
                raise PreparationError("ClientError", 1, str(error)) from None
            self._directory.say(
                f"rank {plan.debug_rank} has the terminal {plan.terminal}: it is not logged"
            )
            yield debugged

    def _train(
        self,
        command: list[str],
        environments: list[dict[str, str]],
        debugged: DebuggedRank | None,
    ) -> None:
        plan = self._plan
        scanner = Scanner(MetricDefinition.all_of(plan.metrics))
        log = HostLog(
            self._directory.log, self._directory.metrics, scanner, self._directory.event_file()
        )
        usage = Usage(os.getpid(), self._directory.system_metrics, gpus_of(environments[0]))
        self._to_begin.append(usage)
        self._report(Phase.TRAINING)
        self._supervisor = Supervisor(
            command,
            environments,
            log,
            self._directory.say,
            grace_s=plan.grace_s,
            directory=str(self._paths.code),
            debugged=debugged,
            prefix_of=self._prefix if plan.is_distributed else lambda rank, to_stderr: b"",
            each_second=self._look,
        )
        with contextlib.suppress(OSError):
            self._directory.heartbeat.touch()
        try:
            self._supervisor.run()
        finally:
            with contextlib.suppress(OSError):
                self._directory.heartbeat.unlink(missing_ok=True)
            usage.end()
        pids = [each.pid for each in self._stores if each.pid is not None]
        end_strays([*pids, *self._pipes.pids(), *self._mounts.pids()])
        with contextlib.suppress(OSError):
            self._report(Phase.TRAINING)
        if self._supervisor.has_lost_output:
            self._fail(
                f"ClientError: the log of {plan.host} could not be written ({self._directory.log}):"
                " the disk is full, or it is gone; the ranks were ended."
            )
            return
        if failure := self._data_failure():  # what ranks say follows from it
            self._fail(failure)
            return
        if self._is_orphan and self._directory.is_kept() is not None:
            self._fail(
                f"InternalServerError: the agent of host {plan.host} was left alone: what keeps it"
                " on its machine is gone, and the ranks were ended."
            )
            return
        if self._supervisor.interrupted_by is not None and not self._is_ending:
            name = signal.Signals(self._supervisor.interrupted_by).name
            self._fail(f"InternalServerError: the agent of {plan.host} was told to end, by {name}.")
            return
        failed = [each for each in self._ranks() if each.returncode != 0]
        if not failed or (self._is_ending and not any(each.failed_first for each in failed)):
            return
        failed.sort(key=lambda each: not each.failed_first)
        first = failed[0]
        error_class, message = told_error({first.rank: first.last_lines})
        how = f"rank {first.rank} on {plan.host}"
        if first.returncode < 0:
            how += f", ended by {signal.Signals(-first.returncode).name}"
        said = f"{how}: {message}" if message else f"{how}, printed nothing"
        self._fail(failure_text(error_class, first.status, said, command))

    def _data_failure(self) -> str:
        """Why data do not come any more, while ranks run; empty if they do."""
        if problem := self._mounts.problem:
            return _failure_of(problem, is_passing=True)
        problem = self._pipes.problem
        return problem and _failure_of(problem, self._pipes.is_passing)

    def _prefix(self, local_rank: int, to_stderr: bool) -> bytes:
        rank = self._plan.index * self._plan.processes + local_rank
        return rank_prefix(rank, self._plan.host, to_stderr)

    def _is_unwanted(self) -> bool:
        """Whether nothing need be begun any more."""
        return self._directory.asked_to_end() is not None or not self._is_wanted()

    def _is_wanted(self) -> bool:
        """Whether the job's process lives; of another machine, who keeps this agent knows it."""
        is_kept = self._directory.is_kept()
        return self._job.is_alive() if is_kept is None else is_kept

    def _look(self) -> None:
        """Once a second. A disk that is full for a moment must not end the ranks."""
        with contextlib.suppress(OSError):
            self._look_around()

    def _look_around(self) -> None:
        assert self._supervisor is not None
        if not self._is_wanted() and not self._is_orphan:
            self._is_ending = self._is_orphan = True
            self._supervisor.end(_ORPHAN_GRACE_S, to_groups=not self._is_python)
            self._directory.say("the job's process is gone: ending the ranks")
        self._directory.heartbeat.touch()
        while self._to_begin:  # threads, once the ranks have been started
            self._to_begin.pop().begin()
        self._pipes.begin()  # threads too
        if self._data_failure() and not self._is_ending:
            self._is_ending = True
            self._supervisor.end(self._plan.grace_s, to_groups=not self._is_python)
        if len(self._ranks()) != self._num_reported:  # other hosts need not wait for the rest
            self._report(Phase.TRAINING)
        if self._is_ending:
            return
        end = self._directory.asked_to_end()
        if end is not None:
            self._is_ending = True
            # A shell passes nothing on to what it has started.
            self._supervisor.end(end.grace_s, to_groups=not self._is_python)

    # --- reports ---------------------------------------------------------------------------------

    def _ranks(self) -> tuple[RankEnd, ...]:
        if self._supervisor is None:
            return ()
        first = self._plan.index * self._plan.processes
        return tuple(
            RankEnd(
                first + each.rank,
                each.returncode,
                each.failed_first,
                each.last_lines if each.returncode else [],
                each.ended_at,
            )
            for each in self._supervisor.ended()
        )

    def _report(self, phase: Phase) -> None:
        ranks = self._ranks()
        self._num_reported = len(ranks)
        # The failure says what is needed of these lines; a full disk has little room for a report.
        ranks = tuple(dataclasses.replace(each, last_lines=[]) for each in ranks)
        self._directory.write_report(Report(phase, self._failure, ranks))

    def _fail(self, text: str) -> None:
        path = self._paths.failure
        with contextlib.suppress(OSError):  # the disk may be what is wrong
            path.parent.mkdir(exist_ok=True)
            if not write_failure(path, text) and path.is_file():  # the script's own words are there
                with path.open(encoding="utf-8", errors="replace") as file:
                    text = file.read(_MOST_OF_FAILURE)
                if text.startswith(NOT_THE_SCRIPTS):  # a job that failed so may be tried again
                    text = f"ExecuteUserScriptError: {text}"
        self._failure = text


def _failure_of(problem: str, is_passing: bool) -> str:
    """What may pass is worth another attempt, if the job has one left."""
    return f"{'InternalServerError' if is_passing else 'ClientError'}: {problem}"


def _json_of(plan: Plan) -> str:
    return json.dumps({**plan.resources, "current_host": plan.host})


def main() -> int:
    """Runs the agent of the folder that is the argument."""
    directory = HostDirectory(Path(sys.argv[1]))
    directory.lock.adopt(int(sys.argv[2]))
    if Agent(directory).run():
        end_orphaned_job(directory.path.parent.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
