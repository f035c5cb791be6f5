# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A URI is of this machine unless a store was named (launch specification, section 5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.places import (
    ENDPOINTS,
    keep_settings,
    kept_settings,
    s3_place,
    s3_settings,
)
from smdistributed.launch.data.stores.s3 import S3Settings
from smdistributed.launch.home import Home
from smdistributed.launch.storage import require_bucket


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "which alone says nothing")
    home = Home(tmp_path / "home")
    home.make()
    return home


def test_without_a_store_all_is_of_this_machine(home: Home) -> None:
    assert s3_place("s3://bucket/key", home) is None
    with pytest.raises(ConfigurationError, match=r"No S3 store is asked.*\[s3\].*S3_ENDPOINT_URL"):
        require_bucket("s3://bucket/key", home)


def test_a_store_has_what_this_machine_has_not(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.config.write_text('[s3]\nendpoint_url = "http://store:9000"\nregion = "here"\n')
    place = s3_place("s3://bucket/some/key/", home)
    assert place is not None
    assert (place.bucket, place.key, place.folder) == ("bucket", "some/key/", "some/key/")
    assert place.settings == S3Settings("http://store:9000", "here")
    (home.buckets / "bucket").mkdir()
    assert s3_place("s3://bucket/some/key", home) is None
    assert s3_place("s3://sagemaker-us-east-1-000000000000/key", home) is None
    assert s3_place("file:///some/path", home) is None
    for name, url in zip(reversed(ENDPOINTS), ("http://a", "http://b", "http://c"), strict=True):
        monkeypatch.setenv(name, url)
        assert s3_settings(home) == S3Settings(url, "here")
    monkeypatch.setenv(ENDPOINTS[0], "a")
    with pytest.raises(ConfigurationError, match=r"S3_ENDPOINT_URL: the endpoint URL of S3 is 'a'"):
        s3_settings(home)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amazon = true", S3Settings()),
        ('amazon = true\nregion = "eu-west-1"', S3Settings("", "eu-west-1")),
        ("", "neither endpoint_url nor amazon = true"),
        ('region = "x"', "neither endpoint_url nor"),
        ('endpoint_url = "http://x"\namazon = true', "both endpoint_url and amazon"),
        ("amazon = 1", "s3 in .* has amazon = 1; expected"),
        ('secret_key = "hunter2"', r"has secret_key = \.\.\.; expected"),
        ('endpoint_url = "x"', "s3 in .*: the endpoint URL of S3 is 'x'"),
    ],
)
def test_settings_say_where(home: Home, text: str, expected: S3Settings | str) -> None:
    home.config.write_text(f"[s3]\n{text}\n")
    if isinstance(expected, S3Settings):
        assert s3_settings(home) == expected
        return
    with pytest.raises(ConfigurationError, match=expected) as error:
        s3_settings(home)
    assert "hunter2" not in str(error.value)


def test_a_job_remembers_its_store(tmp_path: Path) -> None:
    assert kept_settings(tmp_path) is None
    keep_settings(tmp_path, S3Settings("http://x", "y"))
    assert kept_settings(tmp_path) == S3Settings("http://x", "y")
