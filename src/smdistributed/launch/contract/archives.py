# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Archives of a job: its sources on the way in, its model and its output on the way out.

Each is a `.tar.gz` whose root holds the contents of a directory, and not the directory; the model
may be a folder of the same. It appears whole or not at all. Links are followed, since what they
point to is not on the other host.

Source: launch specification, sections 3.1 and 6.1.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract.paths import OPT_ML

__all__ = [
    "VIEW",
    "check_sources",
    "copy_directories",
    "pack_directories",
    "pack_sources",
    "unpack",
]

VIEW = Path("channels", "@root")
"""Beside what a script had at `/opt/ml`: where it saw the machine's files, if they were there."""

_MOST_LINKS = 40


def check_sources(entry_point: str, source_dir: str | None) -> Path:
    """The file of the entry point.

    Args:
        entry_point: a path; below `source_dir` if that is given.
        source_dir: a directory here, or None.

    Raises:
        ValueError: one of them is not there, or is not here; the published texts.
    """
    if entry_point.lower().startswith("s3://"):
        raise ValueError(
            f"Invalid entry point script: {entry_point}. Must be a path to a local file."
        )
    if source_dir is None:
        path = Path(entry_point)
        if not path.is_file():
            raise ValueError(
                f'No file named "{path.name}" was found in directory "{path.parent.absolute()}".'
            )
        return path
    if not os.path.isdir(source_dir):
        raise ValueError(f'"{source_dir}" is not a directory.')
    path = Path(source_dir, entry_point)
    if not path.is_file():
        raise ValueError(f'No file named "{entry_point}" was found in directory "{source_dir}".')
    if os.path.isabs(entry_point) or ".." in Path(entry_point).parts:
        raise ValueError(
            f'the entry point "{entry_point}" is not below the directory "{source_dir}"; expected a'
            " path below it, as that directory alone goes to the job."
        )
    return path


def pack_sources(
    archive: Path,
    entry_point: str,
    source_dir: str | None,
    dependencies: Sequence[str] = (),
    *,
    without: Path | None = None,
) -> None:
    """Writes `sourcedir.tar.gz`.

    Args:
        archive: the file to be written.
        entry_point, source_dir: as of `check_sources`. Without a directory the file goes alone.
        dependencies: files and directories, which go beside it under their last name.
        without: a directory that is left out, such as that of all jobs, with their sources.

    Raises:
        ValueError: one of them is not there, or two have the same name.
        ConfigurationError: the archive cannot be written.
    """
    path = check_sources(entry_point, source_dir)
    roots: dict[str, Path] = {}
    if source_dir is None:
        roots[path.name] = path
    else:
        roots = {each.name: each for each in sorted(Path(source_dir).iterdir())}
    for given in dependencies:
        each = Path(os.path.normpath(given))
        if not each.exists():
            raise ValueError(
                f'the dependency "{given}" is not there; expected a file or directory.'
            )
        if each.name in roots:
            raise ValueError(
                f'the dependency "{given}" has the name of "{roots[each.name]}", beside which it'
                " goes; expected another name. Rename one of them."
            )
        roots[each.name] = each
    _write(archive, lambda: _of_roots(roots, without=without))


def pack_directories(
    archive: Path,
    directories: Sequence[Path],
    bases: Sequence[Path] = (),
    *,
    is_compressed: bool = True,
) -> tuple[bool, list[str]]:
    """Writes one archive of what is in some directories; of a name, what the first of them has.

    Args:
        archive: the file to be written.
        directories: one is left out if it is not there.
        bases: of each, what its script had at `/opt/ml`: links may lead there.
        is_compressed: a `.tar.gz`; else a `.tar`.

    Returns: whether there was anything, else no archive is written; and names of files that more
        than one directory has.

    Raises:
        ConfigurationError: the archive cannot be written.
    """
    return _merged(directories, bases, lambda members: _write(archive, members, is_compressed))


def copy_directories(
    target: Path, directories: Sequence[Path], bases: Sequence[Path] = ()
) -> tuple[bool, list[str]]:
    """As `pack_directories`, but what would be in the archive is copied into a folder.

    The folder is there whole or not at all; one that was there is replaced.

    Args:
        target: the folder.
        directories, bases: as of `pack_directories`.

    Returns: as of `pack_directories`.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    return _merged(directories, bases, lambda members: _copy(target, members))


def _merged(
    directories: Sequence[Path],
    bases: Sequence[Path],
    write: Callable[[Callable[[], Iterator[tuple[str, Path]]]], None],
) -> tuple[bool, list[str]]:
    """Writes what is in some directories, of a name what the first of them has."""
    clashes: list[str] = []

    def members() -> Iterator[tuple[str, Path]]:
        seen: dict[str, bool] = {}
        for given, base in itertools.zip_longest(directories, bases):
            directory = _there(given, base)
            if directory is None or not directory.exists():
                continue
            if not directory.is_dir():
                raise ConfigurationError(
                    f"{given} is a file; expected the directory that the script found there."
                )
            roots = {each.name: each for each in sorted(directory.iterdir())}
            for name, path in _of_roots(roots, base):
                is_file = path.is_file()
                if any(seen.get(str(parent)) for parent in PurePosixPath(name).parents):
                    clashes.append(name)  # it is below what is a file in an earlier one
                elif name not in seen:
                    seen[name] = is_file
                    yield name, path
                elif is_file or seen[name]:
                    clashes.append(name)

    if next(members(), None) is None:
        return False, []
    clashes.clear()
    write(members)
    return True, clashes


def unpack(
    archive: Path, directory: Path, *, is_compressed: bool = True, keeps_modes: bool = False
) -> None:
    """Unpacks an archive into an existing directory.

    What would leave the directory, and what is neither file, directory nor link, is refused.

    Args:
        archive: the file.
        directory: for what is in it.
        is_compressed: a `.tar.gz`; else a `.tar`.
        keeps_modes: permissions are as in the archive; else as this user's files are.

    Raises:
        ConfigurationError: it is no such archive, or the directory cannot be written.
    """
    try:
        with tarfile.open(archive, "r:gz" if is_compressed else "r:") as tar:
            tar.extractall(directory, filter=_with_modes if keeps_modes else "data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ConfigurationError(
            f"{archive} cannot be unpacked into {directory}: {error}; expected a .tar.gz whose"
            " entries stay below that directory, and room on its disk."
        ) from None


def _with_modes(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    at_least = 0o700 if member.isdir() else 0
    return tarfile.data_filter(member, path).replace(mode=member.mode & 0o777 | at_least)


def _write(
    archive: Path, members: Callable[[], Iterator[tuple[str, Path]]], is_compressed: bool = True
) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".smd-{archive.name}.", dir=archive.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            mode: Literal["w:gz", "w:"] = "w:gz" if is_compressed else "w:"
            with tarfile.open(fileobj=file, mode=mode, dereference=True) as tar:
                for member, path in members():
                    tar.add(path, member, recursive=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, archive)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise ConfigurationError(_why(error, archive, members)) from None
        raise


def _copy(target: Path, members: Callable[[], Iterator[tuple[str, Path]]]) -> None:
    beside = Path(tempfile.mkdtemp(prefix=f".smd-{target.name}.", dir=target.parent))
    try:
        for member, path in members():
            if path.is_dir():
                (beside / member).mkdir(parents=True, exist_ok=True)
                continue
            (beside / member).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, beside / member)
            with (beside / member).open("rb") as file:
                os.fsync(file.fileno())
        if target.is_dir():
            former = Path(tempfile.mkdtemp(prefix=f".smd-{target.name}.", dir=target.parent))
            target.rename(former / target.name)
            beside.rename(target)
            shutil.rmtree(former)
        else:
            beside.rename(target)
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(error, OSError):
            raise ConfigurationError(_why(error, target, members)) from None
        raise


def _why(error: OSError, archive: Path, members: Callable[[], Iterator[tuple[str, Path]]]) -> str:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{archive} cannot be written: {error}; expected files that this user may read, and a"
            " directory that it may write."
        )
    needed = sum(path.stat().st_size for _, path in members() if path.is_file())
    return (
        f"the disk of {archive} is full: {error}; expected room for up to {needed:,} bytes. Remove"
        " what is not needed there, or set SMD_HOME or output_path to another disk."
    )


def _of_roots(
    roots: Mapping[str, Path], base: Path | None = None, without: Path | None = None
) -> Iterator[tuple[str, Path]]:
    left_out = _number(without.stat()) if without is not None and without.exists() else None
    for inside, path in roots.items():
        yield from _members(inside, path, (), base, left_out)


def _number(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _there(path: Path, base: Path | None) -> Path | None:
    """What a path leads to, where `/opt/ml` is `base`; None if that is nothing.

    Each of its links may lead to `/opt/ml`, which is another folder outside of the namespace, or to
    the view of all files, which is not there outside of it.
    """
    if base is None:
        return path
    left = list(reversed(path.absolute().parts[1:]))
    found = Path("/")
    num_links = 0
    while left:
        step = found / left.pop()
        if not step.is_symlink():
            found = step.parent.parent if step.name == ".." else step
            continue
        num_links += 1
        target = Path(os.readlink(step))
        if num_links > _MOST_LINKS:
            return None
        if target.is_relative_to(OPT_ML):
            target = base.absolute() / target.relative_to(OPT_ML)
        elif target.is_relative_to(view := base.absolute().parent / VIEW):
            target = "/" / target.relative_to(view)
        if target.is_absolute():
            found = Path("/")
        left += reversed([part for part in target.parts if part != "/"])
    return found if found.exists() else None


def _members(
    inside: str,
    given: Path,
    above: tuple[tuple[int, int], ...],
    base: Path | None = None,
    left_out: tuple[int, int] | None = None,
) -> Iterator[tuple[str, Path]]:
    """Files and directories below a path, by their name in the archive.

    Args:
        above: the directories that this one is in, by device and number: links may lead back.
        base: as of `pack_directories`; with it, links that lead nowhere are left out.
        left_out: a directory that is not gone into, by device and number.
    """
    path = _there(given, base)
    if path is None:
        return
    found = path.stat()
    if stat.S_ISREG(found.st_mode):
        yield inside, path
    elif stat.S_ISDIR(found.st_mode):
        number = _number(found)
        if number == left_out:
            return
        if number in above:
            raise ValueError(
                f'"{given}" is a link to a directory that it lies in; expected directories that'
                " end. Remove the link."
            )
        yield inside, path
        for each in sorted(path.iterdir()):
            yield from _members(f"{inside}/{each.name}", each, (*above, number), base, left_out)
    # Sockets, FIFOs and devices mean nothing elsewhere.
