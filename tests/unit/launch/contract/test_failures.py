# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The texts of launch specification, section 7.3, for a script that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from smdistributed.launch.contract.failures import (
    failure_reason,
    failure_text,
    told_error,
    write_failure,
)

TRACE = [
    "training ...",
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "ValueError: the loss is nan",
]


def test_the_text() -> None:
    assert failure_text("ExecuteUserScriptError", 1, "ValueError: x", ["python", "a.py"]) == (
        'ExecuteUserScriptError:\nExitCode 1\nErrorMessage "ValueError: x"\nCommand "python a.py"'
    )


def test_a_process_that_was_killed_may_have_had_no_memory() -> None:
    assert failure_text("ExecuteUserScriptError", 137, "", ["python", "a.py"]) == (
        'ExecuteUserScriptError:\nExitCode 137\nErrorMessage ""\n'
        'ExtraInfo "OutOfMemory: Process killed by SIGKILL (signal 9)"\nCommand "python a.py"'
    )


def test_of_a_long_message_the_end_is_kept() -> None:
    text = failure_text("ExecuteUserScriptError", 7, "x" * 5000 + "the reason", ["python", "a.py"])
    reason = failure_reason(text)
    assert reason.endswith('the reason"\nCommand "python a.py"')


def test_one_rank_tells_from_the_line_that_names_an_error() -> None:
    assert told_error({0: TRACE}) == ("ExecuteUserScriptError", "ValueError: the loss is nan")


def test_one_copy_of_what_many_ranks_say() -> None:
    assert told_error(dict.fromkeys(range(16), TRACE))[1] == "ValueError: the loss is nan"


def test_different_texts_name_their_ranks() -> None:
    outputs = {3: TRACE, 12: ["PeerLostError: rank 3 is gone"], 0: TRACE}
    assert told_error(outputs) == (
        "PeerLostError",
        "[rank 0, 3] ValueError: the loss is nan\n[rank 12] PeerLostError: rank 3 is gone",
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            "smdistributed.dataparallel.exceptions.SMDDPTimeout: a peer",
            "SMDDPTimeout",
        ),
        ("smdistributed.modelparallel.exceptions.SMPError: no", "SMPError"),
        ("smdistributed.modelparallel.exceptions.StepAborted: no", "StepAborted"),
        ("KeyError: 'SMPLE'", "ExecuteUserScriptError"),
        ("RuntimeError: no", "ExecuteUserScriptError"),
    ],
)
def test_errors_of_this_library_give_their_name(line: str, name: str) -> None:
    found, message = told_error({0: ["before", line, "after"]})
    assert (found, message) == (name, f"{line}\nafter")


def test_output_without_an_error_is_told_whole() -> None:
    assert told_error({0: ["a", "b"]})[1] == "a\nb"
    assert told_error({}) == told_error({0: []}) == ("ExecuteUserScriptError", "")


def test_the_reason_has_1024_characters() -> None:
    assert failure_reason("x" * 2000) == "AlgorithmError: " + "x" * 1008


def test_the_scripts_own_words_stay(tmp_path: Path) -> None:
    path = tmp_path / "failure"
    assert write_failure(path, "first ä \ud800")
    assert not write_failure(path, "second")
    assert path.read_text(encoding="utf-8") == "first ä ?"
