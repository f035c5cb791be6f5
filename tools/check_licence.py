#!/usr/bin/env python3
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Check that every source file opens with the project's licence header.

Without arguments it checks all files that git tracks or would track; with arguments (as the
pre-commit hook calls it) those files. A shebang line may come first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

HEADER = ("Copyright 2026 The smdistributed-open authors", "SPDX-License-Identifier: Apache-2.0")
# What stands before each of the two lines.
HASH = ("# ", "# ")
SLASHES = ("// ", "// ")
BLOCK = ("/* ", " * ")  # C, which we hold to C11 and its older comments
COMMENT_OF_SUFFIX = {
    ".c": BLOCK,
    ".cc": SLASHES,
    ".h": SLASHES,
    ".cmake": HASH,
    ".py": HASH,
    ".pyi": HASH,
    ".sh": HASH,
    ".toml": HASH,
    ".yaml": HASH,
    ".yml": HASH,
}
COMMENT_OF_NAME = {"CMakeLists.txt": HASH, "Makefile": HASH, ".ci/run": HASH}
# Written by a generator, which keeps it as it comes so that the two can be compared.
GENERATED = {"src/smdistributed/collectives/_native.pyi"}


def files_of_checkout() -> list[str]:
    """Paths, relative to the root, of what git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in listing.split("\0") if path and (ROOT / path).is_file())


def comment_of(path: str) -> tuple[str, str] | None:
    """How a file that must carry the header begins its two lines; None for other files."""
    if path in GENERATED:
        return None
    name = Path(path).name
    return (
        COMMENT_OF_NAME.get(path)
        or COMMENT_OF_NAME.get(name)
        or COMMENT_OF_SUFFIX.get(Path(path).suffix)
    )


def header_for(comment: tuple[str, str]) -> list[str]:
    return [mark + text for mark, text in zip(comment, HEADER, strict=True)]


def has_header(path: str, comment: tuple[str, str]) -> bool:
    """Whether the file opens with the header, after a shebang line if it has one."""
    with (ROOT / path).open(encoding="utf-8") as file:
        lines = [file.readline().rstrip("\n") for _ in range(3)]
    if lines[0].startswith("#!"):
        lines = lines[1:]
    return lines[:2] == header_for(comment)


def main(arguments: list[str]) -> int:
    checked = 0
    missing = []
    for path in arguments or files_of_checkout():
        comment = comment_of(path)
        if comment is None:
            continue
        checked += 1
        if not has_header(path, comment):
            missing.append((path, comment))
    for path, comment in missing:
        expected = "\n    ".join(header_for(comment))
        print(f"{path}: does not open with the licence header; expected first:\n    {expected}")
    if not missing:
        print(f"check_licence: {checked} files, all with the header")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
