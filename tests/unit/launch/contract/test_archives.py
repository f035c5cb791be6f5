# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Archives hold contents at their root, are whole or not there, and unpack nowhere else."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract import archives
from smdistributed.launch.contract.archives import (
    check_sources,
    copy_directories,
    pack_directories,
    pack_sources,
    unpack,
)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("print('ä')\n")
    (folder / "package" / "layers.py").write_text("")
    (folder / "empty").mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return sorted(tar.getnames())


def test_the_contents_of_the_source_directory_are_at_the_root(
    sources: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "sourcedir.tar.gz"
    pack_sources(archive, "train.py", str(sources))
    assert names(archive) == ["empty", "package", "package/layers.py", "run.sh", "train.py"]
    (tmp_path / "there").mkdir()
    unpack(archive, tmp_path / "there")
    assert (tmp_path / "there/train.py").read_text() == "print('ä')\n"
    assert os.access(tmp_path / "there/run.sh", os.X_OK)


def test_the_entry_point_goes_alone_without_a_directory(sources: Path, tmp_path: Path) -> None:
    archive = tmp_path / "sourcedir.tar.gz"
    pack_sources(archive, str(sources / "train.py"), None)
    assert names(archive) == ["train.py"]


def test_dependencies_go_beside_it_under_their_last_name(sources: Path, tmp_path: Path) -> None:
    library = tmp_path / "deep" / "library"
    (library / "inner").mkdir(parents=True)
    (library / "inner" / "a.py").write_text("")
    archive = tmp_path / "sourcedir.tar.gz"
    pack_sources(archive, str(sources / "train.py"), None, [f"{library}/", str(sources / "run.sh")])
    assert names(archive) == [
        "library", "library/inner", "library/inner/a.py", "run.sh", "train.py",
    ]  # fmt: skip


def test_links_are_followed(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("here")
    (sources / "link.txt").symlink_to(tmp_path / "data.txt")
    archive = tmp_path / "sourcedir.tar.gz"
    pack_sources(archive, "train.py", str(sources))
    with tarfile.open(archive) as tar:
        member = tar.extractfile("link.txt")
        assert member is not None
        assert member.read() == b"here"


@pytest.mark.parametrize(
    ("entry_point", "source_dir", "text"),
    [
        (
            "s3://bucket/train.py",
            None,
            "Invalid entry point script: s3://bucket/train.py. Must be a path to a local file.",
        ),
        ("missing.py", None, 'No file named "missing.py" was found in directory'),
        ("missing.py", "{src}", 'No file named "missing.py" was found in directory "{src}".'),
        ("package", "{src}", 'No file named "package" was found in directory'),
        ("train.py", "{src}/train.py", '"{src}/train.py" is not a directory.'),
        ("train.py", "{src}/nowhere", '"{src}/nowhere" is not a directory.'),
        ("../src/train.py", "{src}", "is not below the directory"),
    ],
)
def test_sources_that_are_not_there(
    sources: Path, tmp_path: Path, entry_point: str, source_dir: str | None, text: str
) -> None:
    given = None if source_dir is None else source_dir.format(src=sources)
    with pytest.raises(ValueError) as raised:  # noqa: PT011 -- the text is looked at below
        check_sources(entry_point, given)
    assert text.format(src=sources) in str(raised.value)
    with pytest.raises(ValueError):  # noqa: PT011 -- the same one
        pack_sources(tmp_path / "a.tar.gz", entry_point, given)
    assert os.listdir(tmp_path) == ["src"], "nothing was made before"


@pytest.mark.parametrize(
    ("dependency", "text"), [("{src}/nowhere", "is not there"), ("{src}/train.py", "has the name")]
)
def test_dependencies_that_cannot_go(
    sources: Path, tmp_path: Path, dependency: str, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        pack_sources(
            tmp_path / "a.tar.gz", "train.py", str(sources), [dependency.format(src=sources)]
        )


def test_a_link_that_leads_back_is_refused(sources: Path, tmp_path: Path) -> None:
    (sources / "package" / "again").symlink_to(sources)
    with pytest.raises(ValueError, match=r"again.* is a link to a directory that it lies in"):
        pack_sources(tmp_path / "a.tar.gz", "train.py", str(sources))
    assert os.listdir(tmp_path) == ["src"]


def test_one_folder_can_be_left_out_by_whatever_path(sources: Path, tmp_path: Path) -> None:
    """With the folder of all jobs in it each archive had all the earlier ones in it."""
    archive = sources / "package" / "sourcedir.tar.gz"
    (sources / "link").symlink_to("package")
    pack_sources(archive, "train.py", str(sources), without=sources / "package")
    assert names(archive) == ["empty", "run.sh", "train.py"]


def test_what_is_no_file_stays_here(sources: Path, tmp_path: Path) -> None:
    os.mkfifo(sources / "fifo")
    pack_sources(tmp_path / "a.tar.gz", "train.py", str(sources))
    assert "fifo" not in names(tmp_path / "a.tar.gz")


def test_a_dangling_link_is_an_error_that_names_it(sources: Path, tmp_path: Path) -> None:
    (sources / "dangling").symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match="dangling"):
        pack_sources(tmp_path / "a.tar.gz", "train.py", str(sources))
    assert os.listdir(tmp_path) == ["src"]


def test_an_empty_model_makes_no_archive(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    archive = tmp_path / "model.tar.gz"
    assert pack_directories(archive, [tmp_path / "model"]) == (False, [])
    assert pack_directories(archive, [tmp_path / "nowhere"]) == (False, [])
    assert not archive.exists()
    (tmp_path / "model" / "weights.pt").write_bytes(b"x")
    assert pack_directories(archive, [tmp_path / "nowhere", tmp_path / "model"]) == (True, [])
    assert names(archive) == ["weights.pt"]


def test_of_several_hosts_the_first_one_wins_and_clashes_are_told(tmp_path: Path) -> None:
    for host, files in (("a", ["x/1", "x/2", "y"]), ("b", ["x/2", "x/3", "y/z"])):
        for name in files:
            path = tmp_path / host / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(host)
    archive = tmp_path / "model.tar.gz"
    has_any, clashes = pack_directories(archive, [tmp_path / "a", tmp_path / "b"])
    assert has_any
    assert clashes == ["x/2", "y", "y/z"]
    (tmp_path / "there").mkdir()
    with tarfile.open(archive) as tar:
        content = {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]
    assert content.keys() == {"x/1", "x/2", "x/3", "y"}
    assert content["x/2"] == content["y"] == b"a"
    assert content["x/3"] == b"b"


def test_links_of_a_script_lead_where_they_led_in_its_namespace(tmp_path: Path) -> None:
    ml = tmp_path / "ml"
    (ml / "model" / "step-5").mkdir(parents=True)
    (ml / "model" / "step-5" / "weights").write_text("5")
    (ml / "model" / "best").symlink_to("/opt/ml/model/step-5")
    (ml / "model" / "last").symlink_to("step-5/weights")
    (ml / "model" / "dangling").symlink_to("/opt/ml/model/nothing")
    (ml / "model" / "circle").symlink_to("circle")
    (ml / "checkpoints").mkdir()
    (ml / "checkpoints" / "best.bin").write_text("b")
    (ml / "model" / "current").symlink_to("/opt/ml/checkpoints")
    (ml / "model" / "final.bin").symlink_to("current/best.bin")
    archive = tmp_path / "model.tar.gz"
    assert pack_directories(archive, [ml / "model"], [ml]) == (True, [])
    with tarfile.open(archive) as tar:
        files = {each.name: tar.extractfile(each) for each in tar if each.isfile()}
        content = {name: file.read() for name, file in files.items() if file is not None}
    assert content == {
        "best/weights": b"5",
        "last": b"5",
        "step-5/weights": b"5",
        "current/best.bin": b"b",
        "final.bin": b"b",
    }


def test_a_model_that_is_a_link_or_a_file(tmp_path: Path) -> None:
    ml = tmp_path / "ml"
    (ml / "checkpoints").mkdir(parents=True)
    (ml / "checkpoints" / "a").write_text("x")
    (ml / "model").symlink_to("/opt/ml/checkpoints")
    archive = tmp_path / "model.tar.gz"
    assert pack_directories(archive, [ml / "model"], [ml]) == (True, [])
    assert names(archive) == ["a"]
    (ml / "model").unlink()
    (ml / "model").write_text("weights")
    with pytest.raises(ConfigurationError, match="model is a file; expected the directory"):
        pack_directories(archive, [ml / "model"], [ml])


def test_a_full_disk_says_how_much_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.pt").write_bytes(b"x" * 5000)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigurationError, match=r"is full: .* up to 5,000 bytes"):
        pack_directories(tmp_path / "model.tar.gz", [tmp_path / "model"])
    assert os.listdir(tmp_path) == ["model"]


def evil(path: Path, name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, link, 0
        tar.addfile(member, io.BytesIO())
    return path


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../outside", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "/etc/passwd"),
        ("link", tarfile.LNKTYPE, "../outside"),
        ("device", tarfile.CHRTYPE, ""),
    ],
)
def test_an_archive_that_leaves_its_directory(
    tmp_path: Path, name: str, kind: bytes, link: str
) -> None:
    (tmp_path / "there").mkdir()
    archive = evil(tmp_path / "a.tar.gz", name, kind, link)
    with pytest.raises(ConfigurationError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "there")
    assert sorted(os.listdir(tmp_path)) == ["a.tar.gz", "there"]
    assert not os.listdir(tmp_path / "there")


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b"])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"a.tar.gz cannot be unpacked"):
        unpack(tmp_path / "a.tar.gz", tmp_path)


def test_directories_become_a_folder_that_is_whole_or_not_there(tmp_path: Path) -> None:
    """Artifacts that are not compressed (launch specification, section 6.1)."""
    target = tmp_path / "out" / "model"
    target.parent.mkdir()
    assert copy_directories(target, [tmp_path / "nowhere"]) == (False, [])
    assert not target.exists()
    for name, files in (("a", {"both": "a", "deep/x": "a"}), ("b", {"both": "b", "deep/y": "b"})):
        for inside, content in files.items():
            (tmp_path / name / inside).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / inside).write_text(content)
    (tmp_path / "a" / "link").symlink_to("/opt/ml/a/deep/x")
    (tmp_path / "a" / "run").write_text("")
    (tmp_path / "a" / "run").chmod(0o755)
    both = [tmp_path / "a", tmp_path / "b"]
    assert copy_directories(target, both, [tmp_path, tmp_path]) == (True, ["both"])
    assert (target / "both").read_text() == "a"
    assert not (target / "link").is_symlink(), "links are followed"
    assert (target / "link").read_text() == "a"
    assert (target / "run").stat().st_mode & 0o100
    assert sorted(os.listdir(target / "deep")) == ["x", "y"]
    assert copy_directories(target, [tmp_path / "b"]) == (True, [])
    assert sorted(os.listdir(target)) == ["both", "deep"], "the one before is replaced"
    assert os.listdir(target.parent) == ["model"]


def test_a_folder_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1234")
    target = tmp_path / "out" / "model"
    target.mkdir(parents=True)
    (target / "before").write_text("")

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archives.shutil, "copy2", no_room)
    with pytest.raises(ConfigurationError, match=r"is full.*; expected room for up to 4 bytes"):
        copy_directories(target, [tmp_path / "a"])
    assert os.listdir(target) == ["before"]
    assert os.listdir(target.parent) == ["model"]
