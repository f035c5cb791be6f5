# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a channel means on this machine; a bucket is a dict of keys (launch specification, 5)."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smdistributed._common.errors import ConfigurationError, UnsupportedError
from smdistributed.launch.agent.placement import make_views, place
from smdistributed.launch.data.sources import Source, check_channels, sources_of
from smdistributed.launch.home import Home

HOSTS = [("algo-1", "g"), ("algo-2", "g"), ("algo-3", "h")]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    return home


def fill(home: Home, bucket: dict[str, str], name: str = "b") -> None:
    (home.buckets / name).mkdir(exist_ok=True)
    for key, content in bucket.items():
        path = home.buckets / name / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def channel(uri: str, **changed: Any) -> dict[str, Any]:
    """Of a request; what is in capitals goes beside the source."""
    beside = ("InputMode", "CompressionType", "RecordWrapperType", "ShuffleConfig")
    source = {key: value for key, value in changed.items() if key not in beside}
    return {
        "ChannelName": "train",
        "DataSource": {"S3DataSource": {"S3Uri": uri, "S3DataType": "S3Prefix", **source}},
        **{key: value for key, value in changed.items() if key in beside},
    }


def found_by_script(home: Home, source: Source) -> dict[str, str]:
    """What is in the channel, as a script reads it."""
    base = Path(tempfile.mkdtemp(dir=home.root))
    make_views(base / "views", {"train": source})
    place("train", source, base / "views", base / "train")
    assert sorted(os.listdir(base)) == ["train", "views"], "nothing is left beside"
    return {
        os.path.relpath(os.path.join(root, name), base / "train"): Path(root, name).read_text()
        for root, _, names in os.walk(base / "train", followlinks=True)
        for name in names
    }


# --- against a model ------------------------------------------------------------------------------

PARTS = st.sampled_from(["a", "aa", "a-1", "b", ".a", "a.b", "é"])
KEYS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


def is_possible(keys: set[str]) -> bool:
    """Whether files can have these names: none is a folder too."""
    return not any(other.startswith(f"{key}/") for key in keys for other in keys)


def model_of(bucket: dict[str, str], prefix: str) -> list[tuple[str, str]]:
    """Name and content of the objects that match, in the order of their keys."""
    matching = sorted((key for key in bucket if key.startswith(prefix)), key=str.encode)
    named = []
    for key in matching:
        name = key[len(prefix) :]
        while name.startswith("/"):
            name = name[1:]
        named.append((name or key.split("/")[-1], bucket[key]))
    return named


def can_be_placed(named: list[tuple[str, str]]) -> bool:
    names = {name for name, _ in named}
    return len(names) == len(named) and is_possible(names)


@settings(max_examples=60, deadline=None)
@given(st.sets(KEYS, min_size=1, max_size=7).filter(is_possible), st.data())
def test_prefixes_and_shares_are_those_of_a_dict(keys: set[str], data: st.DataObject) -> None:
    bucket = {key: f"content of {key}" for key in sorted(keys)}
    key = data.draw(st.sampled_from(sorted(keys)), "key")
    prefix = key[: data.draw(st.integers(0, len(key)), "length")]
    expected = model_of(bucket, prefix)
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        home.make()
        fill(home, bucket)
        uri = f"s3://b/{prefix}"
        if not can_be_placed(expected):
            with pytest.raises(ConfigurationError, match="expected"):
                sources_of(channel(uri), "File", HOSTS, home)
            return
        whole = sources_of(channel(uri), "File", HOSTS, home)
        assert found_by_script(home, whole["algo-2"]) == dict(expected)
        sharded = channel(uri, S3DataDistributionType="ShardedByS3Key")
        shares = sources_of(sharded, "File", HOSTS, home)
        for index, (host, _) in enumerate(HOSTS):
            assert found_by_script(home, shares[host]) == dict(expected[index::3])


@settings(max_examples=30, deadline=None)
@given(st.sets(KEYS, min_size=1, max_size=6).filter(is_possible), st.data())
def test_manifests_are_those_of_a_dict(keys: set[str], data: st.DataObject) -> None:
    bucket = {key: f"content of {key}" for key in sorted(keys)}
    key = data.draw(st.sampled_from(sorted(keys)), "key")
    prefix = key[: data.draw(st.integers(0, len(key) - 1), "length")]
    chosen = [each[len(prefix) :] for each in sorted(keys) if each.startswith(prefix)]
    chosen = [each for each in chosen if each]
    chosen = data.draw(st.permutations(chosen), "order")
    named = [(each.lstrip("/"), bucket[prefix + each]) for each in chosen]
    assume(can_be_placed(named))
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        home.make()
        fill(home, bucket)
        manifest = json.dumps([{"prefix": f"s3://b/{prefix}"}, *chosen])
        fill(home, {"m": manifest}, "manifests")
        listed = channel("s3://manifests/m", S3DataType="ManifestFile")
        source = sources_of(listed, "File", HOSTS, home)["algo-1"]
        assert found_by_script(home, source) == dict(named)
        assert [each.name for each in source.of_epoch(0)] == [name for name, _ in named]
        listed = channel(
            "s3://manifests/m", S3DataType="ManifestFile", S3DataDistributionType="ShardedByS3Key"
        )
        in_order = sorted(chosen, key=lambda each: (prefix + each).encode())
        for index, (host, _) in enumerate(HOSTS):
            share = {each.lstrip("/"): bucket[prefix + each] for each in in_order[index::3]}
            assert found_by_script(home, sources_of(listed, "File", HOSTS, home)[host]) == share


# --- cases ----------------------------------------------------------------------------------------


def test_a_prefix_that_is_one_folder_is_linked_as_a_whole(home: Home) -> None:
    fill(home, {"p/a/x": "1", "p/b/x": "2"})
    for uri in ("s3://b/p/a", "s3://b/p/a/", "s3://b/p", "s3://b", "s3://b/", "s3://b/p//a"):
        assert sources_of(channel(uri), "File", HOSTS, home)["algo-1"].objects is None
    fill(home, {"p/a-1/x": "3"})
    assert sources_of(channel("s3://b/p/a/"), "File", HOSTS, home)["algo-1"].objects is None
    source = sources_of(channel("s3://b/p/a"), "File", HOSTS, home)["algo-1"]
    assert found_by_script(home, source) == {"x": "1", "-1/x": "3"}


def test_what_is_being_copied_is_no_object(home: Home) -> None:
    fill(home, {"p/x": "1", ".smd-part/y": "2", "p/.smd-copying-z": "3"})
    sharded = channel("s3://b", S3DataDistributionType="ShardedByS3Key")
    source = sources_of(sharded, "File", HOSTS[:1], home)["algo-1"]
    assert found_by_script(home, source) == {"p/x": "1"}


def test_files_of_the_users_own_are_shared_out_too(home: Home, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "y").write_text("2")
    (data / "x").write_text("1")
    one = sources_of(channel(f"file://{data}/x"), "File", HOSTS, home)["algo-3"]
    assert found_by_script(home, one) == {"x": "1"}
    sharded = channel(f"file://{data}", S3DataDistributionType="ShardedByS3Key")
    shares = sources_of(sharded, "File", HOSTS, home)
    found = [found_by_script(home, shares[host]) for host, _ in HOSTS]
    assert found == [{"sub/y": "2"}, {"x": "1"}, {}]
    (data / "m").write_text(json.dumps([{"prefix": f"file://{data}/s"}, "ub/y"]))
    listed = channel(f"file://{data}/m", S3DataType="ManifestFile")
    source = sources_of(listed, "File", HOSTS, home)["algo-1"]
    assert found_by_script(home, source) == {"ub/y": "2"}


def test_links_are_followed_and_circles_are_refused(home: Home, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "y").write_text("2")
    fill(home, {"p/x": "1"})
    (home.buckets / "b" / "p" / "more").symlink_to(tmp_path / "elsewhere")
    sharded = channel("s3://b/p", S3DataDistributionType="ShardedByS3Key")
    source = sources_of(sharded, "File", HOSTS[:1], home)["algo-1"]
    assert found_by_script(home, source) == {"x": "1", "more/y": "2"}
    (home.buckets / "b" / "p" / "round").symlink_to(home.buckets / "b" / "p")
    with pytest.raises(ConfigurationError, match="link to a directory that it lies in"):
        sources_of(sharded, "File", HOSTS, home)


def test_a_link_that_leads_nowhere_is_no_file_less_but_an_error(home: Home) -> None:
    fill(home, {"p/x": "1"})
    (home.buckets / "b" / "p" / "y").symlink_to("nowhere")
    for mode, distribution in (("File", "ShardedByS3Key"), ("Pipe", "FullyReplicated")):
        given = channel("s3://b/p/", S3DataDistributionType=distribution)
        with pytest.raises(ConfigurationError, match=r"/b/p/y is a link to nowhere, which is not"):
            sources_of(given, mode, HOSTS, home)


def test_groups_that_a_channel_is_for(home: Home) -> None:
    fill(home, {"x": "1", "y": "2"})
    some = channel("s3://b", InstanceGroupNames=["g"], S3DataDistributionType="ShardedByS3Key")
    sources = sources_of(some, "File", HOSTS, home)
    assert {host: found_by_script(home, each) for host, each in sources.items()} == {
        "algo-1": {"x": "1"},
        "algo-2": {"y": "2"},
    }
    with pytest.raises(ConfigurationError, match=r"has 'i'; expected groups of the job: 'g', 'h'"):
        sources_of(channel("s3://b", InstanceGroupNames=["i"]), "File", HOSTS, home)


def test_a_shuffled_channel_is_shared_out_anew_in_each_epoch(home: Home) -> None:
    fill(home, {f"{number:02}": "" for number in range(20)})
    shuffled = channel("s3://b", S3DataDistributionType="ShardedByS3Key", ShuffleConfig={"Seed": 1})
    for mode, changes in (("File", False), ("Pipe", True)):
        sources = sources_of(shuffled, mode, HOSTS, home)
        epochs = [
            [[each.key for each in source.of_epoch(epoch)] for source in sources.values()]
            for epoch in range(2)
        ]
        for shares in epochs:
            assert sorted(itertools.chain(*shares)) == [f"{number:02}" for number in range(20)]
        assert (epochs[0] != epochs[1]) == changes
        assert sorted(epochs[0][0]) != [f"{number:02}" for number in range(0, 20, 3)]


@pytest.mark.parametrize(
    ("uri", "is_fine"),
    [
        ("s3://b/a/", True),
        ("s3://b/c", True),
        ("s3://b", True),
        ("s3://b/a", False),  # beside it is a-1
        ("s3://b/a-1/x", False),
        ("s3://b/c/", True),
    ],
)
def test_a_prefix_of_fast_file_ends_at_the_border_of_a_folder(
    home: Home, uri: str, is_fine: bool
) -> None:
    fill(home, {"a/x": "1", "a-1/x": "2", "c/x": "3"})
    if is_fine:
        assert sources_of(channel(uri), "FastFile", HOSTS, home)["algo-1"].objects is None
        return
    with pytest.raises(ConfigurationError, match="does not end at the border of a folder"):
        sources_of(channel(uri, InputMode="FastFile"), "File", HOSTS, home)


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("s3://b/nothing", "s3://b/nothing, and .*/b/nothing is not there"),
        ("s3://b/p/nothing/", "is not there; expected objects with such keys"),
        ("s3://b/x/", "is not there"),
        ("s3://theirs/x", "bucket 'theirs', which this machine's store does not have"),
        ("file:///nowhere/x", "/nowhere/x is not there; expected a file or a directory"),
    ],
)
def test_data_that_are_not_there(home: Home, uri: str, text: str) -> None:
    fill(home, {"x": "1", "p/y": "2"})
    with pytest.raises(ConfigurationError, match=text):
        sources_of(channel(uri), "File", HOSTS, home)


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ([{"prefix": "s3://b/p/"}, "nothing"], "/b/p/nothing is no file that is there"),
        ([{"prefix": "s3://b/p/"}, "../x"], "is no file that is there"),
        ([{"prefix": "s3://b"}, "x"], "has the prefix 's3://b'; expected s3://BUCKET/"),
        ([{"prefix": "p/"}, "x"], "has the prefix 'p/'; expected s3://BUCKET/"),
        ([{"prefix": "s3://theirs/"}, "x"], "bucket 'theirs'"),
        ([{"prefix": "s3://b/../"}, "x"], "leads out of its bucket"),
    ],
)
def test_manifests_that_lead_nowhere(home: Home, manifest: list[Any], text: str) -> None:
    fill(home, {"x": "1", "p/y": "2", "m": json.dumps(manifest)})
    with pytest.raises(ConfigurationError, match=text):
        sources_of(channel("s3://b/m", S3DataType="ManifestFile"), "File", HOSTS, home)
    with pytest.raises(ConfigurationError, match="is not there"):
        sources_of(channel("s3://b/no", S3DataType="ManifestFile"), "File", HOSTS, home)


@pytest.mark.parametrize(
    ("again", "text"),
    [
        ("/y", r"has 'y' and '/y', which are both .*/b/p/y; expected each file once"),
        ("./y", r"has './y', and .*/b/p/./y is no file"),
        ("//y", r"has 'y' and '//y', which are both"),
        ("z//w", r"has 'z//w', and .*/b/p/z//w is no file"),
    ],
)
@pytest.mark.parametrize("mode", ["File", "Pipe"])
def test_a_manifest_that_has_a_file_twice_by_two_names(
    home: Home, mode: str, again: str, text: str
) -> None:
    manifest = json.dumps([{"prefix": "s3://b/p/"}, "y", "z/w", again])
    fill(home, {"p/y": "2", "p/z/w": "3", "m": manifest})
    with pytest.raises(ConfigurationError, match=text):
        sources_of(channel("s3://b/m", S3DataType="ManifestFile"), mode, HOSTS, home)


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"S3DataType": "AugmentedManifestFile"}, UnsupportedError, "s3_data_type of channel"),
        ({"RecordWrapperType": "RecordIO"}, UnsupportedError, "record_wrapping of channel 'train'"),
        ({"CompressionType": "Gzip"}, ConfigurationError, "expected compression in mode 'Pipe'"),
        ({"CompressionType": "Zip"}, ConfigurationError, "is 'Zip'; expected None or 'Gzip'"),
        ({"S3DataType": "Prefix"}, ConfigurationError, "is 'Prefix'; expected 'S3Prefix'"),
        ({"S3DataDistributionType": "x"}, ConfigurationError, "distribution of channel 'train'"),
        ({"InputMode": "Fast"}, ConfigurationError, "'Fast'; expected 'File', 'Pipe', 'FastFile'"),
    ],
)
def test_what_is_refused_before_a_job_exists(
    home: Home, changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        check_channels([channel("s3://b/k", **changed)], "File", home)


def test_a_channel_that_is_called_like_a_fifo_of_another_one(home: Home) -> None:
    channels = [channel("s3://b/k"), {**channel("s3://b/k"), "ChannelName": "train_10"}]
    check_channels(channels, "File", home)
    with pytest.raises(ConfigurationError, match="'train_10' has the name of a FIFO of channel 't"):
        check_channels(channels, "Pipe", home)
    channels[1]["ChannelName"] = "train_1a"
    check_channels(channels, "Pipe", home)


# --- file systems ---------------------------------------------------------------------------------


def mounted(kind: str, directory: str, mode: str = "ro") -> dict[str, Any]:
    source = {
        "FileSystemId": "fs-1",
        "FileSystemType": kind,
        "DirectoryPath": directory,
        "FileSystemAccessMode": mode,
    }
    return {"ChannelName": "train", "DataSource": {"FileSystemDataSource": source}}


def test_a_file_system_is_where_the_settings_say(home: Home, tmp_path: Path) -> None:
    data = tmp_path / "mnt" / "sub"
    data.mkdir(parents=True)
    (data / "x").write_text("1")
    home.config.write_text(f'[file_systems.EFS.fs-1]\n"/" = "{tmp_path}/mnt"\n')
    for mode, is_writable in (("ro", False), ("rw", True)):
        source = sources_of(mounted("EFS", "/sub", mode), "Pipe", HOSTS, home)["algo-3"]
        assert (source.mode, source.is_writable) == ("File", is_writable)
        assert found_by_script(home, source) == {"x": "1"}
    with pytest.raises(ConfigurationError, match=r"/other is not there, which is its place as"):
        sources_of(mounted("EFS", "/other"), "File", HOSTS, home)
    for kind, directory in (("FSxLustre", "/sub"), ("EFS", "sub")):
        with pytest.raises(ConfigurationError, match="expected"):
            check_channels([mounted(kind, directory)], "File", home)
