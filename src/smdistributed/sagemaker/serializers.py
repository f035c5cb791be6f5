# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Serializers: they turn what a user passes to `predict()` into the body of a request.

Names, arguments and content types are those of the SageMaker Python SDK 2.x.
Source: launch specification, section 10.2.

Rules that hold for every serializer here except `IdentitySerializer`:

- `bytes`, `bytearray` and `memoryview` are taken for a finished body and sent as they are.
- Of an object with a `read()` method, the body is what `read()` returns. It is not closed: it
  belongs to the caller.
- A body is `bytes` or `str`. Whoever sends a `str` encodes it as UTF-8.

Importing this module loads the standard library only. A serializer loads the package that it needs
when it is used.
"""

from __future__ import annotations

import abc
import csv
import importlib
import io
import json
import numbers
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "BaseSerializer",
    "CSVSerializer",
    "DataSerializer",
    "IdentitySerializer",
    "JSONLinesSerializer",
    "JSONSerializer",
    "LibSVMSerializer",
    "NumpySerializer",
    "SimpleBaseSerializer",
    "SparseMatrixSerializer",
    "StringSerializer",
    "TorchTensorSerializer",
]


def load_package(module: str, user: object) -> Any:
    """Imports a module of a package that need not be installed.

    Args:
        module: its full name, as "scipy.sparse".
        user: the serializer or deserializer that needs it, for the text of the error.

    Raises:
        ModuleNotFoundError: it is not installed; the text says which command installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(
            f"{type(user).__name__} cannot import {module} ({error}); expected the package"
            f" {package}. Install it: pip install {package}",
            name=error.name,
        ) from error


class BaseSerializer(abc.ABC):
    """What `Predictor` needs of a serializer. Derive from it to write one of your own."""

    @abc.abstractmethod
    def serialize(self, data: Any) -> Any:
        """Returns the body of a request, `bytes` or `str`, made of `data`."""

    @property
    @abc.abstractmethod
    def CONTENT_TYPE(self) -> str:  # noqa: N802 - published name
        """The MIME type of the body, sent in the header `Content-Type`."""


class SimpleBaseSerializer(BaseSerializer):
    """A serializer whose content type is an argument, and may be changed later.

    Args:
        content_type: the MIME type of the body.

    Raises:
        ValueError: `content_type` is not a string.
    """

    def __init__(self, content_type: str = "application/json") -> None:
        if not isinstance(content_type, str):
            raise ValueError(
                f"content_type is {content_type!r}; expected a string with the MIME type of the"
                " body. Pass for example 'application/json' or 'text/csv'."
            )
        self.content_type = content_type

    @property
    def CONTENT_TYPE(self) -> str:  # noqa: N802 - published name
        """The MIME type of the body: what `content_type` is now."""
        return self.content_type


class _BodySerializer(SimpleBaseSerializer):
    """Passes on finished bodies, and leaves all else to `_encode`."""

    # What `_encode` takes, for the text of the error.
    _expected: str

    def serialize(self, data: Any) -> Any:
        """Returns the body of a request made of `data`; the class says what `data` may be.

        Raises:
            ValueError: this serializer cannot send such data.
            ModuleNotFoundError: the package for such data is not installed.
        """
        if callable(getattr(data, "read", None)):  # a DataFrame may have a column of this name
            return data.read()
        if isinstance(data, (bytes, bytearray, memoryview)):
            return bytes(data)
        return self._encode(data)

    @abc.abstractmethod
    def _encode(self, data: Any) -> bytes | str:
        """Returns the body for data that is not a body yet."""

    def _refusal(self, data: object) -> ValueError:
        return ValueError(
            f"Unable to handle input format: {type(data)}. {type(self).__name__} expects"
            f" {self._expected}, bytes, or an object with read(). Convert the data, or use another"
            " serializer."
        )

    def _array(self, data: Any, dtype: npt.DTypeLike | None = None) -> Any:
        """Returns an array or a tensor of any device, or what nests like one, as numpy array."""
        numpy = load_package("numpy", self)
        if hasattr(data, "detach"):  # numpy takes no torch tensor with a gradient or on a GPU
            data = data.detach().cpu()
        try:
            return numpy.asarray(data, dtype=dtype)
        except TypeError as error:
            # bfloat16, which numpy lacks, and values that dtype does not take.
            raise ValueError(
                f"{type(self).__name__} cannot make a numpy array of {type(data)}: {error}."
                " Expected values of a type that numpy has. Convert them first; a torch tensor of"
                " bfloat16 with .float()."
            ) from error


def _empty(shape: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"Cannot serialize empty array. Its shape is {shape}; expected one element at least. Check"
        " the data that is to be sent."
    )


class IdentitySerializer(SimpleBaseSerializer):
    """Sends what it gets, unchanged.

    Args:
        content_type: the MIME type of the body.
    """

    def __init__(self, content_type: str = "application/octet-stream") -> None:
        super().__init__(content_type)

    def serialize(self, data: Any) -> Any:
        """Returns `data` itself."""
        return data


class StringSerializer(_BodySerializer):
    """Sends a string as UTF-8.

    Args:
        content_type: the MIME type of the body.
    """

    _expected = "a str"

    def __init__(self, content_type: str = "text/plain") -> None:
        super().__init__(content_type)

    def _encode(self, data: Any) -> bytes:
        if not isinstance(data, str):
            raise self._refusal(data)
        return data.encode("utf-8")


class LibSVMSerializer(_BodySerializer):
    """Sends text that is in the format of LibSVM already.

    Args:
        content_type: the MIME type of the body.
    """

    _expected = "a str with lines in the format of LibSVM"

    def __init__(self, content_type: str = "text/libsvm") -> None:
        super().__init__(content_type)

    def _encode(self, data: Any) -> str:
        if not isinstance(data, str):
            raise self._refusal(data)
        return data


class DataSerializer(_BodySerializer):
    """Sends the content of a file, or bytes.

    A `str` is always a path. `serialize` raises `ValueError` if the file cannot be read.

    Args:
        content_type: the MIME type of the body.
    """

    _expected = "a path (str or os.PathLike)"

    def __init__(self, content_type: str = "file-path/raw-bytes") -> None:
        super().__init__(content_type)

    def _encode(self, data: Any) -> bytes:
        if not isinstance(data, (str, os.PathLike)):
            raise self._refusal(data)
        try:
            with open(data, "rb") as file:
                return file.read()
        except OSError as error:
            raise ValueError(
                f"Could not open or read the file {os.fspath(data)!r}: {error}. Expected a file"
                " that this user may read. Correct the path, or pass the content as bytes."
            ) from error


class CSVSerializer(_BodySerializer):
    r"""Sends rows as CSV, separated by "\n", without a header and without a final line end.

    Cells with commas, quotes or line ends are quoted. `None` becomes an empty cell, NaN becomes
    `nan`. What `data` may be:

    - a flat list, tuple, range or generator of values: one row. A number: one row of one cell.
    - a list, tuple or generator of rows. A row is a list, a tuple, an array or a `str`.
    - a numpy array, torch tensor or pandas Series of any dtype: one row per element of the first
      of two or more axes, with the other axes flattened; one row if there are fewer axes.
    - a pandas DataFrame: one row per row, without its index. NaN becomes an empty cell.
    - a `str`: sent as it is.

    A `str` in the place of a row is a line that is CSV already, as in the SDK. So a list of nothing
    but strings is a list of lines. For one row of strings, pass a list that holds one list.

    Args:
        content_type: the MIME type of the body.
    """

    _expected = "a row or rows of values: list, tuple, array, tensor, DataFrame, str"

    def __init__(self, content_type: str = "text/csv") -> None:
        super().__init__(content_type)

    def _encode(self, data: Any) -> str:
        if hasattr(data, "to_csv") and data.ndim == 2:  # a DataFrame; a Series is an array
            if data.empty:
                raise _empty(data.shape)
            return str(data.to_csv(header=False, index=False)).removesuffix("\n")
        if isinstance(data, str):
            return data
        if isinstance(data, numbers.Number):
            data = [data]
        if hasattr(data, "__array__"):
            array = self._array(data)
            data = array if array.ndim > 1 else [array]
        elif hasattr(data, "keys") or hasattr(data, "tocsr") or not isinstance(data, Iterable):
            # The iterator of a dict gives its keys; that of a sparse matrix, no plain values.
            raise self._refusal(data)
        rows = list(data)
        if not all(_is_row(item) for item in rows):
            rows = [rows]
        if not rows:
            raise _empty((0,))
        return "\n".join(self._line(row) for row in rows)

    def _line(self, row: Any) -> str:
        if isinstance(row, str):
            return row
        if isinstance(row, (bytes, bytearray)):
            return row.decode("utf-8")
        if hasattr(row, "__array__"):
            row = self._array(row).reshape(-1)
        cells = [self._cell(value) for value in row]
        if not cells:
            raise _empty((0,))
        text = io.StringIO()
        # With this line end, the writer of each version of Python quotes both of its characters.
        csv.writer(text, lineterminator="\r\n").writerow(cells)
        return text.getvalue().removesuffix("\r\n")

    def _cell(self, value: Any) -> Any:
        """Returns what csv.writer writes as one would by hand."""
        if isinstance(value, bytes):
            return value.decode("utf-8")
        if hasattr(value, "keys") or (_is_row(value) and not isinstance(value, str)):
            raise ValueError(
                f"CSVSerializer got {type(value)} in the place of one cell; expected a plain value,"
                " and at most rows of cells. Flatten the data, or use JSONSerializer."
            )
        if hasattr(value, "__array__"):  # the text of a tensor is `tensor(1.)`, that of this is 1.0
            return self._array(value)[()]
        return value


def _is_row(item: Any) -> bool:
    """Whether an element of a list is a row of its own, rather than a cell."""
    if isinstance(item, (str, bytes, bytearray, list, tuple, range)):
        return True
    return hasattr(item, "__array__") and item.ndim > 0


def _json_value(value: Any) -> Any:
    """For json.dumps: arrays, tensors and their scalars become lists and numbers of Python."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"Object of type {type(value).__name__} is not JSON serializable; expected dict, list, str,"
        " number, bool, None, or an array. Convert it first."
    )


class JSONSerializer(_BodySerializer):
    """Sends a value as JSON.

    The value may hold numpy arrays and scalars and torch tensors at any depth: they become lists
    and numbers. A `str` becomes a JSON string. NaN and infinities become `NaN` and `Infinity`, as
    Python's json writes and reads them; strict readers of JSON refuse these.

    `serialize` raises `TypeError` if the value holds something else, and `ValueError` if it holds
    itself.

    Args:
        content_type: the MIME type of the body.
    """

    def _encode(self, data: Any) -> str:
        return json.dumps(data, default=_json_value)


class JSONLinesSerializer(_BodySerializer):
    r"""Sends one line of JSON for each element, separated by "\n".

    `data` is a list, tuple, generator, numpy array or torch tensor (one line per element of the
    first axis). Elements are written as `JSONSerializer` writes them. A `str` is sent as it is.
    No elements make an empty body.

    Args:
        content_type: the MIME type of the body.
    """

    _expected = "a str, or a list, tuple, generator or array with one element for each line"

    def __init__(self, content_type: str = "application/jsonlines") -> None:
        super().__init__(content_type)

    def _encode(self, data: Any) -> str:
        if isinstance(data, str):
            return data
        # The iterator of a dict or DataFrame gives keys, and that of an array of no axes an error.
        if hasattr(data, "keys") or getattr(data, "ndim", 1) == 0 or not isinstance(data, Iterable):
            raise self._refusal(data)
        return "\n".join(json.dumps(item, default=_json_value) for item in data)


class NumpySerializer(_BodySerializer):
    """Sends an array in numpy's npy format.

    `data` is a numpy array, a torch tensor of any device, a number, a pandas object, or lists that
    nest to a full array. The shape is kept. An array of dtype `object` is pickled, as numpy does.

    `serialize` raises `ValueError` if the array has no element, or if the data makes no array.

    Args:
        dtype: the dtype to send. `None`: the dtype of the data, or what numpy finds for lists.
        content_type: the MIME type of the body.
    """

    _expected = "an array, a tensor, a number, or nested lists of numbers"

    def __init__(
        self, dtype: npt.DTypeLike | None = None, content_type: str = "application/x-npy"
    ) -> None:
        super().__init__(content_type)
        self.dtype = dtype

    def _encode(self, data: Any) -> bytes:
        array = self._array(data, self.dtype)
        if array.dtype.hasobject and array.ndim == 0:
            # What numpy does with a dict, a generator or a sparse matrix: it keeps the object.
            raise self._refusal(data)
        if array.size == 0:
            raise _empty(array.shape)
        buffer = io.BytesIO()
        load_package("numpy", self).save(buffer, array)
        return buffer.getvalue()


class SparseMatrixSerializer(_BodySerializer):
    """Sends a scipy sparse matrix in the npz format of `scipy.sparse.save_npz`.

    The formats `lil` and `dok`, which npz lacks, are sent as `csr`.

    Args:
        content_type: the MIME type of the body.
    """

    _expected = "a sparse matrix or sparse array of scipy"

    def __init__(self, content_type: str = "application/x-npz") -> None:
        super().__init__(content_type)

    def _encode(self, data: Any) -> bytes:
        sparse = load_package("scipy.sparse", self)
        if not sparse.issparse(data):
            raise self._refusal(data)
        if data.format in ("lil", "dok"):
            data = data.tocsr()
        buffer = io.BytesIO()
        sparse.save_npz(buffer, data)
        return buffer.getvalue()


class TorchTensorSerializer(_BodySerializer):
    """Sends a torch tensor in the format of `torch.save`.

    The tensor is sent as one of the CPU, without its gradient: the receiver may lack the device.
    Of a view, only its own elements are sent.

    Args:
        content_type: the MIME type of the body.
    """

    _expected = "a torch.Tensor"

    def __init__(self, content_type: str = "tensor/pt") -> None:
        super().__init__(content_type)

    def _encode(self, data: Any) -> bytes:
        torch = load_package("torch", self)
        if not isinstance(data, torch.Tensor):
            raise self._refusal(data)
        buffer = io.BytesIO()
        # torch.save writes all of a tensor's memory, and a view has that of the whole: hence clone.
        torch.save(data.detach().cpu().clone(), buffer)
        return buffer.getvalue()
