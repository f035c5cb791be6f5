# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests, as each serializer of the specification makes them."""

from __future__ import annotations

import inspect
import io
import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine_speed import scaled

from smdistributed.sagemaker import serializers
from smdistributed.sagemaker.serializers import (
    BaseSerializer,
    CSVSerializer,
    DataSerializer,
    IdentitySerializer,
    JSONLinesSerializer,
    JSONSerializer,
    LibSVMSerializer,
    NumpySerializer,
    SimpleBaseSerializer,
    SparseMatrixSerializer,
    StringSerializer,
    TorchTensorSerializer,
)

# Source: launch specification, section 10.2.
CONTENT_TYPES: dict[Callable[..., Any], str] = {
    IdentitySerializer: "application/octet-stream",
    JSONSerializer: "application/json",
    NumpySerializer: "application/x-npy",
    CSVSerializer: "text/csv",
    JSONLinesSerializer: "application/jsonlines",
    StringSerializer: "text/plain",
    SparseMatrixSerializer: "application/x-npz",
    LibSVMSerializer: "text/libsvm",
    TorchTensorSerializer: "tensor/pt",
    DataSerializer: "file-path/raw-bytes",
}
PASSING_ON = [each for each in CONTENT_TYPES if each is not IdentitySerializer]


def loaded_npy(body: bytes) -> Any:
    return np.load(io.BytesIO(body), allow_pickle=False)


# Of all serializers.


@pytest.mark.parametrize(("make", "content_type"), CONTENT_TYPES.items())
def test_each_serializer_has_the_published_content_type_and_takes_another(
    make: Callable[..., Any], content_type: str
) -> None:
    serializer = make()
    assert isinstance(serializer, SimpleBaseSerializer)
    assert serializer.CONTENT_TYPE == serializer.content_type == content_type
    serializer.content_type = "a/b"
    assert serializer.CONTENT_TYPE == "a/b"
    assert make(content_type="c/d").CONTENT_TYPE == "c/d"


def test_the_names_are_the_ten_and_two_base_classes() -> None:
    names = {str(make.__name__) for make in CONTENT_TYPES}
    assert set(serializers.__all__) == names | {"BaseSerializer", "SimpleBaseSerializer"}
    assert len(serializers.__all__) == 12


def test_dtype_comes_before_the_content_type() -> None:
    assert list(inspect.signature(NumpySerializer).parameters) == ["dtype", "content_type"]


@pytest.mark.parametrize("make", CONTENT_TYPES)
def test_a_content_type_that_is_no_string_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"content_type is 5; expected a string"):
        make(content_type=5)


@pytest.mark.parametrize("make", PASSING_ON)
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, io.BytesIO])
def test_finished_bodies_are_sent_as_they_are(
    make: Callable[..., Any], wrap: Callable[[bytes], Any]
) -> None:
    body = make().serialize(wrap(b"\x00\xff,\n"))
    assert body == b"\x00\xff,\n"
    assert type(body) is bytes


def test_a_file_stays_open_and_a_text_file_gives_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("1,é\n", encoding="utf-8")
    with path.open(encoding="utf-8") as file:
        assert CSVSerializer().serialize(file) == "1,é\n"
        assert not file.closed


def test_the_base_classes_cannot_be_used_but_derived_from() -> None:
    for base in (BaseSerializer, SimpleBaseSerializer):
        with pytest.raises(TypeError, match="abstract"):
            base()  # type: ignore[abstract]

    class Own(BaseSerializer):
        CONTENT_TYPE = "own/type"  # the way that the SDK's pages show

        def serialize(self, data: Any) -> Any:
            return data * 2

    class Simple(SimpleBaseSerializer):
        def serialize(self, data: Any) -> Any:
            return data * 3

    assert (Own().CONTENT_TYPE, Own().serialize("a")) == ("own/type", "aa")
    assert (Simple().CONTENT_TYPE, Simple().serialize("a")) == ("application/json", "aaa")


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (StringSerializer, 5),
        (LibSVMSerializer, [1, 2]),
        (DataSerializer, 5),
        (CSVSerializer, {"a": 1}),
        (CSVSerializer, None),
        (JSONLinesSerializer, {"a": 1}),
        (JSONLinesSerializer, 5),
        (JSONLinesSerializer, np.array(5)),
        (NumpySerializer, {"a": 1}),
        (NumpySerializer, (i for i in range(3))),
        (NumpySerializer, None),
        (TorchTensorSerializer, [1.0]),
    ],
)
def test_data_of_another_kind_is_refused_with_what_is_expected(
    make: Callable[..., Any], data: Any
) -> None:
    with pytest.raises(ValueError, match="Unable to handle input format: <class") as raised:
        make().serialize(data)
    assert f"{type(data)}. {make.__name__} expects " in str(raised.value)


# Packages.

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Without(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numpy", "pandas", "scipy", "torch"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
from smdistributed.sagemaker import deserializers as d, serializers as s
import io, json

texts = {}
for package, act in {
    "numpy": lambda: s.NumpySerializer().serialize([1]),
    "scipy": lambda: s.SparseMatrixSerializer().serialize([1]),
    "torch": lambda: s.TorchTensorSerializer().serialize([1]),
    "numpy ": lambda: d.NumpyDeserializer().deserialize(io.BytesIO(b""), "text/csv"),
    "pandas": lambda: d.PandasDeserializer().deserialize(io.BytesIO(b""), "text/csv"),
    "torch ": lambda: d.TorchTensorDeserializer().deserialize(io.BytesIO(b""), "tensor/pt"),
}.items():
    try:
        act()
    except ModuleNotFoundError as error:
        texts[package] = str(error)
works = [
    s.CSVSerializer().serialize([[1, "a"], [2, "b"]]),
    s.JSONSerializer().serialize({"a": [1]}),
    d.CSVDeserializer().deserialize(io.BytesIO(b"1,a"), "text/csv"),
]
print(json.dumps([texts, works]))
"""


def test_without_any_package_modules_import_and_errors_say_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=scaled(60)
    )
    assert done.returncode == 0, done.stderr
    texts, works = json.loads(done.stdout)
    assert works == ["1,a\n2,b", '{"a": [1]}', [["1", "a"]]]
    assert set(texts) == {"numpy", "numpy ", "scipy", "torch", "torch ", "pandas"}
    for package, text in texts.items():
        assert text.endswith(f"Install it: pip install {package.strip()}")
        assert "erializer cannot import " in text


# Identity, text and files.


def test_identity_returns_the_very_object() -> None:
    for data in (object(), io.BytesIO(b"x"), bytearray(b"x"), None):
        assert IdentitySerializer().serialize(data) is data


def test_text_is_sent_as_utf_8() -> None:
    assert StringSerializer().serialize("é€😀") == "é€😀".encode()
    assert StringSerializer().serialize("") == b""


def test_libsvm_text_is_sent_as_it_is() -> None:
    assert LibSVMSerializer().serialize("1 1:0.5 3:2\n0 2:1\n") == "1 1:0.5 3:2\n0 2:1\n"


def test_files_are_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"\x89\x00\n")
    assert DataSerializer().serialize(path) == b"\x89\x00\n"
    assert DataSerializer().serialize(str(path)) == b"\x89\x00\n"
    for wrong in (tmp_path / "missing", tmp_path):
        with pytest.raises(ValueError, match=f"Could not open or read the file '{wrong}'"):
            DataSerializer().serialize(wrong)


# CSV.


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([1, 2.5, "a", None, True], "1,2.5,a,,True"),
        ((1, 2), "1,2"),
        (range(3), "0,1,2"),
        (5, "5"),
        (Decimal("1.10"), "1.10"),
        ([[1, 2], [3, 4]], "1,2\n3,4"),
        (((1, 2), (3, 4)), "1,2\n3,4"),
        ((row for row in [[1], [2]]), "1\n2"),
        ([[1], [2, 3]], "1\n2,3"),
        ("1,2\n3,4\n", "1,2\n3,4\n"),
        ("", ""),
        # Strings in the place of rows are lines.
        (["1,2", "3,4"], "1,2\n3,4"),
        ([np.str_("1,2"), b"3,\xc3\xa9", [5]], "1,2\n3,é\n5"),
        # One row all the same, if not every element can be a row.
        (["a", 1], "a,1"),
        ([["red", "blue"]], "red,blue"),
        # Quotes.
        (
            [["a,b", 'say "x"', "two\nlines", "cr\rcell"]],
            '"a,b","say ""x""","two\nlines","cr\rcell"',
        ),
        ([[""]], '""'),
        ([["é€"]], "é€"),
        # Arrays.
        (np.arange(6).reshape(2, 3), "0,1,2\n3,4,5"),
        (np.arange(8).reshape(2, 2, 2), "0,1,2,3\n4,5,6,7"),
        (np.arange(6).reshape(2, 3).T, "0,3\n1,4\n2,5"),
        (np.arange(6)[::-2], "5,3,1"),
        (np.array(7), "7"),
        (np.float64(0.5), "0.5"),
        (np.array([0.1], dtype=np.float32), "0.1"),
        (np.array([np.nan, np.inf, -np.inf]), "nan,inf,-inf"),
        (np.array([b"ab", b"c"]), "ab,c"),
        (np.array(["a", "b"]), "a,b"),
        (np.array([1, "x", None], dtype=object), "1,x,"),
        ([np.float32(0.1), np.int64(2)], "0.1,2"),
        ([np.array([1, 2]), [3, 4]], "1,2\n3,4"),
    ],
)
def test_csv(data: Any, text: str) -> None:
    assert CSVSerializer().serialize(data) == text


@pytest.mark.parametrize(
    "data", [[], (), [[]], [[1], []], np.empty(0), np.empty((0, 3)), np.empty((2, 0)), iter([])]
)
def test_csv_of_nothing_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"^Cannot serialize empty array\."):
        CSVSerializer().serialize(data)


@pytest.mark.parametrize("data", [[1, [2, 3]], [[[1], [2]]], [{"a": 1}], [[np.ones(2)]]])
def test_csv_of_deeper_nesting_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="in the place of one cell"):
        CSVSerializer().serialize(data)


# JSON.


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"a": 1, "b": None}, '{"a": 1, "b": null}'),
        ("é", '"\\u00e9"'),
        ("", '""'),
        (5, "5"),
        ([], "[]"),
        ((1, 2), "[1, 2]"),
        (np.arange(4).reshape(2, 2), "[[0, 1], [2, 3]]"),
        (np.arange(4).reshape(2, 2).T, "[[0, 2], [1, 3]]"),
        (np.array(1.5), "1.5"),
        (np.empty((0, 2)), "[]"),
        ([np.int8(1), np.float32(0.5), np.bool_(True), np.str_("x")], '[1, 0.5, true, "x"]'),
        ({"a": {"b": [np.ones(2), (np.array(3),)]}}, '{"a": {"b": [[1.0, 1.0], [3]]}}'),
        (np.array([{"k": np.int64(1)}], dtype=object), '[{"k": 1}]'),
        ([float("nan"), np.inf], "[NaN, Infinity]"),
    ],
)
def test_json(data: Any, text: str) -> None:
    assert JSONSerializer().serialize(data) == text


@pytest.mark.parametrize("data", [object(), {1, 2}, [b"x"], (i for i in range(2)), [1j]])
def test_what_json_does_not_have_is_refused(data: Any) -> None:
    with pytest.raises(TypeError, match="is not JSON serializable; expected dict, list"):
        JSONSerializer().serialize(data)


def test_json_that_holds_itself_is_refused() -> None:
    data: list[Any] = []
    data.append(data)
    with pytest.raises(ValueError, match="Circular"):
        JSONSerializer().serialize(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([{"a": 1}, [2], "x\ny"], '{"a": 1}\n[2]\n"x\\ny"'),
        (({"a": np.ones(1)}, np.int64(2)), '{"a": [1.0]}\n2'),
        ((row for row in ({"a": 1}, {"b": 2})), '{"a": 1}\n{"b": 2}'),
        (np.arange(4).reshape(2, 2), "[0, 1]\n[2, 3]"),
        ([], ""),
        ('{"a": 1}\n', '{"a": 1}\n'),
    ],
)
def test_json_lines(data: Any, text: str) -> None:
    assert JSONLinesSerializer().serialize(data) == text


# Arrays.


@pytest.mark.parametrize(
    "data",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.arange(12.0).reshape(3, 4)[::2, 1:],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(1.5),
        np.array([np.nan, np.inf]),
        np.array(["é", "abc"]),
        np.array([1 + 2j]),
        np.array([(1, 2.0)], dtype=[("é", "i4"), ("b", "f8")]),
    ],
)
def test_npy_keeps_shape_dtype_and_values(data: np.ndarray) -> None:
    array = loaded_npy(NumpySerializer().serialize(data))
    assert array.dtype == data.dtype
    assert array.shape == data.shape
    assert array.tobytes() == data.tobytes()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        ((1.5, 2), np.array([1.5, 2.0])),
        (3, np.array(3)),
        (np.float32(0.5), np.array(0.5, dtype=np.float32)),
        ("text", np.array("text")),
    ],
)
def test_npy_of_what_is_no_array(data: Any, expected: np.ndarray) -> None:
    array = loaded_npy(NumpySerializer().serialize(data))
    assert array.dtype == expected.dtype
    assert array.shape == expected.shape
    assert (array == expected).all()


@pytest.mark.parametrize("data", [[1, 2], np.array([1.0, 2.0]), ("1", "2")])
def test_npy_has_the_dtype_that_is_asked_for(data: Any) -> None:
    array = loaded_npy(NumpySerializer("float32").serialize(data))
    assert array.dtype == np.float32
    assert array.tolist() == [1.0, 2.0]


def test_npy_of_objects_is_pickled_as_numpy_does() -> None:
    body = NumpySerializer().serialize([[1, None], ["a", 2.5]])
    array = np.load(io.BytesIO(body), allow_pickle=True)
    assert array.tolist() == [[1, None], ["a", 2.5]]


@pytest.mark.parametrize("data", [[], (), [[]], np.empty((0, 3)), np.empty((2, 0))])
def test_npy_of_nothing_is_refused(data: Any) -> None:
    shape = np.shape(data)
    with pytest.raises(ValueError, match=r"^Cannot serialize empty array\. Its shape") as raised:
        NumpySerializer().serialize(data)
    assert str(shape) in str(raised.value)


def test_lists_that_make_no_array_are_refused() -> None:
    with pytest.raises(ValueError, match="inhomogeneous"):
        NumpySerializer().serialize([[1], [2, 3]])
    with pytest.raises(ValueError, match="cannot make a numpy array of <class 'list'>"):
        NumpySerializer(float).serialize([{}])


# pandas, scipy and torch.


def test_pandas_objects() -> None:
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pd.DataFrame({"read": [1, 2], "b": ["x,y", None], "c": [0.5, np.nan]})
    assert CSVSerializer().serialize(frame) == '1,"x,y",0.5\n2,,'
    assert CSVSerializer().serialize(pd.Series([1.5, 2.5], index=["a", "b"])) == "1.5,2.5"
    assert JSONSerializer().serialize({"a": pd.Series([1, 2])}) == '{"a": [1, 2]}'
    assert loaded_npy(NumpySerializer().serialize(frame[["read"]])).tolist() == [[1], [2]]
    with pytest.raises(ValueError, match=r"^Cannot serialize empty array\."):
        CSVSerializer().serialize(frame[:0])
    with pytest.raises(ValueError, match="Unable to handle input format"):
        JSONLinesSerializer().serialize(frame)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
def test_sparse_matrices(layout: str) -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    dense = np.array([[0.0, 1.5, 0.0], [2.5, 0.0, 0.0]])
    for make in (sparse.csr_matrix, sparse.csr_array):
        body = SparseMatrixSerializer().serialize(make(dense).asformat(layout))
        assert (sparse.load_npz(io.BytesIO(body)).toarray() == dense).all()


def test_sparse_and_dense_are_not_mixed_up() -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    matrix = sparse.csr_matrix(np.eye(2))
    for serializer, data in (
        (SparseMatrixSerializer(), np.eye(2)),
        (NumpySerializer(), matrix),
        (CSVSerializer(), matrix),
    ):
        with pytest.raises(ValueError, match="Unable to handle input format"):
            serializer.serialize(data)


def test_torch_tensors_are_sent_without_gradient_and_without_what_they_are_a_view_of() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    whole = torch.arange(100_000, dtype=torch.float32, requires_grad=True)
    body = TorchTensorSerializer().serialize(whole[10:12])
    assert len(body) < 10_000
    tensor = torch.load(io.BytesIO(body), weights_only=True)
    assert tensor.tolist() == [10.0, 11.0]
    assert not tensor.requires_grad
    for each in (torch.tensor(3), torch.empty(0), torch.ones(2, 3).T, torch.ones(1).expand(4)):
        tensor = torch.load(io.BytesIO(TorchTensorSerializer().serialize(each)), weights_only=True)
        assert tensor.dtype == each.dtype
        assert torch.equal(tensor, each)


def test_torch_tensors_in_other_formats() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.tensor([[0.1, 2.0]], requires_grad=True)
    assert CSVSerializer().serialize(tensor) == "0.1,2.0"
    assert CSVSerializer().serialize([torch.tensor(0.1), torch.tensor(2)]) == "0.1,2"
    array = loaded_npy(NumpySerializer().serialize(tensor))
    assert array.dtype == np.float32
    assert array.tolist() == tensor.tolist()
    low = torch.tensor([1.5, 2.0], dtype=torch.bfloat16)
    assert JSONSerializer().serialize({"a": low}) == '{"a": [1.5, 2.0]}'
    assert JSONLinesSerializer().serialize(low) == "1.5\n2.0"
    for serializer in (NumpySerializer(), CSVSerializer()):
        with pytest.raises(ValueError, match=r"bfloat16 with \.float\(\)"):
            serializer.serialize(low)
