# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where a URI leads on this machine, and where it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.home import Home
from smdistributed.launch.storage import default_bucket, local_path, require_bucket

HOME = Home(Path("/home/u/.smdistributed"))


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("s3://bucket/a/b", "/home/u/.smdistributed/buckets/bucket/a/b"),
        ("s3://bucket", "/home/u/.smdistributed/buckets/bucket"),
        ("s3://bucket/", "/home/u/.smdistributed/buckets/bucket"),
        ("s3://bucket/a#b?c%20d", "/home/u/.smdistributed/buckets/bucket/a#b?c%20d"),
        ("file:///data/run#1/x?y", "/data/run#1/x?y"),
        ("file:///data/a b", "/data/a b"),
        ("file://localhost/data", "/data"),
    ],
)
def test_where_it_leads(uri: str, path: str) -> None:
    assert local_path(uri, HOME) == Path(path)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket//etc/passwd",
        "s3://bucket/../../x",
        "s3://../x",
        "s3://.hidden/x",
        "s3://",
        "s3:///x",
        "S3://bucket/x",
        "file://relative/x",
        "file://",
        "/plain/path",
        "https://host/x",
        "",
    ],
)
def test_what_leads_nowhere_or_out_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        local_path(uri, HOME)


def test_a_path_as_pathlib_writes_it(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    assert local_path((tmp_path / "a b").as_uri(), HOME) == tmp_path / "a b"
    (tmp_path / "a%20b").mkdir()
    assert local_path(f"file://{tmp_path}/a%20b", HOME) == tmp_path / "a%20b"


def test_a_bucket_that_the_store_does_not_have(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (home.buckets / "mine").mkdir(parents=True)
    require_bucket("s3://mine/x", home)
    require_bucket("file:///anywhere", home)
    with pytest.raises(ConfigurationError, match="bucket 'theirs', which this machine's store"):
        require_bucket("s3://theirs/x", home)


def test_the_default_bucket_is_named_as_amazons() -> None:
    assert default_bucket("eu-west-1") == "sagemaker-eu-west-1-000000000000"
