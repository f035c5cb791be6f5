# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Deserializers: they turn the body of a response into what `predict()` returns.

Names, arguments and accepted types are those of the SageMaker Python SDK 2.x.
Source: launch specification, section 10.2.

Every deserializer here except `StreamDeserializer` reads the stream to its end and closes it, also
after an error. Importing this module loads the standard library only. A deserializer loads the
package that it needs when it is used.
"""

from __future__ import annotations

import abc
import contextlib
import csv
import importlib
import io
import json
import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from smdistributed.sagemaker.serializers import load_package

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "BaseDeserializer",
    "BytesDeserializer",
    "CSVDeserializer",
    "JSONDeserializer",
    "JSONLinesDeserializer",
    "NumpyDeserializer",
    "PandasDeserializer",
    "SimpleBaseDeserializer",
    "StreamDeserializer",
    "StringDeserializer",
    "TorchTensorDeserializer",
]


class ResponseStream(Protocol):
    """The body of a response, as bytes that can be read once."""

    def read(self) -> bytes:
        """Returns all bytes."""

    def close(self) -> None:
        """Frees the connection."""


class BaseDeserializer(abc.ABC):
    """What `Predictor` needs of a deserializer. Derive from it to write one of your own."""

    @abc.abstractmethod
    def deserialize(self, stream: Any, content_type: str) -> Any:
        """Returns the value that a response holds.

        Args:
            stream: the body; has `read()`, which returns bytes, and `close()`.
            content_type: the MIME type of the body.
        """

    @property
    @abc.abstractmethod
    def ACCEPT(self) -> tuple[str, ...]:  # noqa: N802 - published name
        """The MIME types that can be read, sent in the header `Accept`."""


class SimpleBaseDeserializer(BaseDeserializer):
    """A deserializer whose accepted types are an argument, and may be changed later.

    Args:
        accept: the MIME type that the endpoint is asked for, or several.
    """

    def __init__(self, accept: str | Sequence[str] = "*/*") -> None:
        self.accept = accept

    @property
    def ACCEPT(self) -> tuple[str, ...]:  # noqa: N802 - published name
        """The MIME types that can be read: what `accept` is now, as tuple."""
        return (self.accept,) if isinstance(self.accept, str) else tuple(self.accept)


class _BodyDeserializer(SimpleBaseDeserializer):
    """Reads and closes the stream, and leaves its bytes to `_decode`."""

    def deserialize(self, stream: ResponseStream, content_type: str) -> Any:
        """Returns the value that a response holds; the class says which. Closes the stream.

        Args:
            stream: the body.
            content_type: the MIME type of the body. Parameters, as in "text/csv; charset=utf-8",
                and upper case do not matter.

        Raises:
            ValueError: the body, or its type, is none that this deserializer reads.
            ModuleNotFoundError: the package for such data is not installed.
        """
        with contextlib.closing(stream):
            body = stream.read()
        return self._decode(body, (content_type or "").partition(";")[0].strip().lower())

    @abc.abstractmethod
    def _decode(self, body: bytes, mime_type: str) -> Any:
        """Returns the value of a body, whose type is in lower case and without parameters."""

    def _refusal(self, mime_type: str, expected: str) -> ValueError:
        return ValueError(
            f"{type(self).__name__} cannot read content type {mime_type!r}; expected {expected}."
            " Use the deserializer for this type, or have the endpoint answer in another."
        )

    @contextlib.contextmanager
    def _reading(self, body: bytes, mime_type: str, expected: str) -> Iterator[None]:
        """Makes one error of what a damaged or hostile body makes other libraries raise."""
        try:
            yield
        except Exception as error:
            raise ValueError(
                f"{type(self).__name__} cannot read the response ({len(body)} bytes of"
                f" {mime_type!r}): {error}. Expected {expected}. Have the endpoint send that, or"
                " look at the response with BytesDeserializer."
            ) from error

    def _json(self, text: bytes | str) -> Any:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(
                f"{type(self).__name__} got text that is not JSON ({error.msg}), beginning with"
                f" {error.doc[:60]!r}; expected JSON. Look at the whole response with"
                " BytesDeserializer",
                error.doc,
                error.pos,
            ) from error


class BytesDeserializer(_BodyDeserializer):
    """Returns the body as `bytes`.

    Args:
        accept: the MIME type that the endpoint is asked for, or several.
    """

    def _decode(self, body: bytes, mime_type: str) -> bytes:
        return body


class StringDeserializer(_BodyDeserializer):
    """Returns the body as `str`.

    `deserialize` raises `UnicodeDecodeError`, a `ValueError`, if it is in another encoding.

    Args:
        encoding: the encoding of the body.
        accept: the MIME type that the endpoint is asked for, or several.
    """

    def __init__(
        self, encoding: str = "UTF-8", accept: str | Sequence[str] = "application/json"
    ) -> None:
        super().__init__(accept)
        self.encoding = encoding

    def _decode(self, body: bytes, mime_type: str) -> str:
        return body.decode(self.encoding)


class StreamDeserializer(SimpleBaseDeserializer):
    """Returns the open stream and its content type. The caller closes the stream.

    Args:
        accept: the MIME type that the endpoint is asked for, or several.
    """

    def deserialize(self, stream: ResponseStream, content_type: str) -> tuple[ResponseStream, str]:
        """Returns both arguments."""
        return stream, content_type


class CSVDeserializer(_BodyDeserializer):
    """Returns rows of CSV as list of lists of `str`. A cell in quotes may hold line ends.

    Args:
        encoding: the encoding of the body.
        accept: the MIME type that the endpoint is asked for, or several.
    """

    def __init__(self, encoding: str = "utf-8", accept: str | Sequence[str] = "text/csv") -> None:
        super().__init__(accept)
        self.encoding = encoding

    def _decode(self, body: bytes, mime_type: str) -> list[list[str]]:
        return _csv_rows(body.decode(self.encoding))


def _csv_rows(text: str) -> list[list[str]]:
    try:
        # By default, a StringIO ends a line at "\n" only, and a lone "\r" would be an error.
        return list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise ValueError(
            f"the response is not CSV that Python reads: {error}; expected text without NUL, and"
            f" cells of {csv.field_size_limit()} characters at most. For longer cells, call"
            " csv.field_size_limit() with what they need."
        ) from error


class JSONDeserializer(_BodyDeserializer):
    """Returns the value of a JSON text.

    `deserialize` raises `json.JSONDecodeError`, a `ValueError`, if it is not JSON.

    Args:
        accept: the MIME type that the endpoint is asked for, or several.
    """

    def __init__(self, accept: str | Sequence[str] = "application/json") -> None:
        super().__init__(accept)

    def _decode(self, body: bytes, mime_type: str) -> Any:
        return self._json(body)


class JSONLinesDeserializer(_BodyDeserializer):
    """Returns a list with the value of each line of JSON. Blank lines do not count.

    `deserialize` raises `json.JSONDecodeError`, a `ValueError`, if a line is not JSON.

    Args:
        accept: the MIME type that the endpoint is asked for, or several.
    """

    def __init__(self, accept: str | Sequence[str] = "application/jsonlines") -> None:
        super().__init__(accept)

    def _decode(self, body: bytes, mime_type: str) -> list[Any]:
        # Not splitlines(): a JSON string may hold characters that it takes for the end of a line.
        return [self._json(line) for line in body.decode("utf-8").split("\n") if line.strip()]


# What a pickled array of objects may be made of: arrays, and values that do nothing when made.
_HARMLESS = {
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "builtins": {"bytearray", "complex", "frozenset", "set"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
}


class _HarmlessUnpickler(pickle.Unpickler):
    """Unpickles arrays of plain values, and calls nothing else that a pickle asks for."""

    def find_class(self, module: str, name: str) -> Any:
        # numpy 1.x writes the first name. Both lines have the second.
        module = module.replace("numpy.core.", "numpy._core.")
        if name not in _HARMLESS.get(module, ()):
            raise pickle.UnpicklingError(
                f"it holds a pickle that asks for {module}.{name}, and so could run any code here"
            )
        return getattr(importlib.import_module(module), name)


class NumpyDeserializer(_BodyDeserializer):
    """Returns a numpy array, from one of four content types.

    - `application/x-npy`: the array as it was saved.
    - `application/x-npz`: numpy's mapping of names to arrays (`NpzFile`). `dtype` does not apply.
    - `application/json`: nested lists, in UTF-8.
    - `text/csv`: in UTF-8. One row or one column gives an array of one axis, one cell an array of
      none. Without `dtype`, a column is of int64, float64, complex128, bool or text, as its cells
      look; columns of several kinds give a structured array with the fields `f0`, `f1` and so on.
      An empty cell among numbers is NaN.

    Danger: a pickle can run any code in the process that loads it, and the published default allows
    pickles. Only arrays of dtype `object` need them. The default is the same here, but within
    limits. In an npy body, a pickle may hold arrays, numbers, text, dates and Python's containers;
    one that asks for anything else is refused. In an npz body, numpy refuses arrays of objects when
    they are looked up. So a pickle calls no code of its sender's choice. A hostile one may still
    fill the memory, or make numpy crash: pass `allow_pickle=False` if you do not trust the
    endpoint. Objects of other classes, from an endpoint that you do trust: take the body by
    `BytesDeserializer`, and call `numpy.load(io.BytesIO(body), allow_pickle=True)`.

    `deserialize` raises `ValueError` for other content types, for a damaged body, for CSV rows of
    unequal length, for values that `dtype` cannot hold, and for pickles that are refused.

    Args:
        dtype: the dtype of the array. `None`: as sent; for JSON, what numpy finds.
        accept: the MIME type that the endpoint is asked for, or several.
        allow_pickle: whether arrays of dtype `object` are loaded from npy bodies.
    """

    def __init__(
        self,
        dtype: npt.DTypeLike | None = None,
        accept: str | Sequence[str] = "application/x-npy",
        allow_pickle: bool = True,
    ) -> None:
        super().__init__(accept)
        self.dtype = dtype
        self.allow_pickle = allow_pickle

    def _decode(self, body: bytes, mime_type: str) -> Any:
        numpy = load_package("numpy", self)
        if mime_type == "application/x-npy":
            with self._reading(body, mime_type, "an array of plain values, saved by numpy.save"):
                return numpy.asarray(self._npy(body, numpy), dtype=self.dtype)
        if mime_type == "application/x-npz":
            with self._reading(body, mime_type, "arrays of numbers, saved by numpy.savez"):
                return numpy.load(io.BytesIO(body), allow_pickle=False)
        if mime_type == "application/json":
            value = self._json(body)
            with self._reading(body, mime_type, f"lists that fit dtype {self.dtype}"):
                return numpy.array(value, dtype=self.dtype)
        if mime_type == "text/csv":
            rows = [row for row in _csv_rows(body.decode("utf-8")) if row]
            with self._reading(body, mime_type, f"rows of one length that fit dtype {self.dtype}"):
                return _array_of_cells(rows, self.dtype, numpy)
        raise self._refusal(
            mime_type, "application/x-npy, application/x-npz, application/json or text/csv"
        )

    def _npy(self, body: bytes, numpy: Any) -> Any:
        file = io.BytesIO(body)
        npy = numpy.lib.format
        # A header of version 3 is one of version 2 that may hold names in UTF-8. No name is used.
        version_1 = npy.read_magic(file) == (1, 0)
        _, _, dtype = (npy.read_array_header_1_0 if version_1 else npy.read_array_header_2_0)(file)
        if dtype.hasobject and self.allow_pickle:
            return _HarmlessUnpickler(file).load()  # what follows the header is a pickle
        # numpy.load() would unpickle a body that is not npy at all. This does not.
        return npy.read_array(io.BytesIO(body), allow_pickle=False)


def _array_of_cells(rows: list[list[str]], dtype: npt.DTypeLike | None, numpy: Any) -> Any:
    """Returns the array of a table of text, without axes of length 1.

    numpy.genfromtxt gives the same arrays for plain tables. It is not used, since it knows no
    quotes, takes what follows a # for a comment, and makes -1, False or NaN of what does not fit.
    """
    if not rows:
        return numpy.empty(0, dtype)
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise ValueError(f"row 1 has {len(rows[0])} cells, row {number} has {len(row)}")
    if dtype is not None and numpy.dtype(dtype).names is not None:
        return numpy.array([tuple(row) for row in rows], dtype=dtype).squeeze()
    columns = [
        _guessed(cells, numpy) if dtype is None else _converted(cells, dtype, numpy)
        for cells in zip(*rows, strict=True)
    ]
    if len({column.dtype.kind for column in columns}) == 1:
        return numpy.stack(columns, axis=1).squeeze()
    fields = [(f"f{index}", column.dtype) for index, column in enumerate(columns)]
    return numpy.array(list(zip(*columns, strict=True)), dtype=fields).squeeze()


def _guessed(cells: Sequence[str], numpy: Any) -> Any:
    for dtype in ("bool", "int64", "float64", "complex128"):
        with contextlib.suppress(ValueError, OverflowError):
            return _converted(cells, dtype, numpy)
    return numpy.array(cells)


def _converted(cells: Sequence[str], dtype: npt.DTypeLike, numpy: Any) -> Any:
    kind = numpy.dtype(dtype).kind
    if kind == "b":  # numpy takes each text but the empty one for True
        words = {"true": True, "false": False}
        try:
            return numpy.array([words[cell.strip().lower()] for cell in cells])
        except KeyError as error:
            raise ValueError(f"{error} is neither True nor False") from error
    if kind in "fc":
        cells = [cell if cell.strip() else "nan" for cell in cells]
    return numpy.array(cells).astype(dtype)


class PandasDeserializer(_BodyDeserializer):
    """Returns a pandas DataFrame, from CSV or JSON, as `read_csv` and `read_json` read them.

    The first row of CSV is taken for the names of the columns. `CSVSerializer` writes none.

    Args:
        accept: the MIME type that the endpoint is asked for, or several.
    """

    def __init__(self, accept: str | Sequence[str] = ("text/csv", "application/json")) -> None:
        super().__init__(accept)

    def _decode(self, body: bytes, mime_type: str) -> Any:
        pandas = load_package("pandas", self)
        if mime_type == "text/csv":
            return pandas.read_csv(io.BytesIO(body))
        if mime_type == "application/json":
            return pandas.read_json(io.BytesIO(body))
        raise self._refusal(mime_type, "text/csv or application/json")


class TorchTensorDeserializer(_BodyDeserializer):
    """Returns a torch tensor, in the memory of the CPU, from the format of `torch.save`.

    The body may hold tensors and plain containers only (`weights_only=True` of torch), since other
    pickles can run any code. `deserialize` raises `ValueError` if it holds something else.

    Args:
        accept: the MIME type that the endpoint is asked for, or several.
    """

    def __init__(self, accept: str | Sequence[str] = "tensor/pt") -> None:
        super().__init__(accept)

    def deserialize(self, stream: Any, content_type: str = "tensor/pt") -> Any:
        """As of other deserializers; the type need not be given."""
        return super().deserialize(stream, content_type)

    def _decode(self, body: bytes, mime_type: str) -> Any:
        torch = load_package("torch", self)
        with self._reading(body, mime_type, "a tensor saved by torch.save"):
            # The endpoint's GPU need not exist here.
            return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
