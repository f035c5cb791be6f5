# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What each deserializer of the specification makes of the body of a response."""

from __future__ import annotations

import datetime as dt
import inspect
import io
import json
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smdistributed.sagemaker import deserializers
from smdistributed.sagemaker.deserializers import (
    BaseDeserializer,
    BytesDeserializer,
    CSVDeserializer,
    JSONDeserializer,
    JSONLinesDeserializer,
    NumpyDeserializer,
    PandasDeserializer,
    SimpleBaseDeserializer,
    StreamDeserializer,
    StringDeserializer,
    TorchTensorDeserializer,
)
from smdistributed.sagemaker.serializers import (
    CSVSerializer,
    JSONLinesSerializer,
    JSONSerializer,
    NumpySerializer,
    SparseMatrixSerializer,
    StringSerializer,
    TorchTensorSerializer,
)

# Source: launch specification, section 10.2.
ACCEPTS: dict[Callable[..., Any], tuple[str, ...]] = {
    BytesDeserializer: ("*/*",),
    JSONDeserializer: ("application/json",),
    NumpyDeserializer: ("application/x-npy",),
    CSVDeserializer: ("text/csv",),
    JSONLinesDeserializer: ("application/jsonlines",),
    StringDeserializer: ("application/json",),
    StreamDeserializer: ("*/*",),
    PandasDeserializer: ("text/csv", "application/json"),
    TorchTensorDeserializer: ("tensor/pt",),
}

NPY = "application/x-npy"


def read(deserializer: BaseDeserializer, body: bytes, content_type: str = "*/*") -> Any:
    stream = io.BytesIO(body)
    try:
        return deserializer.deserialize(stream, content_type)
    finally:
        assert stream.closed


def body_of(serializer: Any, data: Any) -> bytes:
    """The body as the one who sends it makes it."""
    body = serializer.serialize(data)
    return body.encode("utf-8") if isinstance(body, str) else bytes(body)


# Of all deserializers.


@pytest.mark.parametrize(("make", "accept"), ACCEPTS.items())
def test_each_deserializer_has_the_published_types_and_takes_others(
    make: Callable[..., Any], accept: tuple[str, ...]
) -> None:
    deserializer = make()
    assert isinstance(deserializer, SimpleBaseDeserializer)
    assert accept == deserializer.ACCEPT
    deserializer.accept = "a/b"
    assert deserializer.ACCEPT == ("a/b",)
    assert make(accept=("c/d", "e/f")).ACCEPT == ("c/d", "e/f")
    assert make(accept=["c/d"]).ACCEPT == ("c/d",)


def test_the_names_are_the_nine_and_two_base_classes() -> None:
    names = {str(make.__name__) for make in ACCEPTS}
    assert set(deserializers.__all__) == names | {"BaseDeserializer", "SimpleBaseDeserializer"}
    assert len(deserializers.__all__) == 11


@pytest.mark.parametrize(
    ("make", "defaults"),
    [
        (NumpyDeserializer, {"dtype": None, "accept": NPY, "allow_pickle": True}),
        (CSVDeserializer, {"encoding": "utf-8", "accept": "text/csv"}),
        (StringDeserializer, {"encoding": "UTF-8", "accept": "application/json"}),
    ],
)
def test_signatures(make: Callable[..., Any], defaults: dict[str, Any]) -> None:
    parameters = inspect.signature(make).parameters.values()
    assert [(each.name, each.default) for each in parameters] == list(defaults.items())


class _BrokenStream(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise ConnectionResetError("the endpoint went away")


@pytest.mark.parametrize("make", [each for each in ACCEPTS if each is not StreamDeserializer])
def test_the_stream_is_closed_also_when_it_breaks(make: Callable[..., Any]) -> None:
    stream = _BrokenStream()
    with pytest.raises(ConnectionResetError):
        make().deserialize(stream, "application/json")
    assert stream.closed


def test_the_base_classes_cannot_be_used_but_derived_from() -> None:
    for base in (BaseDeserializer, SimpleBaseDeserializer):
        with pytest.raises(TypeError, match="abstract"):
            base()  # type: ignore[abstract]

    class Own(BaseDeserializer):
        ACCEPT = ("own/type",)  # the way that the SDK's pages show

        def deserialize(self, stream: Any, content_type: str) -> Any:
            return stream.read(), content_type

    class Simple(SimpleBaseDeserializer):
        def deserialize(self, stream: Any, content_type: str) -> Any:
            return stream.read()

    assert Own().ACCEPT == ("own/type",)
    assert Own().deserialize(io.BytesIO(b"x"), "a/b") == (b"x", "a/b")
    assert Simple().ACCEPT == ("*/*",)


@pytest.mark.parametrize("content_type", ["text/plain", "", None, "application/jsonlines"])
@pytest.mark.parametrize("make", [NumpyDeserializer, PandasDeserializer])
def test_a_type_that_cannot_be_read_is_named(make: Callable[..., Any], content_type: Any) -> None:
    if make is PandasDeserializer:
        pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(ValueError, match=rf"^{make.__name__} cannot read content type '") as raised:
        read(make(), b"[1]", content_type)
    assert repr(content_type or "") in str(raised.value)


# Bytes, text, streams.


def test_bytes_and_text() -> None:
    assert read(BytesDeserializer(), b"\x00\xff") == b"\x00\xff"
    assert read(BytesDeserializer(), b"") == b""
    assert read(StringDeserializer(), "é€".encode()) == "é€"
    assert read(StringDeserializer("latin-1"), b"\xe9") == "é"
    with pytest.raises(UnicodeDecodeError):
        read(StringDeserializer(), b"\xe9")


def test_a_stream_is_handed_over_open() -> None:
    stream = io.BytesIO(b"abc")
    assert StreamDeserializer().deserialize(stream, "a/b; c=d") == (stream, "a/b; c=d")
    assert stream.read() == b"abc"


# CSV, JSON, JSON lines.


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        (b"1,2\n3,4", [["1", "2"], ["3", "4"]]),
        (b"1,2\r\n3,4\r\n", [["1", "2"], ["3", "4"]]),
        (
            b'"a,b","say ""x""","two\nlines","cr\r\nlf"\nz',
            [["a,b", 'say "x"', "two\nlines", "cr\r\nlf"], ["z"]],
        ),
        ("é,\u2028\n".encode(), [["é", "\u2028"]]),
        (b"a,,\n", [["a", "", ""]]),
        (b"1,2\r3,4", [["1", "2"], ["3", "4"]]),
        (b"", []),
    ],
)
def test_csv(body: bytes, rows: list[list[str]]) -> None:
    assert read(CSVDeserializer(), body) == rows


def test_csv_in_another_encoding_or_with_a_cell_beyond_the_limit() -> None:
    assert read(CSVDeserializer(encoding="utf-16"), "é,1".encode("utf-16")) == [["é", "1"]]
    with pytest.raises(UnicodeDecodeError):
        read(CSVDeserializer(), b"\xe9")
    with pytest.raises(ValueError, match=r"field larger than field limit.*field_size_limit\(\)"):
        read(CSVDeserializer(), b"x" * 200_000)


def test_json() -> None:
    assert read(JSONDeserializer(), '{"a": [1, null, "é", NaN]}'.encode())["a"][:3] == [
        1,
        None,
        "é",
    ]
    assert read(JSONDeserializer(), b"5", "anything/else") == 5
    with pytest.raises(
        json.JSONDecodeError, match=r"^JSONDeserializer got text.*'<html>'"
    ) as error:
        read(JSONDeserializer(), b"<html>")
    assert error.value.doc == "<html>"
    with pytest.raises(json.JSONDecodeError, match="expected JSON"):
        read(JSONDeserializer(), b"")
    with pytest.raises(UnicodeDecodeError):
        read(JSONDeserializer(), b'"\xe9"')


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b'{"a": 1}\n[2]\n"x"', [{"a": 1}, [2], "x"]),
        (b'{"a": 1}\r\n\n [2] \n', [{"a": 1}, [2]]),
        ('"a\u2028b\x85"\n1'.encode(), ["a\u2028b\x85", 1]),
        (b"", []),
        (b"\n", []),
    ],
)
def test_json_lines(body: bytes, values: list[Any]) -> None:
    assert read(JSONLinesDeserializer(), body) == values


def test_a_line_that_is_not_json_is_shown() -> None:
    with pytest.raises(json.JSONDecodeError, match="beginning with 'oops'"):
        read(JSONLinesDeserializer(), b"1\noops\n2")


# Arrays as npy and npz.


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(1.5),
        np.empty((0, 3)),
        np.array(["é", "abc"]),
        np.array([(1, 2.0)], dtype=[("é", "i4"), ("b", "f8")]),
    ],
)
@pytest.mark.parametrize("allow_pickle", [True, False])
def test_npy(array: np.ndarray, allow_pickle: bool) -> None:
    file = io.BytesIO()
    np.save(file, array)
    found = read(NumpyDeserializer(allow_pickle=allow_pickle), file.getvalue(), NPY)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_each_version(version: tuple[int, int]) -> None:
    for array in (np.arange(3), np.array([1, "a"], dtype=object)):
        file = io.BytesIO()
        np.lib.format.write_array(file, array, version)
        assert read(NumpyDeserializer(), file.getvalue(), NPY).tolist() == array.tolist()


def test_npy_in_the_dtype_that_is_asked_for() -> None:
    body = body_of(NumpySerializer(), [1, 2])
    found = read(NumpyDeserializer("float32"), body, NPY)
    assert (found.dtype, found.tolist()) == (np.float32, [1.0, 2.0])


def damaged_bodies() -> dict[str, bytes]:
    whole = body_of(NumpySerializer(), [1, 2, 3])
    objects = body_of(NumpySerializer(), [1, None])
    return {
        "empty": b"",
        "html": b"<html>",
        "header": whole[:20],
        "cut": whole[:-1],
        "cut pickle": objects[:-5],
        # numpy.load() would unpickle it.
        "pickle": pickle.dumps([1]),
    }


@pytest.mark.parametrize("body", damaged_bodies().values(), ids=damaged_bodies())
def test_a_damaged_npy_body_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=rf"cannot read the response \({len(body)} bytes of"):
        read(NumpyDeserializer(), body, NPY)


HARMLESS = [
    None,
    "é",
    1.5,
    2**80,
    1 + 2j,
    b"x",
    bytearray(b"y"),
    [1, {"a": (2,)}],
    {1},
    frozenset({2}),
    np.float32(0.5),
    np.int64(3),
    np.datetime64("2020-01-01"),
    dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    dt.date(2020, 1, 1),
    dt.timedelta(1),
    Decimal("1.10"),
]


def pickled(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def objects_of(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def test_arrays_of_plain_objects_are_read_by_default() -> None:
    found = read(NumpyDeserializer(), body_of(NumpySerializer(), objects_of(HARMLESS)), NPY)
    assert found.dtype == object
    assert found.tolist() == HARMLESS
    assert [type(each) for each in found] == [type(each) for each in HARMLESS]
    for table in (np.array([[1, None, "x"]]), np.array([[1, None], ["x", 2]]).T, np.array(None)):
        found = read(NumpyDeserializer(), pickled(table), NPY)
        assert (found.shape, found.tolist()) == (table.shape, table.tolist())
    nested = read(NumpyDeserializer(), body_of(NumpySerializer(), objects_of([np.ones(2), 1])), NPY)
    assert nested[0].tolist() == [1.0, 1.0]


def test_pickles_of_numpy_1_are_read() -> None:
    body = body_of(NumpySerializer(), objects_of([1, np.float32(0.5)]))
    old = body.replace(b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray")
    assert old != body
    # The frame's length counts the bytes that were taken out.
    start = old.index(b"\x80\x04\x95") + 3
    length = int.from_bytes(old[start : start + 8], "little") - (len(body) - len(old))
    old = old[:start] + length.to_bytes(8, "little") + old[start + 8 :]
    assert read(NumpyDeserializer(), old, NPY).tolist() == [1, 0.5]


class _Touch:
    """Touches a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickles_that_call_something_are_refused(tmp_path: Path) -> None:
    body = body_of(NumpySerializer(), objects_of([_Touch(tmp_path / "touched")]))
    with pytest.raises(ValueError, match=r"pickle that asks for .*could run any code") as error:
        read(NumpyDeserializer(), body, NPY)
    assert "BytesDeserializer" in str(error.value)
    assert not (tmp_path / "touched").exists()
    np.load(io.BytesIO(body), allow_pickle=True)
    assert (tmp_path / "touched").exists(), "the body does no harm, so the test shows nothing"


def test_a_dotted_name_reaches_nothing_behind_a_harmless_module() -> None:
    file = io.BytesIO()
    header = {"descr": "|O", "fortran_order": False, "shape": (1,)}
    np.lib.format.write_array_header_1_0(file, header)
    # Protocol 4, two short texts, and the instruction that looks up the second in the first.
    file.write(b"\x80\x04\x8c\x08datetime\x8c\x08sys.exit\x93.")
    with pytest.raises(ValueError, match=r"asks for datetime\.sys\.exit"):
        read(NumpyDeserializer(), file.getvalue(), NPY)


def test_without_pickle_no_array_of_objects_is_read() -> None:
    body = body_of(NumpySerializer(), [1, None])
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        read(NumpyDeserializer(allow_pickle=False), body, NPY)


def test_npz() -> None:
    file = io.BytesIO()
    np.savez(file, a=np.arange(3), b=np.array([1, None], dtype=object))
    found = read(NumpyDeserializer(), file.getvalue(), "application/x-npz")
    assert found.files == ["a", "b"]
    assert found["a"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        found["b"]


@pytest.mark.parametrize(
    "body", [b"", b"PK\x03\x04 cut", pickle.dumps([1])], ids=["empty", "cut", "pickle"]
)
def test_a_damaged_npz_body_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expected arrays of numbers, saved by numpy\.savez"):
        read(NumpyDeserializer(), body, "application/x-npz")


# Arrays as JSON and CSV.


@pytest.mark.parametrize(
    ("text", "dtype", "expected"),
    [
        ("[[1, 2], [3, 4]]", None, np.array([[1, 2], [3, 4]])),
        ("[1, 2]", "float32", np.array([1, 2], dtype=np.float32)),
        ("[1.5, null]", float, np.array([1.5, np.nan])),
        ("3", None, np.array(3)),
        ("[]", None, np.empty(0)),
        ('["é"]', None, np.array(["é"])),
    ],
)
def test_arrays_from_json(text: str, dtype: Any, expected: np.ndarray) -> None:
    found = read(NumpyDeserializer(dtype), text.encode(), "application/json; charset=utf-8")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize(
    ("text", "dtype"), [("[[1], [2, 3]]", None), ('{"a": 1}', float), ('["x"]', int)]
)
def test_json_that_makes_no_such_array_is_refused(text: str, dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"bytes of 'application/json'\).*Expected lists"):
        read(NumpyDeserializer(dtype), text.encode(), "application/json")


def test_text_that_is_not_json_is_refused_as_such() -> None:
    with pytest.raises(json.JSONDecodeError, match=r"^NumpyDeserializer got text that is"):
        read(NumpyDeserializer(), b"oops", "application/json")


@pytest.mark.parametrize(
    ("text", "dtype", "expected"),
    [
        ("1,2\n3,4\n", None, np.array([[1, 2], [3, 4]])),
        ("1.5,2.0\r\n3.0,4e3", None, np.array([[1.5, 2.0], [3.0, 4000.0]])),
        ("1,2,3", None, np.array([1, 2, 3])),
        ("1\n2\n", None, np.array([1, 2])),
        ("7", None, np.array(7)),
        ("True,false", None, np.array([True, False])),
        ("nan,inf", None, np.array([np.nan, np.inf])),
        ("(1+2j),(0.5-1j)", None, np.array([1 + 2j, 0.5 - 1j])),
        ("a,bcd", None, np.array(["a", "bcd"])),
        ("9223372036854775808", None, np.array(2.0**63)),
        # What genfromtxt makes -1, False, a comment, or two cells of.
        ("1.0,\n,4.0", None, np.array([[1.0, np.nan], [np.nan, 4.0]])),
        ('a\n""\nb', None, np.array(["a", "", "b"])),
        ('"a,b","c#d"," e "', None, np.array(["a,b", "c#d", " e "])),
        ('"two\nlines",é', None, np.array(["two\nlines", "é"])),
        ("True,\nFalse,\n", None, np.array([(True, np.nan), (False, np.nan)], "?,f8")),
        ('True\n""', None, np.array(["True", ""])),
        ("1,2", "float32", np.array([1, 2], dtype=np.float32)),
        ("1,,3", float, np.array([1, np.nan, 3])),
        ("1,02", str, np.array(["1", "02"])),
        ("true,False", bool, np.array([True, False])),
        ("2020-01-01", "datetime64[D]", np.array("2020-01-01", dtype="datetime64[D]")),
        ("", None, np.empty(0)),
        ("\n", int, np.empty(0, dtype=int)),
    ],
)
def test_arrays_from_csv(text: str, dtype: Any, expected: np.ndarray) -> None:
    found = read(NumpyDeserializer(dtype), text.encode(), "Text/CSV; charset=utf-8")
    assert found.dtype == expected.dtype
    if expected.dtype.names is None:
        np.testing.assert_array_equal(found, expected, strict=True)
    else:
        assert repr(found) == repr(expected)


def test_columns_of_several_kinds_make_a_structured_array() -> None:
    found = read(NumpyDeserializer(), b"1,0.5,x\n2,1.5,yy\n", "text/csv")
    assert found.dtype == np.dtype([("f0", "i8"), ("f1", "f8"), ("f2", "U2")])
    assert found.tolist() == [(1, 0.5, "x"), (2, 1.5, "yy")]
    one = read(NumpyDeserializer(), b"1,x", "text/csv")
    assert (one.shape, one.item()) == ((), (1, "x"))
    one = read(NumpyDeserializer("i4,f4"), b"1,0.5", "text/csv")
    assert (one.dtype, one.shape, one.item()) == (np.dtype("i4,f4"), (), (1, 0.5))


@pytest.mark.parametrize(
    "text", ["1,2\n3\n", "x,1\ny,1,2", "1,2\n3,4\n5,6,7", "1,2,3\n4,5,6", "0.5,nan\n1,0.25"]
)
def test_plain_tables_are_read_as_genfromtxt_does(text: str) -> None:
    # Published behaviour: the SDK reads CSV with it.
    try:
        expected = np.genfromtxt(io.StringIO(text), delimiter=",", dtype=None, encoding="utf-8")
    except ValueError:
        with pytest.raises(ValueError, match="row 1 has"):
            read(NumpyDeserializer(), text.encode(), "text/csv")
        return
    found = read(NumpyDeserializer(), text.encode(), "text/csv")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("1.5", int), ("1,", int), ("x", float), ("300", np.uint8), ("maybe", bool), ("x,1", "i4,i4")],
)
def test_cells_that_do_not_fit_the_dtype_are_refused(text: str, dtype: Any) -> None:
    with pytest.raises(ValueError, match="Expected rows of one length that fit dtype"):
        read(NumpyDeserializer(dtype), text.encode(), "text/csv")


# pandas, scipy and torch.


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["é", "x,y"]})
    csv_body = frame.to_csv(index=False).encode()
    assert read(PandasDeserializer(), csv_body, "text/csv; header=present").equals(frame)
    assert read(PandasDeserializer(), frame.to_json().encode(), "application/json").equals(frame)
    with pytest.raises(ValueError, match="No columns"):
        read(PandasDeserializer(), b"", "text/csv")


def test_sparse_matrices_arrive_as_their_arrays() -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    body = body_of(SparseMatrixSerializer(), sparse.csr_matrix(np.eye(2) * 3))
    assert read(NumpyDeserializer(), body, "application/x-npz")["data"].tolist() == [3.0, 3.0]


def test_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    found = read(TorchTensorDeserializer(), body_of(TorchTensorSerializer(), tensor), "tensor/pt")
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, tensor)
    evil = io.BytesIO()
    torch.save([_Touch(tmp_path / "touched")], evil)
    whole = body_of(TorchTensorSerializer(), tensor)
    for body in (evil.getvalue(), b"", b"<html>", whole[:-100]):
        with pytest.raises(ValueError, match=r"Expected a tensor saved by torch\.save"):
            read(TorchTensorDeserializer(), body, "tensor/pt")
    assert not (tmp_path / "touched").exists()


# There and back.


@pytest.mark.parametrize(
    ("serializer", "deserializer", "data"),
    [
        (JSONSerializer(), JSONDeserializer(), {"a": [1, 2.5, None, "é\u2028"], "b": True}),
        (JSONLinesSerializer(), JSONLinesDeserializer(), [{"a": "é\n\u2028"}, [1], "x"]),
        (CSVSerializer(), CSVDeserializer(), [["é,", '"', "a\r\nb"], ["", " x ", "#"], [""]]),
        (StringSerializer(), StringDeserializer(), "é\r\n€"),
    ],
)
def test_round_trips(serializer: Any, deserializer: BaseDeserializer, data: Any) -> None:
    assert read(deserializer, body_of(serializer, data), serializer.CONTENT_TYPE) == data


@pytest.mark.parametrize("serializer", [NumpySerializer(), JSONSerializer(), CSVSerializer()])
@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3) / 7, np.arange(4).reshape(2, 2).T, np.array([-1, 2**62])]
)
def test_arrays_survive_each_format(serializer: Any, array: np.ndarray) -> None:
    found = read(NumpyDeserializer(), body_of(serializer, array), serializer.CONTENT_TYPE)
    np.testing.assert_array_equal(found, array, strict=True)
