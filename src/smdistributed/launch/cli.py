# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The commands `smddprun`, `smddpsinglenode` (also `smddp_singlenode_dev`) and `smddpmprun`.

Either the process that runs the command is one of a job's already, then the environment is
completed and the command takes its place (`exec`: same process id, so signals and exit status
pass); or nobody has started ranks yet, then `Supervisor` starts them on this machine.

Source: dataparallel specification, section 10.
"""

import argparse
import contextlib
import dataclasses
import logging
import os
import shlex
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import NoReturn

from smdistributed._common.discovery import Membership, discover, export_membership
from smdistributed._common.errors import ConfigurationError
from smdistributed._common.settings import Settings
from smdistributed.launch import check, environment, traces
from smdistributed.launch.debugging import WITHOUT_LIMIT, DebuggedRank, terminal_kept
from smdistributed.launch.options import (
    MAX_LOCAL_RANKS,
    Options,
    UsageError,
    build_parser,
    parse_options,
)
from smdistributed.launch.output import Console
from smdistributed.launch.supervisor import CommandError, Supervisor

__all__ = ["main", "main_mprun", "main_single_node"]

_USAGE_STATUS = 2
_CONFIGURATION_STATUS = 2

# Sources that mean "somebody has started this very process as one rank of a job".
_PER_PROCESS = ("torch", "openmpi", "mvapich", "pmi", "ray", "slurm")


def main(arguments: Sequence[str] | None = None) -> int:
    """`smddprun`; returns the exit status, or does not return where the command takes over."""
    return _run("smddprun", arguments, one_host=False)


def main_single_node(arguments: Sequence[str] | None = None) -> int:
    """`smddpsinglenode`: `smddprun` that refuses to be part of a job over several hosts."""
    return _run("smddpsinglenode", arguments, one_host=True)


def main_mprun(arguments: Sequence[str] | None = None) -> int:
    """`smddpmprun -i TYPE [--allow-bypass] COMMAND...`: sets the variables, runs the command.

    It stands in front of model parallel jobs and starts no processes itself.
    """
    program = "smddpmprun"
    say = _speaker(program)
    parser = argparse.ArgumentParser(
        prog=program,
        usage=f"{program} -i TYPE [--allow-bypass] COMMAND [ARG...]",
        description="Set the variables of section 'Launch' of the guide, then run COMMAND.",
        allow_abbrev=False,
    )
    parser.add_argument("-i", dest="instance_type", metavar="TYPE", required=True)
    parser.add_argument("--allow-bypass", action="store_true", help="accepted, has no effect")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args(None if arguments is None else list(arguments))
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    if not command:
        parser.print_usage(sys.stderr)
        say("no command is given; expected a script or program to run")
        return _USAGE_STATUS
    try:
        _export(discover(), os.environ, say)
    except ConfigurationError as error:
        say(str(error))
        return _CONFIGURATION_STATUS
    os.environ["SAGEMAKER_INSTANCE_TYPE"] = parsed.instance_type
    return _execute(command, say)


def _run(program: str, arguments: Sequence[str] | None, *, one_host: bool) -> int:
    say = _speaker(program)
    try:
        options = parse_options(sys.argv[1:] if arguments is None else arguments, program)
    except UsageError as error:
        print(build_parser(program).format_usage(), end="", file=sys.stderr)
        say(f"{error}. See {program} --help.")
        return _USAGE_STATUS
    if options.ignored:
        say(f"left out, as they have no meaning here: {', '.join(options.ignored)}")
    for name, value in options.exports:
        if value is None and name not in os.environ:
            say(f"-x {name}: it is not set here, so it is not passed on")
    # Counted before --cpu hides them: the same job has the same number of processes on CPUs.
    accelerators = environment.visible_accelerators(
        environment.apply_exports(os.environ, options.exports)
    )
    if options.cpu:
        os.environ.update(environment.CPU_ONLY)
    if options.trace:
        os.environ["SMDDP_TRACE"] = options.trace
    if options.debug is not None:
        os.environ.update(WITHOUT_LIMIT)
    os.environ.update(environment.apply_exports({}, options.exports))
    completed = environment.model_parallel_variables(os.environ)
    os.environ.update(completed)
    # As if given with -x, which goes before all that is set for each process.
    options = dataclasses.replace(options, exports=(*options.exports, *completed.items()))
    try:
        if options.check:
            return check.run_check(say)
        Settings.from_environ()  # before ranks start, and once for all of them
        membership = discover()
        _refuse_other_hosts(options, membership, one_host=one_host)
        if membership.source in _PER_PROCESS:
            return _join_job(options, membership, say)
        return _start_job(options, accelerators, say)
    except ConfigurationError as error:
        say(str(error))
        return _CONFIGURATION_STATUS


def _refuse_other_hosts(options: Options, membership: Membership, *, one_host: bool) -> None:
    """Raises ConfigurationError where other hosts are asked for: they are not ours to start."""
    how = (
        "Several hosts are started by mpirun, srun or torchrun, each process with smddprun in "
        "front of the command: mpirun -np 8 -H a:4,b:4 -x MASTER_ADDR=a smddprun python train.py"
    )
    is_rank = membership.source in _PER_PROCESS
    if not is_rank:
        others = [host for host in options.hosts if not environment.names_this_host(host)]
        if others:
            raise ConfigurationError(
                f"host(s) {', '.join(others)} are not this machine; expected this one only. {how}"
            )
        if membership.source == "sagemaker" and membership.world_size > 1 and not one_host:
            raise ConfigurationError(
                f"SM_HOSTS lists {membership.world_size} hosts, but no launcher has started ranks"
                f" on them; expected one host, or RANK and WORLD_SIZE. {how}"
            )
    if one_host and is_rank and (membership.num_nodes or 1) > 1:
        raise ConfigurationError(
            f"this job spans {membership.num_nodes} hosts; expected one. Use smddprun instead."
        )


def _join_job(options: Options, membership: Membership, say: Callable[[str], None]) -> int:
    """Replaces this process by the command, as one rank of a job that is being started."""
    if options.debug is not None:
        raise ConfigurationError(
            f"--debug {options.debug} is given, but the ranks were started by another launcher"
            f" (source: {membership.source}), which has their terminals; expected smddprun to start"
            " them: smddprun -np 2 --debug 1 train.py"
        )
    if options.np is not None and options.np != membership.world_size and membership.rank == 0:
        say(
            f"-np {options.np} is left out: this is rank 0 of a job of {membership.world_size} "
            f"that has been started already (source: {membership.source})"
        )
    # torchrun's processes have all they need; anything else gets what it lacks. GPUs are bound by
    # the script or the library, by local rank: narrowing what is visible here would make the
    # index in every script's set_device(local_rank) wrong.
    if membership.source != "torch" or membership.local_rank is None:
        _export(membership, os.environ, say)
    os.environ.update(environment.with_horovod(os.environ))
    return _execute(environment.full_command(options.command), say)


def _export(
    membership: Membership, environ: MutableMapping[str, str], say: Callable[[str], None]
) -> None:
    if membership.rank == 0:
        for warning in membership.warnings:
            say(warning)
    # They have just been said, and the command says nothing before the exec.
    logging.getLogger("smdistributed").setLevel(logging.ERROR)
    export_membership(membership, environ)


def _execute(command: Sequence[str], say: Callable[[str], None]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        _replace_process(command)
    except OSError as error:
        say(
            f"cannot run {command[0]!r} ({error.strerror}); expected a program on PATH, a path, or "
            "a script that ends in .py. Check the spelling and the permissions."
        )
        return 127 if isinstance(error, FileNotFoundError) else 126


def _replace_process(command: Sequence[str]) -> NoReturn:
    os.execvpe(command[0], list(command), os.environ)


def _start_job(options: Options, accelerators: int, say: Callable[[str], None]) -> int:
    """Starts the ranks on this machine and waits for their end."""
    np = options.np or options.slots or accelerators or 1
    if np > MAX_LOCAL_RANKS:
        raise ConfigurationError(
            f"{np} processes on one machine; expected at most {MAX_LOCAL_RANKS}. Give -np."
        )
    if options.debug is not None and options.debug >= np:
        raise ConfigurationError(
            f"--debug {options.debug} is no rank of {np}; expected 0 to {np - 1}. Change it, or"
            " -np."
        )
    for warning in (
        environment.sharing_warning(np, 0 if options.cpu else accelerators),
        environment.horovod_warning(os.environ),
    ):
        if warning is not None:
            say(warning)
    cores = environment.usable_cores()
    environments = environment.local_environments(os.environ, np, environment.free_port(), cores)
    # What was given with -x is meant, even if it is a variable that is normally ours.
    environments = [environment.apply_exports(one, options.exports) for one in environments]
    if "OMP_NUM_THREADS" not in os.environ:
        say(
            f"OMP_NUM_THREADS={environments[0]['OMP_NUM_THREADS']} for each of {np} rank(s), as "
            f"{cores} core(s) can be used; set it to choose otherwise"
        )
    command = environment.full_command(options.command)
    for stream in (sys.stdout, sys.stderr):
        # Somebody who shares the terminal may have made it non-blocking; a full one would then look
        # like one that nobody reads.
        with contextlib.suppress(OSError):
            os.set_blocking(stream.fileno(), True)
    console = Console(sys.stdout.buffer, sys.stderr.buffer)
    debugged = None if options.debug is None else DebuggedRank(options.debug)
    if debugged is not None:
        say(
            f"rank {debugged.rank} has this terminal, and the others wait for it without limit;"
            " Ctrl-C twice ends all"
        )
    if options.trace:
        traces.remove_old_traces(options.trace, np)
    try:
        with terminal_kept(0) if debugged is not None else contextlib.nullcontext():
            status = Supervisor(command, environments, console, say, debugged=debugged).run()
    except CommandError as error:
        say(str(error))
        return error.status
    except OSError as error:
        say(
            f"{shlex.join(command)} could not be started {np} time(s) ({error}); expected enough "
            "processes and file descriptors. Check ulimit -u and ulimit -n."
        )
        return 1
    if options.trace:
        traces.merge_traces(options.trace, np, say)
    _survive_closed_output()
    return status


def _survive_closed_output() -> None:
    """Keeps the interpreter from complaining at its end that nobody reads our output any more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _speaker(program: str) -> Callable[[str], None]:
    """Returns what prints the launcher's own lines, to stderr and never twice as one line."""

    def say(text: str) -> None:
        with contextlib.suppress(OSError):
            print(f"{program}: {text}", file=sys.stderr, flush=True)

    return say
