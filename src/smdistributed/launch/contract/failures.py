# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is said of a script that failed: the file `failure`, and the job's `FailureReason`.

Source: launch specification, section 7.3.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["NOT_THE_SCRIPTS", "failure_reason", "failure_text", "told_error", "write_failure"]

NOT_THE_SCRIPTS = ("ClientError", "InternalServerError")
"""Failures that begin so were not the script's: of the request, and of our processes."""

_SCRIPT_ERROR = "ExecuteUserScriptError"
_OUT_OF_MEMORY = 137
_MOST_OF_MESSAGE = 640
# torch puts it before each line of a traceback, once ranks have met.
_OF_TORCH = re.compile(r"^\[rank\d+\]: ?")
_OF_MEMORY = '\nExtraInfo "OutOfMemory: Process killed by SIGKILL (signal 9)"'

# Classes of this library; the toolkit puts the first of them that the output names in the place of
# its own.
_OF_LIBRARY = re.compile(
    r"^(?:\w+\.)*(SMDDP[A-Z]\w+|SMP[A-Z][a-z]\w+|StepAborted|RemoteError|PeerLostError|MismatchError"
    r"|CollectiveTimeoutError|ModelNotPartitionedError|MultipleDistributedModelError)(?::|$)",
    re.MULTILINE,
)
# The last line of a traceback: "ValueError: text", or "package.module.OurError".
_ERROR_LINE = re.compile(
    r"^(?:\w+\.)*([A-Z]\w*(?:Error|Exception|Exit|Interrupt|Aborted|Mismatch|Timeout|Lost))(?::|$)"
)


def told_error(output_by_rank: Mapping[int, Iterable[str]]) -> tuple[str, str]:
    """The class that the failure is called by, and what the ranks said of it.

    Args:
        output_by_rank: the last lines of each rank that failed, without prefixes; those that
            failed first come first.

    Returns: the class; and of each different text, from the line that names an error on, one copy,
        with the ranks that said it if not all said the same.
    """
    ranks_by_text: dict[str, list[int]] = {}
    for rank, lines in output_by_rank.items():
        text = "\n".join(_from_error([_OF_TORCH.sub("", line) for line in lines]))
        if text:
            ranks_by_text.setdefault(text, []).append(rank)
    found = next(filter(None, map(_OF_LIBRARY.search, ranks_by_text)), None)
    name = found[1] if found else _SCRIPT_ERROR
    if len(ranks_by_text) < 2:
        return name, next(iter(ranks_by_text), "")
    return name, "\n".join(
        f"[rank {_listed(ranks)}] {text}" for text, ranks in ranks_by_text.items()
    )


def _from_error(lines: Sequence[str]) -> Sequence[str]:
    for number, line in enumerate(lines):
        if _ERROR_LINE.match(line):
            return lines[number:]
    return lines


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def failure_text(error_class: str, status: int, message: str, command: Sequence[str]) -> str:
    """What stands in the file.

    Args:
        error_class: such as `ExecuteUserScriptError`, `InstallRequirementsError`.
        status: exit status; 128 + n if signal n ended the process.
        message: what the processes said.
        command: that was run.
    """
    if len(message) > _MOST_OF_MESSAGE:  # the reason of a job is short, and the end says most
        message = f"... {message[-_MOST_OF_MESSAGE:]}"
    extra = _OF_MEMORY if status == _OUT_OF_MEMORY else ""
    return (
        f'{error_class}:\nExitCode {status}\nErrorMessage "{message}"{extra}'
        f'\nCommand "{" ".join(command)}"'
    )


def failure_reason(text: str) -> str:
    """The job's `FailureReason`, of what stands in the file: at most 1024 characters."""
    return f"AlgorithmError: {text}"[:1024]


def write_failure(path: Path, text: str) -> bool:
    """Writes the file, unless there is one: a script's own words are worth more.

    Returns: whether it was written.

    Raises:
        OSError: it cannot be.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    return True
