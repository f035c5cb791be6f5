# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What one rank has recorded of some steps, as data and as a file.

Times are nanoseconds of the rank's CLOCK_MONOTONIC, which ranks of one host share.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from smdistributed._common.errors import ConfigurationError
from smdistributed.modelparallel.atomic_files import OpenFile, replace_file
from smdistributed.modelparallel.report.costs import Row, Settings
from smdistributed.modelparallel.report.segments import RankProgram, program_of

__all__ = [
    "Memory",
    "RankRecord",
    "Sent",
    "StepRecord",
    "Stretch",
    "read_format",
    "read_json",
    "read_rank_record",
    "record_of",
    "write_json",
    "write_rank_record",
]

_FORMAT = "smdistributed.modelparallel rank record"
_VERSION = 1


class Stretch(NamedTuple):
    """A time in which a rank computed for one microbatch, without a break.

    Attributes:
        phase: letter of the task, as in `schedules.schedule.Phase`.
        microbatch: number of it.
        begin_ns, end_ns: on the rank's clock.
        what: modules that were called, for people; empty for the step's body.
    """

    phase: str
    microbatch: int
    begin_ns: int
    end_ns: int
    what: str = ""


class Sent(NamedTuple):
    """Messages of one kind to one rank of the pipeline, in one step."""

    dest: int
    kind: str
    messages: int
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """One step on one rank.

    Attributes:
        number: the same on all ranks.
        microbatches: of it; 0 on ranks that serve, which are not told.
        begin_ns, end_ns: on the rank's clock.
        told_ns: when its last message left. No rank ends a step before every one has come there.
        stretches: in order of time.
        sent: by destination and kind.
        program: number of the one that ran, where `RankRecord.programs` has it. Then stretches are
            its turns.
        held_bytes: of microbatches, at most at a time; None if nobody counted.
    """

    number: int
    microbatches: int
    begin_ns: int
    end_ns: int
    told_ns: int
    stretches: tuple[Stretch, ...]
    sent: tuple[Sent, ...]
    program: int = 0
    held_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Memory:
    """Of a rank, in bytes.

    Attributes:
        parameters, gradients, states, buffers: what was there when the step began.
        grown: how much more the step needed at its peak; None if that could not be measured.
        is_process: the growth is all that malloc gave out in the process; else the device's
            tensors.
        stretches: of that step, in order of time; who computed what when decides how much is kept.
    """

    parameters: int
    gradients: int
    states: int
    buffers: int
    grown: int | None
    is_process: bool
    stretches: tuple[Stretch, ...] = ()

    @property
    def standing(self) -> int:
        """What was there when the step began."""
        return self.parameters + self.gradients + self.states + self.buffers

    @property
    def peak(self) -> int | None:
        """The most that was there at a time."""
        return None if self.grown is None else self.standing + self.grown


@dataclasses.dataclass(frozen=True)
class RankRecord:
    """What a rank has recorded.

    Attributes:
        rank, world_size: in the job.
        partition: that the rank holds, which is its rank in the pipeline.
        members: world ranks of the pipeline, by partition.
        host, pid, clock, wall_offset_ns: as in a trace of smddptrace.
        version: of the library.
        settings: of the pipeline.
        rows: of the partition table; the same on all ranks, without times.
        order: modules that ran here, as they were called first, with the time of that.
        module_seconds: by module, its own forward in one step, all microbatches together.
        memory: of one step; None if none was looked at.
        steps: in order of time.
        programs: what ran in them, where that is known beforehand.
    """

    rank: int
    world_size: int
    partition: int
    members: tuple[int, ...]
    host: str
    pid: int
    clock: str
    wall_offset_ns: int
    version: str
    settings: Settings
    rows: tuple[Row, ...]
    order: tuple[tuple[str, int], ...]
    module_seconds: Mapping[str, float]
    memory: Memory | None
    steps: tuple[StepRecord, ...]
    programs: tuple[RankProgram, ...] = ()


def write_rank_record(path: str | Path, record: RankRecord) -> None:
    """Writes a record as JSON; the file is whole or what it was.

    Raises:
        OSError: it cannot be written.
    """
    write_json(path, {"format": _FORMAT, "version": _VERSION, "record": dataclasses.asdict(record)})


def read_rank_record(path: str | Path) -> RankRecord:
    """Reads what `write_rank_record` has written.

    Raises:
        ConfigurationError: it cannot be read, or it is something else.
    """
    content = read_json(path, _FORMAT, _VERSION, "what a rank records with SMP_REPORT")
    try:
        return record_of(content["record"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is damaged: {type(error).__name__} {error}; expected a file as a rank has"
            " written it. Give it unchanged, or record again."
        ) from error


def record_of(content: dict[str, Any]) -> RankRecord:
    """A record of what `dataclasses.asdict` has made of one."""
    steps = tuple(
        StepRecord(
            **{
                **step,
                "stretches": tuple(Stretch(*each) for each in step["stretches"]),
                "sent": tuple(Sent(*each) for each in step["sent"]),
            }
        )
        for step in content["steps"]
    )
    memory = content["memory"]
    return RankRecord(
        **{
            **content,
            "members": tuple(content["members"]),
            "settings": Settings(**content["settings"]),
            "rows": tuple(Row(**row) for row in content["rows"]),
            "order": tuple((name, time) for name, time in content["order"]),
            "memory": None if memory is None else _memory_of(memory),
            "steps": steps,
            "programs": tuple(program_of(each) for each in content.get("programs", ())),
        }
    )


def _memory_of(content: dict[str, Any]) -> Memory:
    stretches = tuple(Stretch(*each) for each in content.get("stretches", ()))
    return Memory(**{**content, "stretches": stretches})


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Writes JSON; folders are made, and the file is whole or what it was.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, default=_plain)

    def write(file: OpenFile) -> None:
        file.write(f"{text}\n".encode())

    # All ranks have the same report, and may write it to the same place at the same time.
    replace_file(str(path), secrets.token_hex(8), write)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{value!r} cannot be written as JSON")


def read_format(path: str | Path) -> str:
    """What a file says it is; empty if it does not.

    Raises:
        ConfigurationError: it cannot be read, or is not JSON.
    """
    content = _parsed(path, "what ranks have recorded, or a saved report")
    return str(content.get("format", "")) if isinstance(content, dict) else ""


def read_json(path: str | Path, form: str, version: int, what: str) -> Any:
    """Reads JSON of one format.

    Raises:
        ConfigurationError: it cannot be read, or it is something else than `what`.
    """
    content = _parsed(path, what)
    if not isinstance(content, dict) or content.get("format") != form:
        raise ConfigurationError(f"{path} is something else; expected {what}. Give other files.")
    if content.get("version") != version:
        raise ConfigurationError(
            f"{path} has version {content.get('version')!r}; expected {version}, which this release"
            " reads and writes. Use the release that has written it, or record again."
        )
    return content


def _parsed(path: str | Path, what: str) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error.strerror}); expected {what}. Check the path."
        ) from error
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is not JSON ({error}); expected {what}. Give other files, or record again."
        ) from error
