#!/usr/bin/env python3
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Check the includes of native/ against the rooms' walls, and say which wall was crossed and why.

The build enforces the walls already (cmake/SmdRoom.cmake), but there a forbidden include is only a
missing file. This check reads the same DEPENDS lists from the CMakeLists.txt files, so there is
one table, and adds what a compiler cannot see: includes that climb over a wall with `..`, and
Python or framework headers outside native/bindings.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "native"

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
ADD_ROOM = re.compile(r"smd_add_room\(\s*(\S+?)\s*(?:\)|\s(.*?)\))", re.DOTALL)
# Only bindings/, and tensorflow_ops/ for TensorFlow's C interface, know what is above the engine.
FOREIGN = re.compile(r"^(Python\.h|nanobind/|torch/|ATen/|c10/|tensorflow/)")
ROOMS_WITH_FOREIGN = ("bindings", "tensorflow_ops")


@dataclass(frozen=True)
class Room:
    """One folder of native/ that is a build target.

    Attributes:
        folder: path below native/, with slashes ("transport/shm").
        depends: folders of the rooms it names in DEPENDS.
        public_headers: names of the headers other rooms may include; empty for all.
    """

    folder: str
    depends: tuple[str, ...]
    public_headers: tuple[str, ...]


def read_rooms() -> dict[str, Room]:
    """Read the rooms from the smd_add_room() calls below native/."""
    rooms: dict[str, Room] = {}
    by_target: dict[str, str] = {}
    raw: dict[str, tuple[list[str], list[str]]] = {}
    for cmake_file in sorted(NATIVE.rglob("CMakeLists.txt")):
        text = re.sub(r"#.*", "", cmake_file.read_text(encoding="utf-8"))
        for folder, arguments in ADD_ROOM.findall(text):
            lists: dict[str, list[str]] = {
                "DEPENDS": [],
                "PUBLIC_HEADERS": [],
                "FOLDERS": [],
                "EXCLUDE": [],
            }
            current: list[str] = []
            for word in arguments.split():
                if word in lists:
                    current = lists[word]
                else:
                    current.append(word)
            # A variable in PUBLIC_HEADERS is transport's "all headers of the folder itself".
            public = [
                header
                for word in lists["PUBLIC_HEADERS"]
                for header in (
                    [path.name for path in cmake_file.parent.glob("*.h")]
                    if word.startswith("${")
                    else [word]
                )
            ]
            by_target["smd_" + folder.replace("/", "_")] = folder
            raw[folder] = (lists["DEPENDS"], public)
    for folder, (depends, public) in raw.items():
        rooms[folder] = Room(folder, tuple(by_target[name] for name in depends), tuple(public))
    # bindings is a Python module rather than a room of the engine; it sees the engine and below.
    rooms["bindings"] = Room("bindings", ("engine",), ())
    return rooms


def visible_from(room: Room, rooms: dict[str, Room]) -> set[str]:
    """Folders whose headers `room` may include: DEPENDS and, as in CMake, theirs in turn."""
    seen: set[str] = set()
    waiting = list(room.depends)
    while waiting:
        folder = waiting.pop()
        if folder not in seen:
            seen.add(folder)
            waiting.extend(rooms[folder].depends)
    return seen


def room_of(path: str, rooms: dict[str, Room]) -> str | None:
    """The room that a path below native/ lies in; the deepest one, or None."""
    folders = [folder for folder in rooms if path.startswith(folder + "/")]
    return max(folders, key=len, default=None)


def check_file(path: Path, rooms: dict[str, Room]) -> list[str]:
    """Problems of one source file, as lines ready to print."""
    home = room_of(path.relative_to(NATIVE).as_posix(), rooms)
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if match is None:
            continue
        bracket, header = match.groups()
        problem = None
        target = room_of(header, rooms)
        if ".." in Path(header).parts:
            problem = (
                f'includes "{header}" by a path that climbs out of the room; expected a path '
                "from native/, which the room's walls apply to. Write it from native/"
            )
        elif FOREIGN.match(header) and home not in ROOMS_WITH_FOREIGN:
            problem = (
                f"includes <{header}>; the engine serves every framework and includes none, only "
                "native/bindings knows Python. Move the code that needs it there"
            )
        elif target is None:
            if bracket == '"':
                problem = (
                    f'includes "{header}", which begins with no room of native/; expected '
                    f'"room/header.h", or <...> for the system\'s headers. Name the room'
                )
        elif home is not None and target != home:
            allowed = visible_from(rooms[home], rooms)
            public = rooms[target].public_headers
            name = header.removeprefix(target + "/")
            if target not in allowed:
                names = ", ".join(sorted(allowed)) or "the standard library only"
                problem = (
                    f"includes {header}, but {home} may see {names}: arrows between the rooms "
                    f"point down only. Move the code to a room that sees both, or change DEPENDS "
                    f"in native/{home}/CMakeLists.txt and say why in the commit"
                )
            elif public and name not in public:
                problem = (
                    f"includes {header}, which is private to {target}; it shows its callers "
                    f"{', '.join(public)}. Use that, or widen it there"
                )
        if problem is not None:
            problems.append(f"{path.relative_to(ROOT)}:{number}: {problem}.")
    return problems


def main() -> int:
    rooms = read_rooms()
    files = sorted([*NATIVE.rglob("*.h"), *NATIVE.rglob("*.cc")])
    problems = [problem for path in files for problem in check_file(path, rooms)]
    print("\n".join(problems) or f"check_includes: {len(files)} files, no wall crossed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
