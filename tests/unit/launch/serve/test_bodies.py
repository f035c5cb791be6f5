# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies to arrays and back (launch specification, section 10.4)."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import pytest

from smdistributed.launch.serve.handlers.answers import InferenceError
from smdistributed.launch.serve.handlers.bodies import accepted, array_of, body_of, text_of


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        ("[[1, 2.5]]", "application/json", [[1, 2.5]]),
        ("3", "application/json", 3),
        ("[]", "application/json", []),
        ("1,2\n3,4\n", "text/csv", [[1, 2], [3, 4]]),
        ("1,2", "text/csv; charset=utf-8", [1, 2]),
        ("1\n2\n", "TEXT/CSV", [1, 2]),
        (npy(np.arange(3, dtype=np.int16)), "application/x-npy", [0, 1, 2]),
        (npy(np.empty((0, 4))), "application/x-npy", np.empty((0, 4))),
    ],
)
def test_a_body_becomes_the_array_that_it_is(body, content_type, expected) -> None:
    np.testing.assert_array_equal(array_of(body, content_type), expected)


def test_npy_keeps_its_dtype() -> None:
    assert array_of(npy(np.zeros(2, np.float16)), "application/x-npy").dtype == np.float16


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("[[1, 2], [3]]", "application/json"),
        ("[1, 2", "application/json"),
        ("", "application/json"),
        ("[" * 100_000, "application/json"),
        ("", "text/csv"),
        ("1,abc\n", "text/csv"),  # and not a NaN
        ("1,2\n3\n", "text/csv"),
        (b"", "application/x-npy"),
        (npy(np.arange(9))[:-1], "application/x-npy"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "application/x-npy"),
        ('[{"a": 1}]', "application/json"),
    ],
)
def test_a_body_that_is_not_what_it_says_is_its_senders_fault(body, content_type) -> None:
    with pytest.raises(InferenceError) as caught:
        array_of(body, content_type)
    assert caught.value.status_code == 400


class _Bomb:
    def __reduce__(self) -> tuple:
        return (pytest.fail, ("it was unpickled",))


@pytest.mark.parametrize(
    "body",
    [npy(np.array([_Bomb()], dtype=object), allow_pickle=True), pickle.dumps(_Bomb())],
)
def test_nothing_is_unpickled(body) -> None:
    with pytest.raises(InferenceError):
        array_of(body, "application/x-npy")


def test_another_type_is_said_to_be_unsupported() -> None:
    with pytest.raises(InferenceError, match=r"image/png is not supported.*input_fn") as caught:
        array_of(b"", "image/png")
    assert caught.value.status_code == 415


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [("application/json", "\u00e4"), ("text/csv;x=y", "\u00e4"), ("image/png", b"\xc3\xa4")],
)
def test_json_and_csv_are_text_and_all_else_is_bytes(content_type, expected) -> None:
    assert text_of("\u00e4".encode(), content_type) == expected


def test_text_that_is_no_utf8_is_its_senders_fault() -> None:
    with pytest.raises(InferenceError, match="no UTF-8"):
        text_of(b"\xff", "text/csv")


@pytest.mark.parametrize(
    ("given", "expected"), [("", "d/d"), ("*/*", "d/d"), ("a/b", "a/b"), ("a/b, c/d", "a/b, c/d")]
)
def test_a_missing_accept_is_the_default(given, expected) -> None:
    assert accepted(given, "d/d") == expected


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json", "application/json"),
        ("image/png, text/csv", "text/csv"),
        ("application/x-npy;q=1", "application/x-npy"),
        ("image/png, */*", "application/json"),
    ],
)
def test_of_a_list_the_first_known_type_is_taken(accept, kind) -> None:
    values = np.array([[1.5, 2], [3, 4]])
    body, got = body_of(values, accept)
    assert got == kind
    back = {
        "application/json": lambda: json.loads(body),
        "text/csv": lambda: np.loadtxt(io.BytesIO(body), delimiter=","),
        "application/x-npy": lambda: np.load(io.BytesIO(body), allow_pickle=False),
    }[kind]()
    np.testing.assert_array_equal(back, values)


def test_no_known_type_is_an_error() -> None:
    with pytest.raises(InferenceError, match=r"image/png is not supported.*output_fn"):
        body_of([1], "image/png")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.zeros((2, 2, 2)), "no place for a list in a row"),
        (([np.arange(2000), np.ones(3)],), "no place for a ndarray in a row"),
        ({"a": 1}, "no place for a dict in a row"),
        (None, "no place for a NoneType in a row"),
    ],
)
def test_what_csv_has_no_place_for(values, text) -> None:
    with pytest.raises(TypeError, match=text):
        body_of(values, "text/csv")
