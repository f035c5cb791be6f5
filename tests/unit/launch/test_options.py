# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: what is ours, what is mpirun's, and where the command begins."""

from pathlib import Path

import pytest

from smdistributed.launch.options import Options, UsageError, build_parser, parse_options


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py", Options(command=("train.py",))),
        ("-np 2 train.py -np 3 --help", Options(("train.py", "-np", "3", "--help"), np=2)),
        ("--np 2 -- -odd", Options(("-odd",), np=2)),
        ("--np=4 a", Options(("a",), np=4)),
        ("-n 1 a", Options(("a",), np=1)),
        ("-x A -x B=1=2 a", Options(("a",), exports=(("A", None), ("B", "1=2")))),
        ("-x B= a", Options(("a",), exports=(("B", ""),))),
        ("-H a:2,b:3 c", Options(("c",), hosts=("a", "b"), slots=5)),
        ("--host a c", Options(("c",), hosts=("a",))),
        ("--cpu a", Options(("a",), cpu=True)),
        ("--check", Options((), check=True)),
        ("--trace runs/t.json a", Options(("a",), trace="runs/t.json")),
        ("--debug 1 -np 2 a", Options(("a",), np=2, debug=1)),
        ("--trace=t.json -np 2 a", Options(("a",), np=2, trace="t.json")),
        (
            "-mca btl tcp --tag-output -bind-to core --map-by slot -np 2 a -mca",
            Options(
                ("a", "-mca"),
                np=2,
                ignored=("-mca btl tcp", "--tag-output", "-bind-to core", "--map-by slot"),
            ),
        ),
        ("--oversubscribe --allow-run-as-root python -m mpi4py t.py", None),
    ],
)
def test_lines(line: str, expected: Options | None) -> None:
    if expected is None:
        expected = Options(
            ("python", "-m", "mpi4py", "t.py"), ignored=("--oversubscribe", "--allow-run-as-root")
        )
    assert parse_options(line.split()) == expected


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "no command is given"),
        ("-np 2", "no command is given"),
        ("--", "no command is given"),
        ("-np", r"-np needs 1 value"),
        ("-mca x", r"-mca needs 2 value"),
        ("--trace", r"--trace needs 1 value"),
        ("-np 0 a", "'0' is not a number of processes"),
        ("-np two a", "'two' is not a number of processes"),
        ("-np -1 a", "'-1' is not a number of processes"),
        ("-wdir /x a", "unknown flag '-wdir'"),
        ("--frobnicate a", "unknown flag '--frobnicate'.*put -- before"),
        ("-x =1 a", "'=1' does not name a variable"),
        ("-x 2=1 a", "does not name a variable"),
        ("-H a, b", "empty host name"),
        ("-H a:x b", "gives 'x' slots"),
        ("-H a --hostfile f b", "both given"),
        ("--hostfile /nonexistent/f b", "cannot be read"),
    ],
)
def test_refusals(line: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        parse_options(line.split())


def test_host_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two hosts\nalpha slots=4 max_slots=8\n\nbeta:2  # other notation\n")
    options = parse_options(["--hostfile", str(path), "a"])
    assert (options.hosts, options.slots) == (("alpha", "beta"), 6)
    path.write_text("# none\n")
    with pytest.raises(UsageError, match="lists no host"):
        parse_options(["--hostfile", str(path), "a"])


def test_the_public_options_are_a_decision() -> None:
    actions = build_parser()._actions
    assert {spelling for action in actions for spelling in action.option_strings} == {
        *("-np", "-n", "--np", "--n", "-x", "-H", "-host", "--host"),
        *("--hostfile", "-hostfile", "--machinefile", "-machinefile"),
        *("--cpu", "--check", "--trace", "--debug", "--version", "-h", "--help"),
    }


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "smddprun -np 2 train.py" in text
    assert "mpirun -np 8" in text
