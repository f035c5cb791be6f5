# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which backend a job is of (launch specification, section 11)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.engines import Backends, chosen, hosts_for
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory, create_job
from smdistributed.launch.jobs.record import JobRecord


def job_of(home: Home, backend: str, **local: Any) -> JobDirectory:
    output = {"S3OutputPath": "s3://b/out"}
    request = {"TrainingJobName": "job", "ResourceConfig": {}, "OutputDataConfig": output}
    record = JobRecord.new(request, {"Backend": backend, **local}, "", dt.datetime.now(dt.UTC))
    return create_job(home, ["job"], lambda _: record)


def test_what_was_given_wins_over_the_environment_and_that_over_the_settings(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    assert chosen(None, {}, home) == "local"
    home.config.write_text("default_backend = 'nonsense'")
    assert chosen("local", {"SMD_BACKEND": "nonsense"}, home) == "local"
    with pytest.raises(ConfigurationError, match="SMD_BACKEND is 'nonsense'; expected one of 'lo"):
        chosen(None, {"SMD_BACKEND": "nonsense"}, home)
    with pytest.raises(ConfigurationError, match=r"default_backend in .* is 'nonsense'"):
        chosen(None, {"SMD_BACKEND": ""}, home)
    with pytest.raises(ConfigurationError, match=r"^backend is 'x'"):
        chosen("x", {}, home)


def test_a_job_of_a_backend_that_this_version_does_not_have(tmp_path: Path) -> None:
    job = job_of(Home(tmp_path), "later")
    expected = "the backend of job 'job' is 'later'; expected one of 'local'"
    with pytest.raises(ConfigurationError, match=expected):
        hosts_for(job)
    with pytest.raises(ConfigurationError, match=expected):
        Backends(lambda: "local").poll(job)
    job.lock.release()


def test_a_rank_elsewhere_cannot_have_this_terminal(tmp_path: Path) -> None:
    job = job_of(Home(tmp_path), "ray", debug_rank=0)
    backends = Backends(lambda: "ray")
    with pytest.raises(ConfigurationError, match="the job is of the backend 'ray'; expected 'loc"):
        backends.submit(job)
    assert job.read().failure_reason.startswith("ClientError: a rank is to be debugged")
