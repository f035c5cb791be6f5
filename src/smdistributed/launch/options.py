# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of `smddprun`, which people and training toolkits write in mpirun's words.

Options end at the first word that is not one; everything from there on is the command and is not
looked at. argparse alone cannot do that with single-dash words such as `-np`, nor skip an mpirun
flag together with its values, so the words are sorted first and argparse reads what is ours.

Source: dataparallel specification, section 10.
"""

import argparse
import dataclasses
import re
from collections.abc import Sequence
from typing import NoReturn

from smdistributed._common.version import __version__

__all__ = ["MAX_LOCAL_RANKS", "Options", "UsageError", "build_parser", "parse_options"]

MAX_LOCAL_RANKS = 1024

# Our options by every spelling that mpirun launchers use for them; value: words that follow.
_OWN_ARITY = {
    "-np": 1,
    "--np": 1,
    "-n": 1,
    "--n": 1,
    "-x": 1,
    "-H": 1,
    "-host": 1,
    "--host": 1,
    "-hostfile": 1,
    "--hostfile": 1,
    "-machinefile": 1,
    "--machinefile": 1,
    "--cpu": 0,
    "--check": 0,
    "--trace": 1,
    "--debug": 1,
    "--version": 0,
    "-h": 0,
    "--help": 0,
}

# mpirun flags that only say how output looks or where processes are placed; safe to leave out.
# Those that change what runs (-wdir, -N, --app, ...) are not here, hence an error.
_IGNORED_ARITY = {
    "allow-run-as-root": 0,
    "bind-to": 1,
    "bind-to-core": 0,
    "bind-to-none": 0,
    "bind-to-socket": 0,
    "display": 1,
    "display-allocation": 0,
    "display-map": 0,
    "gmca": 2,
    "map-by": 1,
    "mca": 2,
    "nooversubscribe": 0,
    "omca": 2,
    "output": 1,
    "oversubscribe": 0,
    "pmca": 2,
    "pmixmca": 2,
    "prtemca": 2,
    "q": 0,
    "quiet": 0,
    "rank-by": 1,
    "report-bindings": 0,
    "show-progress": 0,
    "tag-output": 0,
    "timestamp-output": 0,
    "use-hwthread-cpus": 0,
    "v": 0,
    "verbose": 0,
}

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_DESCRIPTION = """\
Start the processes of a data parallel job on this machine, or join a job that mpirun, srun or
torchrun is starting."""

_EXAMPLES = """\
examples:
  smddprun -np 2 train.py --epochs 3       two processes here, with this Python
  smddprun -np 2 python -u train.py        the same, with the Python found on PATH
  smddprun -np 4 --cpu train.py            a script written for GPUs, on CPUs
  smddprun -x NCCL_DEBUG=INFO train.py     one process per GPU, with a variable
  mpirun -np 8 -H a:4,b:4 -x MASTER_ADDR=a smddprun python train.py
  srun -N 2 --ntasks-per-node 4 smddprun python train.py
                                           several hosts: started by mpirun or srun
  smddprun -np 2 --debug 1 train.py        rank 1 keeps the terminal, for breakpoint()
  smddprun --check                         what a bug report needs, and a self-test

Each line of a process starts with its rank. The first process that fails ends all, and its exit
status is that of smddprun (128 + n if signal n killed it). Ctrl-C is passed on; a second one kills.
"""


class UsageError(Exception):
    """The command line cannot be followed; the text says why and what to write instead."""


@dataclasses.dataclass(frozen=True)
class Options:
    """A command line, understood.

    Attributes:
        command: words of the command to run; empty only with `check`.
        np: number of processes to start here, or `None`: choose.
        exports: `-x` in order: (name, value), value `None` for "as it is here".
        hosts: what `-H` or the host file lists, without slot counts; empty if not given.
        slots: slots that `-H` or the host file gives for all hosts together, or `None`.
        cpu: run scripts written for GPUs on CPUs.
        check: print what a bug report needs.
        trace: file for a timeline of the ranks, or `None`.
        debug: the rank that keeps the terminal, or `None`.
        ignored: mpirun flags that were left out, with their values.
    """

    command: tuple[str, ...]
    np: int | None = None
    exports: tuple[tuple[str, str | None], ...] = ()
    hosts: tuple[str, ...] = ()
    slots: int | None = None
    cpu: bool = False
    check: bool = False
    trace: str | None = None
    debug: int | None = None
    ignored: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def build_parser(program: str = "smddprun") -> argparse.ArgumentParser:
    """Returns the parser of our own options; its help is what `--help` prints."""
    parser = _Parser(
        prog=program,
        usage=f"{program} [options] [--] COMMAND [ARG...]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument(
        "-np",
        "-n",
        "--np",
        "--n",
        dest="np",
        metavar="N",
        type=_process_count,
        help="processes to start on this machine (default: one per visible GPU, else 1)",
    )
    parser.add_argument(
        "-x",
        dest="exports",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        type=_export,
        help="set a variable for the processes, or pass one on; may be repeated",
    )
    parser.add_argument(
        "-H",
        "-host",
        "--host",
        dest="hosts",
        metavar="HOST[:SLOTS],...",
        help="only this host; other hosts are started through mpirun, srun or torchrun",
    )
    parser.add_argument(
        "--hostfile",
        "-hostfile",
        "--machinefile",
        "-machinefile",
        dest="hostfile",
        metavar="FILE",
        help="the same, from a file with one 'HOST [slots=N]' per line",
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help=(
            "run a script written for GPUs on CPUs: hides the GPUs, and what the script asks of "
            "'cuda' is done on the CPU (sets SMDDP_CPU_SHIM=full, CUDA_VISIBLE_DEVICES= and "
            "ACCELERATE_TORCH_DEVICE=cpu)"
        ),
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="print what a bug report needs and run a two-process self-test",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="record a timeline of all ranks, such as runs/trace.json (sets SMDDP_TRACE)",
    )
    parser.add_argument(
        "--debug",
        metavar="RANK",
        type=_rank,
        help="this rank keeps the terminal: breakpoint() works in it, and the others wait as long",
    )
    parser.add_argument("--version", action="version", version=f"{program} {__version__}")
    parser.add_argument("-h", "--help", action="help", help="show this text")
    return parser


def parse_options(arguments: Sequence[str], program: str = "smddprun") -> Options:
    """Reads a command line, without the program's name.

    Raises:
        UsageError: an unknown flag, a missing or wrong value, or no command.
        SystemExit: after `--help` and `--version`.
    """
    own, ignored, command = _sort_words(arguments)
    parsed = build_parser(program).parse_args(own)
    if not command and not parsed.check:
        raise UsageError("no command is given; expected a script or program to run")
    hosts, slots = _read_hosts(parsed.hosts, parsed.hostfile)
    return Options(
        command=tuple(command),
        np=parsed.np,
        exports=tuple(parsed.exports),
        hosts=hosts,
        slots=slots,
        cpu=parsed.cpu,
        check=parsed.check,
        trace=parsed.trace,
        debug=parsed.debug,
        ignored=tuple(ignored),
    )


def _sort_words(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns our options, mpirun's that are ignored (each with its values), and the command."""
    own: list[str] = []
    ignored: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            position += 1
            break
        if not word.startswith("-") or word == "-":
            break
        name, has_value, _ = word.partition("=")
        is_own = word in _OWN_ARITY or (name in _OWN_ARITY and name.startswith("--"))
        arity = _OWN_ARITY[name] if is_own else _ignored_arity(name)
        if arity is None:
            raise UsageError(
                f"unknown flag {word!r}; expected one of our options (see --help) or an mpirun "
                "flag that can be left out. Remove it, or put -- before a command that starts "
                "with a dash"
            )
        end = position + 1 + (arity - 1 if has_value and arity else arity)
        if end > len(arguments):
            raise UsageError(f"{word} needs {arity} value(s); nothing follows it. Add the value(s)")
        if is_own:
            own += arguments[position:end]
        else:
            ignored.append(" ".join(arguments[position:end]))
        position = end
    return own, ignored, list(arguments[position:])


def _ignored_arity(word: str) -> int | None:
    """Mpirun takes its flags with one dash and with two."""
    return _IGNORED_ARITY.get(word.removeprefix("-").removeprefix("-"))


def _process_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_LOCAL_RANKS):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of processes; expected 1 to {MAX_LOCAL_RANKS}"
        )
    return int(text)


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) < MAX_LOCAL_RANKS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank; expected 0, 1, 2, ...")
    return int(text)


def _export(text: str) -> tuple[str, str | None]:
    name, has_value, value = text.partition("=")
    if _VARIABLE_NAME.fullmatch(name) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} does not name a variable; expected NAME or NAME=VALUE"
        )
    return name, value if has_value else None


def _read_hosts(listed: str | None, hostfile: str | None) -> tuple[tuple[str, ...], int | None]:
    if listed is not None and hostfile is not None:
        raise UsageError("-H and --hostfile are both given; expected one of them. Remove one")
    hosts: list[str] = []
    slots: list[int | None] = []
    if listed is not None:
        for item in listed.split(","):
            host, has_slots, count = item.strip().partition(":")
            hosts.append(host)
            slots.append(_slot_count(count, item) if has_slots else None)
        if not all(hosts):
            raise UsageError(f"-H {listed!r} has an empty host name; expected HOST[:SLOTS],...")
    if hostfile is not None:
        try:
            with open(hostfile, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"host file {hostfile!r} cannot be read ({error}); expected a text file with one "
                "host per line. Correct the path"
            ) from error
        for line in lines:
            words = line.partition("#")[0].split()
            if words:
                host, has_slots, count = words[0].partition(":")
                for word in words[1:]:
                    if word.startswith("slots="):
                        has_slots, count = "=", word.removeprefix("slots=")
                hosts.append(host)
                slots.append(_slot_count(count, line) if has_slots else None)
        if not hosts:
            raise UsageError(f"host file {hostfile!r} lists no host; expected one per line")
    if all(count is None for count in slots):
        return tuple(hosts), None
    return tuple(hosts), sum(count or 1 for count in slots)


def _slot_count(text: str, item: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_LOCAL_RANKS):
        raise UsageError(
            f"{item.strip()!r} gives {text!r} slots; expected 1 to {MAX_LOCAL_RANKS}. Correct it"
        )
    return int(text)
