# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What Slurm says about a process that `srun` started, and its compressed notations.

A process of an sbatch script body or of a salloc shell also sees Slurm variables, yet it is not one
of the job's ranks: there `SLURM_PROCID` is 0 for everyone. Only a step counts, and not the
one-task step that Slurm itself makes for a shell.

The local rank is `SLURM_LOCALID` and never rank modulo size: with `--distribution=cyclic`
neighbouring ranks sit on different hosts.

Source: dataparallel specification, section 3.2, row 6, and section 3.3, row 5.
"""

import re
from collections.abc import Iterator, Mapping

from smdistributed._common.discovery.membership import Claim
from smdistributed._common.discovery.variables import read_int, read_text
from smdistributed._common.errors import ConfigurationError

__all__ = [
    "expand_nodelist",
    "expand_tasks_per_node",
    "master_host",
    "slurm_claim",
    "step_size",
]

# Step identifiers at and above this one are Slurm's own: interactive shell, batch script, external.
_FIRST_SPECIAL_STEP = 4294967290

# Bounds on what a compressed list may expand to; far above any machine, far below the memory.
_MAX_HOSTS = 1_000_000

_TASKS_TERM = re.compile(r"(?P<tasks>[0-9]{1,9})(?:\(x(?P<times>[0-9]{1,9})\))?", re.ASCII)
_RANGE = re.compile(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?", re.ASCII)


def step_size(environ: Mapping[str, str]) -> tuple[str, int | None]:
    """Returns the variable that tells the number of tasks of this step, and that number.

    The number is `None` outside a step that runs the job's ranks.
    """
    name = "SLURM_NTASKS" if read_text(environ, "SLURM_NTASKS") is not None else "SLURM_NPROCS"
    tasks = read_int(environ, name)
    step = read_int(environ, "SLURM_STEP_ID")
    if tasks is None or step is None or step >= _FIRST_SPECIAL_STEP:
        return name, None
    step_tasks = read_int(environ, "SLURM_STEP_NUM_TASKS")
    if step_tasks is None:
        step_tasks = sum(_step_tasks_per_node(environ)) or None
    if step_tasks == 1 and tasks > 1:
        return name, None
    return name, tasks


def slurm_claim(environ: Mapping[str, str]) -> Claim | None:
    """What `srun` says, or `None` outside a step that runs the job's ranks."""
    rank = read_int(environ, "SLURM_PROCID")
    size_name, world_size = step_size(environ)
    if rank is None or world_size is None:
        return None
    node_rank = read_int(environ, "SLURM_NODEID")
    num_nodes = read_int(environ, "SLURM_STEP_NUM_NODES")
    return Claim(
        source="slurm",
        title="Slurm",
        rank_name="SLURM_PROCID",
        size_name=size_name,
        rank=rank,
        world_size=world_size,
        local_rank=read_int(environ, "SLURM_LOCALID"),
        local_world_size=_local_size(environ, node_rank),
        node_rank=node_rank,
        num_nodes=len(_step_tasks_per_node(environ)) or None if num_nodes is None else num_nodes,
        local_rank_name="SLURM_LOCALID",
        local_size_name="SLURM_STEP_TASKS_PER_NODE",
    )


def _step_tasks_per_node(environ: Mapping[str, str]) -> list[int]:
    text = read_text(environ, "SLURM_STEP_TASKS_PER_NODE")
    return [] if text is None else expand_tasks_per_node(text)


def _local_size(environ: Mapping[str, str], node_rank: int | None) -> int | None:
    tasks_per_node = _step_tasks_per_node(environ)
    if node_rank is None or not tasks_per_node:
        return None
    if not 0 <= node_rank < len(tasks_per_node):
        raise ConfigurationError(
            f"SLURM_NODEID={node_rank} is out of range for SLURM_STEP_TASKS_PER_NODE="
            f"{environ['SLURM_STEP_TASKS_PER_NODE']!r}, which lists {len(tasks_per_node)} nodes. "
            "Start the processes with srun, and do not change its variables."
        )
    return tasks_per_node[node_rank]


def master_host(environ: Mapping[str, str]) -> str | None:
    """The first host of this step, where task 0 runs; not where `srun` was typed."""
    text = read_text(environ, "SLURM_STEP_NODELIST")
    return None if text is None else expand_nodelist(text)[0]


def expand_tasks_per_node(text: str) -> list[int]:
    """Expands Slurm's notation of tasks per node: `"8(x2),4"` gives `[8, 8, 4]`.

    Raises:
        ConfigurationError: the text is not in that notation.
    """
    counts: list[int] = []
    for term in text.split(","):
        match = _TASKS_TERM.fullmatch(term.strip())
        times = int(match["times"] or 1) if match else 0
        if match is None or times < 1 or len(counts) + times > _MAX_HOSTS:
            raise ConfigurationError(
                f"SLURM_STEP_TASKS_PER_NODE={text!r} cannot be read at {term!r}; expected terms "
                "such as 8 or 8(x2), separated by commas. Start the processes with srun, and do "
                "not change its variables."
            )
        counts.extend([int(match["tasks"])] * times)
    return counts


def expand_nodelist(text: str) -> list[str]:
    """Expands Slurm's host list: `"a[01-03,7],b"` gives `["a01", "a02", "a03", "a7", "b"]`.

    Several brackets in one name multiply, the last one running fastest; leading zeros stay.

    Raises:
        ConfigurationError: the text is not in that notation.
    """
    hosts: list[str] = []
    for term in _split_outside_brackets(text):
        for host in _expand_term(term, text):
            hosts.append(host)
            if len(hosts) > _MAX_HOSTS:
                raise _nodelist_error(text, f"it names more than {_MAX_HOSTS} hosts")
    return hosts


def _split_outside_brackets(text: str) -> list[str]:
    terms = [""]
    depth = 0
    for character in text.strip():
        if character == "," and depth == 0:
            terms.append("")
            continue
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise _nodelist_error(text, "its brackets do not match")
        terms[-1] += character
    if depth != 0:
        raise _nodelist_error(text, "its brackets do not match")
    if not all(terms):
        raise _nodelist_error(text, "it has an empty host name")
    return terms


def _expand_term(term: str, text: str) -> Iterator[str]:
    head, bracket, rest = term.partition("[")
    if not bracket:
        yield head
        return
    inside, _, tail = rest.partition("]")
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise _nodelist_error(text, f"{piece!r} is not a number or a range")
        first, last = match["first"], match["last"] or match["first"]
        if int(last) < int(first):
            raise _nodelist_error(text, f"the range {piece!r} runs backwards")
        for number in range(int(first), int(last) + 1):
            for end in _expand_term(tail, text):
                yield f"{head}{number:0{len(first)}d}{end}"


def _nodelist_error(text: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"SLURM_STEP_NODELIST={text!r} cannot be read: {reason}; expected names such as "
        "node[01-04],login. Start the processes with srun, or set MASTER_ADDR."
    )
