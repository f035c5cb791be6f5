# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A job's directory: whole or not there, and clear about what is wrong with it."""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.home import Home, home_directory
from smdistributed.launch.jobs.directory import create_job, find_job, job_names
from smdistributed.launch.jobs.files import Lock, append_line, write_or_make, write_whole
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary, Status

NOW = dt.datetime(2026, 11, 27, 12, 0, tzinfo=dt.UTC)


def record_of(name: str) -> JobRecord:
    request = {"TrainingJobName": name, "ResourceConfig": {"InstanceCount": 1}}
    return JobRecord.new(request, {}, f"arn:{name}", NOW)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_new_job_has_its_record(home: Home) -> None:
    job = create_job(home, ["job-1"], record_of)
    assert job.read() == record_of("job-1")
    assert find_job(home, "job-1").read() == record_of("job-1")
    assert job_names(home) == ["job-1"]
    assert not job.is_alive()
    assert job.path.stat().st_mode & 0o077 == 0, "what a job trains is its user's"


def test_a_new_job_is_alive_from_its_first_moment(home: Home) -> None:
    job = create_job(home, ["job-1"], record_of)
    assert find_job(home, "job-1").is_alive(), "who made it holds its lock"
    program = "import sys, time; print(flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, pass_fds=(job.lock.descriptor,)
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        job.lock.hand_over()
        assert find_job(home, "job-1").is_alive(), "and then who was given it"
    finally:
        holder.kill()
        holder.communicate()
    assert not find_job(home, "job-1").is_alive()


def test_a_record_that_cannot_be_made_leaves_nothing(home: Home) -> None:
    def fails(name: str) -> JobRecord:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        create_job(home, ["job-1"], fails)
    assert job_names(home) == []
    assert create_job(home, ["job-1"], record_of).name == "job-1"


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_of_jobs_that_others_may_write_to(home: Home, mode: int) -> None:
    home.jobs.mkdir(parents=True)
    home.jobs.chmod(mode)
    with pytest.raises(ConfigurationError, match="nobody else may write to"):
        create_job(home, ["job-1"], record_of)


def test_a_change_is_read_by_others(home: Home) -> None:
    job = create_job(home, ["job-1"], record_of)
    job.write(job.read().moved(Secondary.FAILED, NOW, reason="it did"))
    found = find_job(home, "job-1").read()
    assert (found.status, found.failure_reason) == (Status.FAILED, "it did")
    assert sorted(os.listdir(job.path)) == ["job.json", "lock", "reserve"]


def test_the_next_name_is_taken_where_one_is_there(home: Home) -> None:
    assert create_job(home, ["a", "b"], record_of).name == "a"
    assert create_job(home, ["a", "b"], record_of).name == "b"
    with pytest.raises(ConfigurationError, match=r"a job of the name 'a' .* 1 names after it"):
        create_job(home, ["a", "b"], record_of)
    assert job_names(home) == ["a", "b"]


def test_many_at_once_get_names_of_their_own(home: Home) -> None:
    names = [f"job-{number}" for number in range(32)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(create_job, home, names, record_of) for _ in range(32)]
        made = [future.result().name for future in futures]
    assert sorted(made) == sorted(names)
    left = sorted(os.listdir(home.jobs))
    assert left == sorted([".creating", *names]), "nothing is left beside them"


def test_a_job_that_is_not_there_names_those_that_are_called_nearly_so(home: Home) -> None:
    create_job(home, ["mnist-2026"], record_of)
    with pytest.raises(ConfigurationError, match=r"could not find job 'mnist-2025'.*mnist-2026"):
        find_job(home, "mnist-2025")
    with pytest.raises(ConfigurationError, match="cannot be the name"):
        find_job(home, "../mnist-2026")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is damaged"),
        (b"{", "is damaged"),
        (b"[]", "is damaged"),
        (b"{}", "is damaged"),
        (b"\xff\xfe\x00", "is damaged"),
        (b'{"Format": 2}', "a later version wrote it"),
        (b"[" * 100_000, "is damaged"),
        (None, "is not there"),
    ],
)
def test_a_record_that_cannot_be_used_is_one_clear_error(
    home: Home, content: bytes | None, text: str
) -> None:
    job = create_job(home, ["job-1"], record_of)
    other = create_job(home, ["job-2"], record_of)
    path = job.path / "job.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=text) as raised:
        job.read()
    assert "'job-1'" in str(raised.value)
    assert other.read() == record_of("job-2")
    assert job_names(home) == ["job-1", "job-2"]


def test_a_record_is_a_directory(home: Home) -> None:
    job = create_job(home, ["job-1"], record_of)
    (job.path / "job.json").unlink()
    (job.path / "job.json").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        job.read()


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot be made in .*Set SMD_HOME"):
        create_job(Home(tmp_path / "file"), ["a"], record_of)


def test_events_keep_their_order_and_lose_a_torn_line_only(home: Home) -> None:
    job = create_job(home, ["job-1"], record_of)
    assert list(job.events()) == []
    job.note("begun", NOW)
    with (job.path / "events.jsonl").open("ab") as file:
        file.write(b'{"time": "2026-11-27T12:00')  # its writer was killed
    job.note("rank-ended", NOW, rank=3, status=7)
    first, second = job.events()
    assert first == {"time": "2026-11-27T12:00:00.000+00:00", "event": "begun"}
    assert (second["event"], second["rank"], second["status"]) == ("rank-ended", 3, 7)


def test_lines_of_many_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: append_line(path, str(n % 10).encode() * 5000), range(200)))
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == 200
    assert {(len(line), len(set(line))) for line in lines} == {(5000, 1)}


def test_asked_to_stop_once_or_twice(home: Home) -> None:
    job = create_job(home, ["job-1"], record_of)
    assert job.stop_reason() is None
    job.ask_to_stop("stop() of user ä")
    job.ask_to_stop("again")
    assert find_job(home, "job-1").stop_reason() == "stop() of user ä"


HOLDER = """
import sys, time
from pathlib import Path
from smdistributed.launch.jobs.files import Lock
lock = Lock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
time.sleep(60)
"""


def test_a_lock_is_none_of_the_first_descriptors(tmp_path: Path) -> None:
    """Which some daemons close; a child would get something else there."""
    program = f"""
import os, sys
from pathlib import Path
from smdistributed.launch.jobs.files import Lock
for number in (0, 1):
    os.close(number)
lock = Lock(Path({str(tmp_path / "lock")!r}))
lock.acquire()
sys.exit(lock.descriptor < 3)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_file_that_says_enough_by_being_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    write_or_make(tmp_path / "stop", b"why")
    assert (tmp_path / "stop").read_bytes() == b""


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_the_home_is_its_users_alone_whatever_the_umask(home: Home, mask: int) -> None:
    before = os.umask(mask)
    try:
        create_job(home, ["job-1"], record_of)
    finally:
        os.umask(before)
    for path in (home.root, home.jobs, home.buckets):
        assert path.stat().st_mode & 0o777 == 0o700


def test_the_lock_tells_that_a_process_lives_and_fools_nobody_after_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not Lock(path).is_held_elsewhere()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert Lock(path).is_held_elsewhere()
        assert not Lock(path).acquire()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    mine = Lock(path)
    assert not mine.is_held_elsewhere()
    assert mine.acquire()
    assert mine.acquire(), "it is held already"
    assert not mine.is_held_elsewhere()
    child = os.fork()
    if child == 0:  # it has the descriptor too
        signal.pause()
        os._exit(0)
    try:
        mine.release()
        assert Lock(path).acquire(), "though a process that was forked meanwhile lives"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_who_looks_does_not_keep_others_from_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        looks = pool.submit(lambda: [Lock(path).is_held_elsewhere() for _ in range(2000)])
        for _ in range(200):
            lock = Lock(path)
            assert lock.acquire()
            lock.release()
        looks.result()


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    class Disk(Exception):
        pass

    def full(*_: object) -> None:
        raise Disk

    replace, os.replace = os.replace, full
    try:
        with pytest.raises(Disk):
            write_whole(path, b"new")
    finally:
        os.replace = replace
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"SMD_HOME": "/data/smd", "HOME": "/home/u"}, "/data/smd"),
        ({"SMD_HOME": "/data/smd"}, "/data/smd"),
        ({"HOME": "/home/u"}, "/home/u/.smdistributed"),
        ({"SMD_HOME": "", "HOME": "/home/u"}, "/home/u/.smdistributed"),
    ],
)
def test_where_the_home_is(environ: dict[str, str], root: str) -> None:
    home = home_directory(environ)
    assert home.root == Path(root)
    assert home.jobs == Path(root) / "jobs"


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({}, "HOME is None.*Set SMD_HOME"),
        ({"HOME": ""}, "HOME is ''.*Set SMD_HOME"),
        ({"SMD_HOME": "here"}, "SMD_HOME is 'here'; expected an absolute path"),
    ],
)
def test_no_home_is_one_error_with_the_variable_to_set(environ: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        home_directory(environ)


def test_a_thousand_jobs_are_listed(home: Home) -> None:
    for number in range(1000):
        path = home.jobs / f"job-{number}"
        path.mkdir(parents=True)
        document = record_of(path.name).to_json()
        (path / "job.json").write_text(json.dumps(document))
    (home.jobs / ".new-half").mkdir()
    (home.jobs / "a-file").write_text("")
    names = job_names(home)
    assert len(names) == 1000
    assert {find_job(home, name).read().status for name in names} == {Status.IN_PROGRESS}


def test_a_child_that_is_forked_does_not_hold_what_its_parent_holds(tmp_path: Path) -> None:
    """A worker of a DataLoader may outlive the job that its notebook has started."""
    lock = Lock(tmp_path / "lock")
    assert lock.acquire()
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        lock.hand_over()  # the descriptor is closed, and nothing is unlocked
        assert Lock(tmp_path / "lock").acquire()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
