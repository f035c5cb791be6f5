# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The folder of a host."""

from __future__ import annotations

from pathlib import Path

from smdistributed.launch.agent.plan import End, HostDirectory, Phase, Report


def test_a_host_is_made_new_for_another_attempt(tmp_path: Path) -> None:
    host = HostDirectory(tmp_path / "hosts" / "algo-1")
    data = tmp_path / "data"
    data.mkdir()
    (data / "mine").write_text("the user's")
    for folder in (host.ml / "model", host.ml / "input" / "data", host.packages):
        folder.mkdir(parents=True)
    (host.ml / "input" / "data" / "training").symlink_to(data)
    (host.ml / "model" / "weights").write_text("of the first attempt")
    host.log.write_text("a line\n")
    host.metrics.write_text("{}\n")
    host.heartbeat.touch()
    host.write_report(Report(Phase.ENDED))
    host.ask_to_end(End("it has failed", 5.0))
    host.renew()
    assert sorted(each.name for each in host.path.iterdir()) == ["log", "metrics.jsonl"]
    assert host.asked_to_end() is None
    assert (data / "mine").read_text() == "the user's", "a channel is a link"
