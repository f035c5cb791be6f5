# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From bodies of calls to arrays, and from what a model says to bodies.

Nothing that is received is unpickled.
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np

from smdistributed.launch.serve.handlers.answers import InferenceError

__all__ = ["CSV", "JSON", "NPY", "accepted", "array_of", "body_of", "main_type", "text_of"]

JSON = "application/json"
CSV = "text/csv"
NPY = "application/x-npy"

_KNOWN = (JSON, CSV, NPY)
_TEXT = (JSON, CSV)
_ANY = "*/*"


def main_type(content_type: str) -> str:
    """A content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def text_of(body: bytes, content_type: str) -> str | bytes:
    """The body as `input_fn` gets it: JSON and CSV as str, all else as bytes.

    Raises:
        InferenceError: it is to be text, and is no UTF-8.
    """
    if main_type(content_type) not in _TEXT:
        return body
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InferenceError(
            400, f"The body is no UTF-8, as {content_type} is to be: {error}"
        ) from None


def accepted(accept: str, default: str) -> str:
    """The types that the caller takes; the default for a missing line and for `*/*`."""
    given = accept.strip()
    return default if given in ("", _ANY) else given


def array_of(body: str | bytes, content_type: str) -> np.ndarray[Any, Any]:
    """The array that a body is.

    Args:
        body: of one of the types application/json, text/csv and application/x-npy.
        content_type: says which.

    Raises:
        InferenceError: 415 for another type, 400 for a body that is not what its type says.
    """
    kind = main_type(content_type)
    if kind not in _KNOWN:
        raise InferenceError(415, _unsupported(content_type, "an input_fn"))
    try:
        array = _read(body, kind)
    except (ValueError, TypeError, EOFError, RecursionError, OSError) as error:
        raise InferenceError(400, f"The body is not the {kind} that it says: {error}") from None
    if array.dtype == object:
        raise InferenceError(
            400, f"The body is {kind}, but no array of numbers: lists of one length are expected."
        )
    return array


def body_of(values: Any, accept: str) -> tuple[bytes, str]:
    """What a model has said, as the body of an answer, and its type.

    Args:
        values: an array, or lists of numbers.
        accept: types, with commas between; the first that is known is taken.

    Raises:
        InferenceError: none of them is known.
    """
    for given in accept.split(","):
        kind = main_type(given)
        if kind == _ANY:
            kind = JSON
        if kind in _KNOWN:
            return _write(values, kind), kind
    raise InferenceError(415, _unsupported(accept, "an output_fn"))


def _read(body: str | bytes, kind: str) -> np.ndarray[Any, Any]:
    if kind == NPY:
        raw = body.encode() if isinstance(body, str) else body
        array = np.load(io.BytesIO(raw), allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive of arrays")
        return array
    text = body if isinstance(body, str) else body.decode("utf-8")
    if kind == JSON:
        return np.array(json.loads(text))
    if not text.strip():
        raise ValueError("it is empty")
    return np.loadtxt(io.StringIO(text), delimiter=",", comments=None)


def _write(values: Any, kind: str) -> bytes:
    if kind == NPY:
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(values), allow_pickle=False)
        return buffer.getvalue()
    lists = values.tolist() if isinstance(values, np.ndarray) else values
    if kind == JSON:
        return json.dumps(lists).encode()
    rows = lists if isinstance(lists, (list, tuple)) else [lists]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        cells = row if isinstance(row, (list, tuple)) else [row]
        for each in cells:
            if not isinstance(each, (int, float, complex, str, np.generic)):
                raise TypeError(
                    f"{CSV} has no place for a {type(each).__name__} in a row; expected rows of"
                    f" numbers: an array of one or two dimensions. Ask for {JSON} or {NPY}, or"
                    " write an output_fn."
                )
        writer.writerow(cells)
    return text.getvalue().encode()


def _unsupported(content_type: str, what: str) -> str:
    return (
        f"Content type {content_type} is not supported by this framework; expected one of"
        f" {', '.join(_KNOWN)}. Write {what} that knows it."
    )
