# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The block for bug reports shows what matters and hides what is secret."""

import pytest

from smdistributed.launch import check


def test_secrets_are_hidden_and_strangers_are_left_out() -> None:
    shown = check.relevant_variables(
        {
            "SMDDP_TOKEN": "hush-hush",
            "SMDDP_TOKEN_FILE": "/run/token",
            "RANK": "1",
            "OMPI_COMM_WORLD_RANK": "1",
            "AWS_SECRET_ACCESS_KEY": "hush",
            "HOME": "/h",
        }
    )
    assert shown == {
        "OMPI_COMM_WORLD_RANK": "1",
        "RANK": "1",
        "SMDDP_TOKEN": "(hidden, 9 characters)",
        "SMDDP_TOKEN_FILE": "/run/token",
    }


def test_a_wrong_environment_is_part_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_probe", lambda code: f"asked: {code}")
    report = dict(check.collect_report({"RANK": "x", "WORLD_SIZE": "1", "SMDDP_ZERO_COPY": "?"}))
    assert report["process"].startswith("ERROR: RANK='x'")
    assert report["settings"].startswith("ERROR: SMDDP_ZERO_COPY='?'")
    assert "import torch" in report["torch"]
    assert {"python", "system", "cores", "memory", "/dev/shm", "GPUs"} <= report.keys()


def test_probes_survive_what_they_ask() -> None:
    assert check._probe("print('noise'); print(6 * 7)") == "42"
    assert check._probe("raise ValueError('no')") == "none (ValueError: no)"
    assert "cannot be asked" in check._last_line(["/nonexistent/program"])


def test_without_the_compiled_part_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "_probe", lambda code: "none (ModuleNotFoundError)")
    assert check.run_check(lambda text: None) == 1
    assert "The compiled engine cannot be imported; install the package" in capsys.readouterr().out


def test_zero_copy_is_part_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_probe", lambda code: f"asked: {code}")
    report = dict(check.collect_report({}))
    assert "ddp_buckets import obstacle" in report["zero copy"]
    assert "adopter" not in report["zero copy"]
    recurring = dict(check.collect_report({"SMDDP_ZERO_COPY": "recurring"}))["zero copy"]
    assert "ddp_buckets import obstacle" in recurring
    assert "adopter import obstacle" in recurring
    assert "address space" in report["shared memory limit"]
    assert "off" in dict(check.collect_report({"SMDDP_ZERO_COPY": "0"}))["zero copy"]
    assert "settings" in dict(check.collect_report({"SMDDP_ZERO_COPY": "?"}))["zero copy"]


def test_this_torch_can_do_without_a_copy() -> None:
    assert check._zero_copy({"SMDDP_ZERO_COPY": "recurring"}) == (
        "gradient buckets of torch are made in shared memory; tensors that recur move there"
        " (SMDDP_ZERO_COPY=recurring)"
    )


def test_settings_are_an_aligned_table_without_secrets() -> None:
    table = check._settings({"SMDDP_TOKEN": "hush-hush-hush-hush", "SMDDP_INTERFACE": "eth0,eth1"})
    rows = [line.split(maxsplit=1) for line in table.splitlines()]
    values = dict(rows)
    assert values["timeout_s"] == "1800.0"
    assert values["zero_copy"] == "1"
    assert values["interfaces"] == "eth0, eth1"
    assert values["algorithms"] == values["trace"] == "-"
    assert (
        len({line.rindex(value) for line, (_, value) in zip(table.splitlines(), rows, strict=True)})
        == 1
    )
    assert "hush" not in table
    assert "Settings(" not in table
