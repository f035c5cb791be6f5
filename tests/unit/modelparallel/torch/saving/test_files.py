# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.save` and `smp.load`: the names of the specification, section 4.8; never half a file."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import stat
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from smdistributed.modelparallel import atomic_files
from smdistributed.modelparallel.torch.saving.files import FileNames, load, save
from tests.unit.modelparallel.torch.forked import in_a_child

# Every rank is another number, so that a mixed up name shows.
PIPELINE = FileNames(pp_rank=1, tp_rank=0, rdp_rank=3, mp_rank=7, tp_size=1)
TENSOR = FileNames(pp_rank=1, tp_rank=2, rdp_rank=3, mp_rank=7, tp_size=4)


class NotPlain:
    """Loading this needs `weights_only=False`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NotPlain)


def listing(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


class TestNames:
    @pytest.mark.parametrize(
        ("names", "options", "expected"),
        [
            (PIPELINE, {}, "model.pt_7"),
            (PIPELINE, {"partial": True}, "model.pt_7"),
            (PIPELINE, {"partial": False}, "model.pt"),
            (PIPELINE, {"v3": True}, "model.pt_1_0_3"),
            (PIPELINE, {"partial": False, "v3": True}, "model.pt"),
            (TENSOR, {}, "model.pt_1_2"),
            (TENSOR, {"partial": False}, "model.pt"),
            (TENSOR, {"v3": True}, "model.pt_1_2_3"),
        ],
    )
    def test_save_writes_one_file(
        self, names: FileNames, options: dict[str, Any], expected: str, tmp_path: Path
    ) -> None:
        save({"x": 1}, tmp_path / "model.pt", names=names, **options)
        assert listing(tmp_path) == [expected]
        assert torch.load(tmp_path / expected) == {"x": 1}
        partial = options.get("partial", True)
        assert load(str(tmp_path / "model.pt"), partial=partial, names=names) == {"x": 1}

    @pytest.mark.parametrize(
        ("names", "options", "order"),
        [
            (PIPELINE, {}, ["f_1_0_3", "f_1_0", "f_7"]),
            (PIPELINE, {"back_compat": True}, ["f_7", "f_1_0_3", "f_1_0"]),
            (PIPELINE, {"partial": False}, ["f"]),
            (PIPELINE, {"partial": False, "back_compat": True}, ["f"]),
            (TENSOR, {}, ["f_1_2_3", "f_1_2"]),
            (TENSOR, {"back_compat": True}, ["f_1_2_3", "f_1_2"]),
            (TENSOR, {"partial": False}, ["f"]),
        ],
    )
    def test_load_tries_names_in_order(
        self, names: FileNames, options: dict[str, Any], order: list[str], tmp_path: Path
    ) -> None:
        for name in ("f", "f_7", "f_1_0", "f_1_2", "f_1_0_3", "f_1_2_3", "f_0", "f_0_0"):
            torch.save(name, tmp_path / name)
        found = []
        for name in order:
            found.append(load(tmp_path / "f", names=names, **options))
            os.unlink(tmp_path / name)
        assert found == order
        with pytest.raises(FileNotFoundError):
            load(tmp_path / "f", names=names, **options)

    def test_arguments_are_in_the_published_order(self, tmp_path: Path) -> None:
        save([1], tmp_path / "f", True, pickle, 2, True, names=PIPELINE)
        assert listing(tmp_path) == ["f_1_0_3"]
        assert load(tmp_path / "f", "cpu", pickle, True, False, names=PIPELINE) == [1]

    @pytest.mark.parametrize("f", [b"bytes", 3, None, sys.stdout])
    def test_only_paths_are_taken(self, f: Any) -> None:
        for call in (lambda: save(1, f, names=PIPELINE), lambda: load(f, names=PIPELINE)):
            with pytest.raises(TypeError, match=r"expected a path, as str or pathlib\.Path"):
                call()

    def test_a_missing_file_is_told_with_what_was_tried_and_what_is_there(
        self, tmp_path: Path
    ) -> None:
        for number in (0, 1, 10, 2):
            save(1, tmp_path / f"m.pt_{number}", partial=False, names=PIPELINE)
        save(1, tmp_path / "other", partial=False, names=PIPELINE)
        with pytest.raises(FileNotFoundError) as error:
            load(tmp_path / "m.pt", names=PIPELINE)
        base = tmp_path / "m.pt"
        assert error.value.errno == errno.ENOENT
        for part in (
            f"expected {base}_1_0_3 or {base}_1_0 or {base}_7, but",
            f"{tmp_path} holds m.pt_0, m.pt_1, m.pt_2, m.pt_10. ",
            "with the same value of partial. If fewer ranks have saved, let one without a file",
        ):
            assert part in str(error.value)
        with pytest.raises(FileNotFoundError, match=r"same value of partial\.$"):
            load(tmp_path / "m.pt_3", partial=False, names=PIPELINE)

    def test_there_may_be_nothing_or_no_directory_or_very_much(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=f"nothing in {tmp_path} starts so"):
            load(tmp_path / "m", names=PIPELINE)
        with pytest.raises(FileNotFoundError, match=f"the directory {tmp_path}/no is not there"):
            load(tmp_path / "no" / "m", names=PIPELINE)
        for number in range(100, 130):
            (tmp_path / f"m_{number}").touch()
        with pytest.raises(FileNotFoundError, match="m_118, m_119 and 10 more"):
            load(tmp_path / "m", names=PIPELINE)

    def test_a_bare_name_is_in_the_current_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        save(1, "m", names=PIPELINE)
        assert listing(tmp_path) == ["m_7"]
        assert load("m", names=PIPELINE) == 1
        with pytest.raises(FileNotFoundError, match=r"but \. holds m_7"):
            load("m", names=TENSOR)


class TestContent:
    def test_any_object_comes_back(self, tmp_path: Path) -> None:
        obj = {"tensor": torch.arange(6).reshape(2, 3), "object": NotPlain(), "nested": [(None,)]}
        save(obj, tmp_path / "f", names=PIPELINE)
        found = load(tmp_path / "f", names=PIPELINE)
        assert torch.equal(found.pop("tensor"), obj.pop("tensor"))  # type: ignore[arg-type]
        assert found == obj

    def test_tensors_come_back_on_the_cpu_unless_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save(torch.ones(2), tmp_path / "f", names=PIPELINE)
        asked: list[Any] = []
        original = torch.load

        def spy(*args: Any, **kwargs: Any) -> Any:
            asked.append(kwargs["map_location"])
            return original(*args, **kwargs)

        monkeypatch.setattr(torch, "load", spy)
        load(tmp_path / "f", names=PIPELINE)
        assert load(tmp_path / "f", "meta", names=PIPELINE).is_meta
        assert asked == ["cpu", "meta"]

    def test_more_arguments_reach_torch(self, tmp_path: Path) -> None:
        save({"a": torch.ones(2)}, tmp_path / "f", names=PIPELINE)
        assert load(tmp_path / "f", names=PIPELINE, mmap=True)["a"].tolist() == [1, 1]
        assert load(tmp_path / "f", names=PIPELINE, weights_only=True)["a"].tolist() == [1, 1]
        save(NotPlain(), tmp_path / "g", names=PIPELINE)
        with pytest.raises(pickle.UnpicklingError, match="weights_only"):
            load(tmp_path / "g", names=PIPELINE, weights_only=True)

    @pytest.mark.parametrize("spelling", ["pickle_module", "pickel_module"])
    def test_the_pickle_module_is_used_in_both_spellings(
        self, spelling: str, tmp_path: Path
    ) -> None:
        used: list[str] = []

        class Pickler(pickle._Pickler):
            def dump(self, obj: Any) -> None:
                used.append("pickled")
                super().dump(obj)

        class Unpickler(pickle._Unpickler):
            def load(self) -> Any:
                used.append("unpickled")
                return super().load()

        module = types.SimpleNamespace(
            __name__="own", Pickler=Pickler, Unpickler=Unpickler, load=pickle.load
        )
        save([1], tmp_path / "f", names=PIPELINE, **{spelling: module})
        assert load(tmp_path / "f", names=PIPELINE, **{spelling: module}) == [1]
        assert used == ["pickled", "unpickled"]

    def test_the_protocol_is_passed_on(self, tmp_path: Path) -> None:
        text = "x" * 300  # protocol 4 has a shorter opcode for it
        for protocol in (2, 4):
            save([text] * 2, tmp_path / f"f{protocol}", pickle_protocol=protocol, names=PIPELINE)
            assert bytes([0x80, protocol]) in (tmp_path / f"f{protocol}_7").read_bytes()

    def test_an_error_of_reading_names_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "f_7").write_bytes(b"rubbish")
        with pytest.raises(pickle.UnpicklingError) as error:
            load(tmp_path / "f", names=PIPELINE)
        assert error.value.__notes__ == [f"smp.load was reading {tmp_path / 'f_7'}."]


# ---- Replacing -----------------------------------------------------------------------------------

OLD = {"generation": "old", "weights": torch.full((1000,), 1.0)}
NEW = {"generation": "new", "weights": torch.full((3000,), 2.0), "more": torch.zeros(5)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory in which `f_7` holds `OLD`."""
    save(OLD, tmp_path / "f", names=PIPELINE)
    return tmp_path


def generation(directory: Path) -> str:
    """Which of the two the file holds; both are checked whole."""
    found = load(directory / "f", names=PIPELINE)
    expected = {"old": OLD, "new": NEW}[found["generation"]]
    assert found.keys() == expected.keys()
    assert torch.equal(found["weights"], expected["weights"])  # type: ignore[arg-type]
    return str(found["generation"])


def save_new(directory: Path) -> None:
    save(NEW, directory / "f", names=PIPELINE)


def size_of_new(directory: Path) -> int:
    save(NEW, directory / "measured", partial=False, names=PIPELINE)
    size = os.path.getsize(directory / "measured")
    os.unlink(directory / "measured")
    return size


def after_bytes(
    monkeypatch: pytest.MonkeyPatch, limit: int, happens: Callable[[], NoReturn]
) -> None:
    """Lets something happen when `limit` bytes have been written."""
    write = atomic_files.OpenFile._write_some
    written = 0

    def limited(self: Any, data: memoryview) -> int:
        nonlocal written
        if written + len(data) <= limit:
            written += len(data)
            return write(self, data)
        if written < limit:  # up to the very byte
            write(self, data[: limit - written])
        return happens()

    monkeypatch.setattr(atomic_files.OpenFile, "_write_some", limited)


class TestKilled:
    def test_at_any_byte_the_old_file_is_whole(
        self, saved: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        size = size_of_new(saved)
        for limit in [*range(0, size, size // 40), size - 1]:
            with monkeypatch.context() as patch:
                after_bytes(patch, limit, lambda: os._exit(9))
                assert in_a_child(lambda: save_new(saved)) == 9
            assert generation(saved) == "old", limit
            left = [name for name in listing(saved) if name != "f_7"]
            assert len(left) == 1
            assert left[0].startswith(".")
            assert os.path.getsize(saved / left[0]) == limit
        # What the last one left is overwritten, all of it: the old content is shorter.
        fresh = os.path.getsize(saved / "f_7")
        save(OLD, saved / "f", names=PIPELINE)
        assert os.path.getsize(saved / "f_7") == fresh
        assert generation(saved) == "old"
        assert listing(saved) == ["f_7"]

    @pytest.mark.parametrize(
        ("function", "call", "expected"),
        [
            ("open", 1, "old"),
            ("fsync", 1, "old"),
            ("replace", 1, "old"),
            ("fsync", 2, "new"),  # of the directory
        ],
    )
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_at_any_step_one_file_is_whole(
        self,
        function: str,
        call: int,
        expected: str,
        when: str,
        saved: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        original = getattr(os, function)
        calls = 0

        def dying(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call and when == "before":
                os._exit(9)
            result = original(*args, **kwargs)
            if calls == call:
                os._exit(9)
            return result

        with monkeypatch.context() as patch:
            patch.setattr(atomic_files.os, function, dying)
            assert in_a_child(lambda: save_new(saved)) == 9
        if (function, when) == ("replace", "after"):
            expected = "new"
        assert generation(saved) == expected

    def test_a_first_file_is_there_whole_or_not_at_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            after_bytes(patch, 5000, lambda: os._exit(9))
            assert in_a_child(lambda: save_new(tmp_path)) == 9
        with pytest.raises(FileNotFoundError, match="starts so"):
            load(tmp_path / "f", names=PIPELINE)

    def test_the_content_is_on_the_disk_before_it_has_the_name(
        self, saved: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[tuple[str, int]] = []
        fsync, replace = os.fsync, os.replace

        def synced(descriptor: int) -> None:
            steps.append(("fsync", os.fstat(descriptor).st_ino))
            fsync(descriptor)

        def replaced(source: str, target: str) -> None:
            steps.append(("replace", os.stat(source).st_ino))
            replace(source, target)

        monkeypatch.setattr(atomic_files.os, "fsync", synced)
        monkeypatch.setattr(atomic_files.os, "replace", replaced)
        save_new(saved)
        inode, directory = os.stat(saved / "f_7").st_ino, os.stat(saved).st_ino
        assert steps == [("fsync", inode), ("replace", inode), ("fsync", directory)]


def _raises(error: BaseException) -> Callable[[], NoReturn]:
    def happens() -> NoReturn:
        raise error

    return happens


class TestErrors:
    @pytest.mark.parametrize("limit", [0, 1, 200, 5000, 12000])
    def test_a_full_disk(self, limit: int, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with monkeypatch.context() as patch:
            after_bytes(patch, limit, _raises(full))
            with pytest.raises(OSError, match="No space left on device") as error:
                save_new(saved)
        assert error.value.errno == errno.ENOSPC
        for part in (f"{saved}/f_7", "bytes are free in", "Delete old checkpoints"):
            assert part in str(error.value)
        assert listing(saved) == ["f_7"]
        assert generation(saved) == "old"

    def test_a_limit_of_the_system(self, saved: Path) -> None:
        def work() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
            with pytest.raises(OSError, match=r"File too large.*What was there before") as error:
                save_new(saved)
            assert error.value.errno == errno.EFBIG

        assert in_a_child(work) == 0
        assert listing(saved) == ["f_7"]
        assert generation(saved) == "old"

    @pytest.mark.parametrize("limit", [0, 200, 12000])
    @pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("no memory")], ids=repr)
    def test_an_interruption_stays_what_it_is(
        self, limit: int, error: BaseException, saved: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            after_bytes(patch, limit, _raises(error))
            with pytest.raises(type(error)):
                save_new(saved)
        assert listing(saved) == ["f_7"]
        assert generation(saved) == "old"

    @pytest.mark.parametrize(
        "error", [ValueError("of the object"), OSError(errno.ENOSPC, "of the object")], ids=repr
    )
    def test_an_error_of_the_object_stays_what_it_is(self, error: Exception, saved: Path) -> None:
        class Unpicklable:
            def __reduce__(self) -> NoReturn:
                raise error

        with pytest.raises(type(error), match=r"of the object$") as raised:
            save([torch.ones(2), Unpicklable()], saved / "f", names=PIPELINE)
        assert raised.value is error
        assert listing(saved) == ["f_7"]
        assert generation(saved) == "old"

    @pytest.mark.parametrize("function", ["fsync", "replace"])
    def test_an_error_of_the_last_steps(
        self, function: str, saved: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(
                atomic_files.os, function, lambda *_: _raises(OSError(errno.EIO, "broken"))()
            )
            with pytest.raises(OSError, match=r"f_7 could not be written: broken; expected"):
                save_new(saved)
        assert listing(saved) == ["f_7"]
        assert generation(saved) == "old"

    def test_file_systems_that_cannot_synchronise_are_served(
        self, saved: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(
                atomic_files.os, "fsync", lambda *_: _raises(OSError(errno.EINVAL, "no"))()
            )
            save_new(saved)
        assert generation(saved) == "new"

    def test_short_writes_are_continued(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write = atomic_files.OpenFile._write_some
        monkeypatch.setattr(
            atomic_files.OpenFile, "_write_some", lambda self, data: write(self, data[:777])
        )
        save_new(saved)
        assert generation(saved) == "new"

    def test_a_missing_directory(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"makes none.*os\.makedirs") as error:
            save(1, tmp_path / "no" / "f", names=PIPELINE)
        assert f"the directory {tmp_path}/no is not there" in str(error.value)
        assert not (tmp_path / "no").exists()

    def test_a_directory_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "f_7").mkdir()
        with pytest.raises(IsADirectoryError, match="f_7 is a directory; expected a file"):
            save(1, tmp_path / "f", names=PIPELINE)
        assert listing(tmp_path) == ["f_7"]

    def test_a_directory_that_cannot_be_written(
        self, saved: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            denied = PermissionError(errno.EACCES, "Permission denied")
            patch.setattr(atomic_files.os, "open", lambda *_: _raises(denied)())
            with pytest.raises(PermissionError, match="f_7 could not be written: Permission"):
                save_new(saved)
        assert generation(saved) == "old"


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


class TestLikeAnOrdinaryFile:
    @pytest.mark.usefixtures("umask")
    def test_permissions(self, tmp_path: Path) -> None:
        path = tmp_path / "f"
        save(1, path, partial=False, names=PIPELINE)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
        os.chmod(path, 0o604)
        save(2, path, partial=False, names=PIPELINE)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o604
        assert load(path, partial=False, names=PIPELINE) == 2

    def test_a_link_stays_and_what_it_points_at_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "far").mkdir()
        (tmp_path / "f_7").symlink_to("far/real")
        for value in (1, 2):  # before and after there is something
            save(value, tmp_path / "f", names=PIPELINE)
            assert (tmp_path / "f_7").is_symlink()
            assert torch.load(tmp_path / "far" / "real") == value
        assert listing(tmp_path / "far") == ["real"]

    def test_a_pipe_is_written_to(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "f")
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append((tmp_path / "f").read_bytes()))
        reader.start()
        save([1, 2], tmp_path / "f", partial=False, names=PIPELINE)
        reader.join()
        assert stat.S_ISFIFO(os.stat(tmp_path / "f").st_mode)
        (tmp_path / "copy").write_bytes(found[0])
        assert torch.load(tmp_path / "copy") == [1, 2]

    @pytest.mark.parametrize("letter", ["x", "é"])
    def test_the_longest_name_that_there_is(self, letter: str, tmp_path: Path) -> None:
        name = letter * (255 // len(letter.encode()))
        save(1, tmp_path / name, partial=False, names=PIPELINE)
        assert listing(tmp_path) == [name]

    def test_threads_that_save_the_same_file_at_once(self, tmp_path: Path) -> None:
        start = threading.Barrier(8)
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                start.wait(60)
                for _ in range(5):
                    save(torch.full((2000,), number), tmp_path / "f", names=PIPELINE)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert listing(tmp_path) == ["f_7"]
        found = load(tmp_path / "f", names=PIPELINE)
        assert torch.equal(found, found[:1].expand(2000))
        assert not atomic_files._in_use

    def test_ranks_that_save_the_same_file_at_once(self, tmp_path: Path) -> None:
        """A mistake, as `partial=False` is for one rank alone; the last one wins, whole."""

        def work(number: int) -> None:
            own = FileNames(pp_rank=number, tp_rank=0, rdp_rank=0, mp_rank=number, tp_size=1)
            for _ in range(10):
                save(torch.full((2000,), number), tmp_path / "f", partial=False, names=own)

        assert in_a_child(lambda: _both(work)) == 0
        assert listing(tmp_path) == ["f"]
        found = load(tmp_path / "f", partial=False, names=PIPELINE)
        assert torch.equal(found, found[:1].expand(2000))


def _both(work: Callable[[int], None]) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(1)
            code = 0
        finally:
            os._exit(code)
    work(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
