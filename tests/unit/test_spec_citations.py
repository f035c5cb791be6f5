# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the code cites is in docs/spec: the document, and a heading with the number.

docs/spec/README.md says how to cite. A citation without a name means the package in whose folder
the file is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "docs" / "spec"
CITING = ("src", "native", "tests")
SUFFIXES = (".py", ".pyi", ".h", ".cc", ".c")
PACKAGES = ("dataparallel", "modelparallel", "launch")

_NUMBER = r"(?P<number>\d+(?:\.\d+)?(?![\d.]*\d))"
# "dataparallel specification, sections 3.2", "specification's table, section 3.3", "(spec, 6.5)",
# "TensorFlow modelparallel specification, section 2".
_BEGIN = re.compile(
    r"(?:(?P<name>(?:TensorFlow\s+)?\w+)\s+)?\b[Ss]pec(?:ification)?\b(?:'s\s+\w+)?[\s,(]+(?:sections?\s+)?"
    + _NUMBER
)
# What may follow a number: "(a note)", ", row 5", ", points 1 and 2".
_NOTE = re.compile(
    r"\s*\([^()]*\)|,?\s+(?:rows?|rules?|points?|statements?)\s+\d+(?:(?:,| to| and)\s+\d+)*"
)
# Another number: ", 3.5", " and 4.2", " to 3.5", "; sections 4.4".
_NEXT = re.compile(
    r"(?:(?P<to>\s+to\s+)|(?:,|,?\s+and)\s+(?:sections?\s+)?|;\s+sections?\s+)" + _NUMBER
)
# Words before "specification" that are no name of a document.
_NO_NAMES = ("the", "of", "a", "our", "Source")


def _citations(text: str) -> Iterator[tuple[str | None, list[str]]]:
    """The name, or None, and the numbers of each citation."""
    text = re.sub(r"\n[ \t]*(?://+|#+|\*)?[ \t]*", " ", text)  # may go on in the next comment line
    for found in _BEGIN.finditer(text):
        name = None if found["name"] in _NO_NAMES else found["name"]
        numbers = [found["number"]]
        end = found.end()
        while True:
            while note := _NOTE.match(text, end):
                end = note.end()
            following = _NEXT.match(text, end)
            if following is None:
                break
            if following["to"]:
                numbers += _between(numbers[-1], following["number"])
            numbers.append(following["number"])
            end = following.end()
        yield name, numbers


def _between(first: str, last: str) -> list[str]:
    """Numbers of a range without its ends: 3.3 to 3.6, or 0 to 5."""
    chapter, dot, begin = first.rpartition(".")
    chapter_of_last, _, end = last.rpartition(".")
    assert chapter == chapter_of_last, f"sections {first} to {last} are of different chapters"
    return [f"{chapter}{dot}{number}" for number in range(int(begin) + 1, int(end))]


@functools.cache
def _headings(name: str) -> list[str] | None:
    """The numbers of a document's headings; None if there is no such document."""
    path = SPEC / f"{_file_name(name)}.md"
    if not path.is_file():
        return None
    return re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", path.read_text(encoding="utf-8"), re.MULTILINE)


def _file_name(name: str) -> str:
    """`modelparallel-tensorflow` of "TensorFlow modelparallel"; of one word that word."""
    return "-".join(reversed(name.split())).lower()


def _mistakes(text: str, default_name: str | None = None) -> list[str]:
    mistakes = []
    for given, numbers in _citations(text):
        name = given or default_name
        headings = None if name is None else _headings(name)
        if headings is None:
            mistakes.append(
                f"section {numbers[0]} of which document?"
                if name is None
                else f"there is no docs/spec/{_file_name(name)}.md"
            )
            continue
        missing = [number for number in numbers if number not in headings]
        mistakes += [
            f"docs/spec/{_file_name(name)}.md has no section {number}" for number in missing
        ]
    return mistakes


def _default_name(path: Path) -> str | None:
    return next((part for part in path.relative_to(ROOT).parts if part in PACKAGES), None)


def test_what_is_cited_is_there() -> None:
    files = [
        path
        for folder in CITING
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES and path != Path(__file__)
    ]
    mistakes, num_citations = [], 0
    for path in files:
        text = path.read_text(encoding="utf-8")
        num_citations += sum(1 for _ in _citations(text))
        mistakes += [
            f"{path.relative_to(ROOT)}: {each}" for each in _mistakes(text, _default_name(path))
        ]
    assert not mistakes, "\n".join(mistakes)
    assert num_citations > 200, "citations have a form that this test does not know"


@pytest.mark.parametrize("name", [*PACKAGES, "TensorFlow modelparallel"])
def test_no_number_stands_twice(name: str) -> None:
    headings = _headings(name)
    assert headings
    assert len(headings) == len(set(headings))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dataparallel specification, section 3.2.", "3.2"),
        ("modelparallel specification, sections 3.2, 3.5 and\n    // 4.2.", "3.2 3.5 4.2"),
        ("modelparallel specification, sections 3.2 to 3.4 and 8", "3.2 3.3 3.4 8"),
        ("modelparallel specification, sections 0 to 2", "0 1 2"),
        ("modelparallel specification, section 1; TensorFlow modelparallel", "1"),
        ("TensorFlow\n    modelparallel specification, sections 3.4 and 6.2.", "3.4 6.2"),
        ("specification, section 3.2, row 6, and section 3.3, rows 1 to 4.", "3.2 3.3"),
        ("specification, sections 3.1 (a), 4.6 (b) and 12 (points 2, 10).", "3.1 4.6 12"),
        ("specification, section 12, point 2; sections 4.4 (c) and 5.2", "12 4.4 5.2"),
        ("every row of the specification's table, section 3.3, and 4.2.", "3.3 4.2"),
        ("the specification's bound (section 12, point 2)", "12"),
        ("Delayed values (specification, 6.5). Eager", "6.5"),
    ],
)
def test_forms_of_citations(text: str, expected: str) -> None:
    ((_, numbers),) = _citations(text)
    assert numbers == expected.split()


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("launcher specification, section 1.", "there is no docs/spec/launcher.md"),
        ("dataparallel specification, section 99.", "dataparallel.md has no section 99"),
        ("modelparallel specification, sections 3.11 to 3.13.", "has no section 3.13"),
        ("specification, section 3.", "section 3 of which document?"),
        ("TensorFlow modelparallel specification, section 6.10.", "tensorflow.md has no section"),
        ("TensorFlow dataparallel specification, section 1.", "no docs/spec/dataparallel-tensor"),
    ],
)
def test_mistakes_are_found(text: str, mistake: str) -> None:
    (found,) = _mistakes(text)
    assert mistake in found
