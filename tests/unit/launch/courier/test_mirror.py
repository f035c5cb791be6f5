# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever a courier says, the mirror writes where it may, ends, and says why."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine_speed import scaled

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.version import __version__
from smdistributed.launch.agent.plan import HostDirectory, Phase, Plan
from smdistributed.launch.courier.messages import (
    MARK,
    AgentEnded,
    Bring,
    Brought,
    Close,
    Decoder,
    Dropped,
    EndRanks,
    Grown,
    Hello,
    Kept,
    Make,
    Message,
    Place,
    Start,
    StillHere,
    Told,
    encoded,
)
from smdistributed.launch.courier.mirror import Mirror, MirrorError

HELLO = Hello(__version__, "there", "10.0.0.1", "eth0", "/there", 0, [1000, 1001], "x", 0.0)


class FakeLink:
    """Says what a test says, and keeps what it hears."""

    def __init__(self) -> None:
        self.says: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.heard: list[Message] = []
        self.is_cut = False
        self._decoder = Decoder()

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.says.put(encoded(message))

    def pids(self) -> list[int]:
        return []

    def read(self) -> bytes:
        return self.says.get()

    def write(self, content: bytes) -> None:
        if self.is_cut:
            raise OSError("cut")
        self.heard += self._decoder.feed(content)

    def why_closed(self) -> str:
        return "closed"

    def cut(self) -> None:
        self.is_cut = True
        self.says.put(b"")

    def end(self, timeout_s: float) -> None:
        self.cut()

    def free(self) -> None:
        """Nothing."""


def plan(**given: Any) -> Plan:
    return Plan(
        **{
            "host": "algo-1",
            "index": 0,
            "num_hosts": 1,
            "processes": 1,
            "is_distributed": False,
            "master_address": "10.0.0.1",
            "master_port": 1000,
            "addresses": {},
            "machine_index": 0,
            "machine_hosts": 1,
            "resources": {},
            "hyperparameters": {},
            "channels": {},
            "sources": {},
            "archive": "",
            "environment": {},
            "metrics": [],
            **given,
        }
    )


class Begun:
    """A mirror whose courier was told to start."""

    def __init__(self, root: Path, **given: Any) -> None:
        self.root = root
        self.job = root / "job"
        self.store = root / "store"
        self.store.mkdir()
        (self.store / "mine").write_text("mine")
        self.job.mkdir()
        (self.job / "token").write_text("t")
        (root / "outside").write_text("outside")
        self.link = FakeLink()
        self.mirror = Mirror("there", self.link)
        self.link.says.put(MARK + encoded(HELLO))
        self.mirror.hello(scaled(10))
        self.host = HostDirectory(self.job / "hosts" / "algo-1")
        self.mirror.begin(self.host, plan(checkpoints=str(self.store), **given), self.job / "token")

    def wait(self, holds: Callable[[], Any]) -> None:
        until = time.monotonic() + scaled(10)
        while not holds():
            assert time.monotonic() < until
            time.sleep(0.005)

    def wait_for(self, kind: type[Message]) -> Any:
        self.wait(lambda: any(isinstance(each, kind) for each in self.link.heard))
        return next(each for each in self.link.heard if isinstance(each, kind))


@pytest.fixture
def begun(tmp_path: Path) -> Any:
    made = Begun(tmp_path)
    yield made
    made.mirror.close()


def test_what_a_host_needs_comes_before_its_start(begun: Begun) -> None:
    begun.wait_for(Start)
    sent = [each for each in begun.link.heard if not isinstance(each, StillHere)]
    assert [each.path for each in sent if isinstance(each, Place)] == [
        "token",
        "store/checkpoints/mine",
        "plan.json",
    ]
    assert isinstance(sent[-1], Start)
    told = json.loads(next(e.body for e in sent if isinstance(e, Place) and e.path == "plan.json"))
    assert told["checkpoints"] == "/there/store/checkpoints"


_PATHS = st.sampled_from(
    [
        *("hosts/algo-1/log", "hosts/algo-1/metrics.jsonl", "hosts/algo-2/log", "job.json"),
        *("hosts/algo-1/plan.json", "tensorboard/algo-1/events.out.tfevents.1", "../outside"),
        *("tensorboard/algo-1/..", "hosts/algo-1/../../token", "/etc/x", "a", "a/b", ""),
    ]
)
_STORES = st.sampled_from(["checkpoints", "intermediate", "job", ""])
_BODIES = st.sampled_from([b"", b"x\n", b'{"phase": "ended", "failure": "", "ranks": []}', b"{}"])
_OFFSETS = st.sampled_from([0, 0, 2, -1])
_MESSAGES = st.one_of(
    st.builds(StillHere, st.floats(-10, 10), st.booleans(), st.booleans()),
    st.just(HELLO),
    st.builds(Grown, _PATHS, _OFFSETS, _BODIES),
    st.builds(Told, _BODIES),
    st.builds(
        Kept, _STORES, _PATHS, _OFFSETS, st.integers(0, 511), _OFFSETS, st.booleans(), _BODIES
    ),
    st.builds(Dropped, _STORES, _PATHS),
    st.builds(AgentEnded, st.integers(-9, 9)),
    st.builds(Brought, st.sampled_from(["model", "x"]), st.booleans(), st.just(""), _BODIES),
    st.builds(Place, _PATHS, _OFFSETS, _OFFSETS, _OFFSETS, st.booleans(), _BODIES),
    st.builds(Make, _PATHS, _OFFSETS),
    st.builds(EndRanks, st.just("x"), st.just(1.0)),
    st.just(Bring(["model"])),
    st.just(Close()),
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(_MESSAGES, max_size=6), st.booleans())
def test_whatever_it_says(messages: list[Message], has_begun: bool) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        begun = Begun(root)
        if has_begun:
            begun.wait_for(Start)
        begun.link.say(*messages)
        begun.link.says.put(b"")
        assert begun.mirror.wait(scaled(10))
        begun.mirror.how_it_ended()
        begun.host.read_report()
        begun.mirror.close()
        assert (root / "outside").read_text() == "outside"
        assert (begun.job / "token").read_text() == "t"
        assert (begun.store / "mine").read_text() == "mine"
        assert sorted(os.listdir(root)) == ["job", "outside", "store"]
        allowed = {"hosts", "token", "tensorboard"}
        assert set(os.listdir(begun.job)) <= allowed
        assert os.listdir(begun.job / "hosts") == ["algo-1"]
        assert not list(begun.store.rglob(".smd-*"))
        assert json.loads((begun.host.path / "plan.json").read_text())["host"] == "algo-1"
    finally:
        shutil.rmtree(root)


def test_a_connection_that_says_nonsense(tmp_path: Path) -> None:
    link = FakeLink()
    mirror = Mirror("there", link)
    link.says.put(b"bash: python: not found" + MARK + b"nonsense, and more of it")
    with pytest.raises(MirrorError, match="begins no message"):
        mirror.hello(scaled(10))
    assert link.is_cut
    mirror.close()


def test_data_that_cannot_be_read_are_not_tried_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "gone").symlink_to(tmp_path / "nothing")
    begun = Begun(tmp_path, sources={"train": {"root": str(data), "objects": None}})
    begun.wait(begun.mirror.has_ended)
    report = begun.host.read_report()
    assert report is not None
    assert report.phase is Phase.ENDED
    assert report.failure.startswith("ClientError: channel 'train': ")
    assert "which is not there" in report.failure
    begun.mirror.close()


def test_a_channel_is_what_it_is_here(tmp_path: Path) -> None:
    """In the first version an empty channel had a file, and empty folders were missing."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    (data / "empty").mkdir(parents=True, mode=0o750)
    elsewhere.mkdir()
    (elsewhere / "file").write_text("x")
    (elsewhere / "file").chmod(0o751)
    (data / "link").symlink_to(elsewhere)
    begun = Begun(tmp_path, sources={"train": {"root": str(data), "objects": None}})
    begun.wait_for(Start)
    made = {each.path: each.mode for each in begun.link.heard if isinstance(each, Make)}
    assert made == {
        "data/train": 0o755,
        "data/train/empty": 0o750,
        "data/train/link": 0o755,
    }
    placed = {
        each.path: (each.mode, each.body)
        for each in begun.link.heard
        if isinstance(each, Place) and each.path.startswith("data/")
    }
    assert placed == {"data/train/link/file": (0o751, b"x")}
    begun.mirror.close()


def test_a_channel_that_may_be_written_to_is_shared(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    source = {"root": str(tmp_path / "data"), "objects": None, "is_writable": True}
    begun = Begun(tmp_path, sources={"train": source})
    begun.wait(begun.mirror.has_ended)
    report = begun.host.read_report()
    assert report is not None
    assert "expected one that the machines share" in report.failure
    begun.mirror.close()


def test_a_stop_does_not_wait_for_data(begun: Begun) -> None:
    begun.link.heard.clear()
    sent = begun.mirror._wanted(iter([Close()] * 3))
    assert next(sent) == Close()
    begun.mirror.terminate()
    assert list(sent) == []


def test_checkpoints_that_cannot_be_kept_are_told(begun: Begun) -> None:
    begun.wait_for(Start)
    begun.link.say(
        Kept("checkpoints", "mine/file", 0, 0o600, 0, True, b"x"),
        Kept("checkpoints", "fine", 0, 0o640, 0, True, b"x"),
        AgentEnded(0),
    )
    assert begun.mirror.wait(scaled(10))
    assert (begun.store / "fine").stat().st_mode & 0o777 == 0o640
    assert "mine/file could not be copied to" in begun.host.log.read_text()
    with pytest.raises(ConfigurationError, match="mine/file could not be copied to"):
        begun.mirror.bring([])


def test_a_clock_that_is_wrong_is_told(tmp_path: Path) -> None:
    begun = Begun(tmp_path)  # it is in the year 1970 there
    assert "s behind that of this machine" in begun.host.log.read_text()
    begun.mirror.close()


def test_what_is_lost_while_it_is_brought(begun: Begun) -> None:
    begun.wait_for(Start)
    begun.link.say(AgentEnded(0), Brought("model", False, "", b"x"))
    assert begun.mirror.wait(scaled(10))
    with pytest.raises(MirrorError, match="lost"):
        begun.mirror.bring(["model"])
    assert not (begun.host.path / "brought.tar").exists()


def test_a_rank_s_end_is_told_by_the_clock_of_this_machine(begun: Begun) -> None:
    theirs = time.monotonic() - 5000
    rank = {"rank": 0, "returncode": 1, "failed_first": True, "last_lines": []}
    document = {"phase": "training", "failure": "", "ranks": [{**rank, "ended_at": theirs}]}
    begun.link.say(StillHere(theirs, False, False), Told(json.dumps(document).encode()))
    begun.wait(lambda: begun.host.read_report() is not None)
    report = begun.host.read_report()
    assert report is not None
    assert abs(report.ranks[0].ended_at - time.monotonic()) < scaled(10)
    assert dataclasses.asdict(report.ranks[0])["returncode"] == 1
