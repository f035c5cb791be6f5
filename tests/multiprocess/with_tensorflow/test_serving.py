# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Serving of a SavedModel, a test for each row of section 10.5 of the launch specification.

In processes of their own: this one does not import TensorFlow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smdistributed.launch.home import Home
from smdistributed.sagemaker.exceptions import ModelError, UnexpectedStatusException
from smdistributed.sagemaker.predictor import Predictor
from smdistributed.sagemaker.serializers import CSVSerializer, IdentitySerializer
from smdistributed.sagemaker.session import Session
from smdistributed.sagemaker.tensorflow import TensorFlowModel, TensorFlowPredictor

MAKES_MODELS = """
import sys
import tensorflow as tf

class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32)])
    def sum(self, x):
        return tf.reduce_sum(x, 1)

    @tf.function(input_signature=[
        tf.TensorSpec([None], tf.float32, name="a"), tf.TensorSpec([None], tf.string, name="b")
    ])
    def two(self, a, b):
        return {"double": 2 * a, "text": tf.strings.join([b, "!"])}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.uint8, name="x")])
    def bytes(self, x):
        return x

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def mixed(self, x):
        return {"each": x, "total": tf.reduce_sum(x)}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64, name="x")])
    def whole(self, x):
        return x + 1

model = Model()
signatures = {each: getattr(model, each) for each in ("two", "bytes", "mixed", "whole")}
tf.saved_model.save(
    model, sys.argv[1], signatures={"serving_default": model.sum, **signatures}
)
"""

# Does as its custom attributes say.
FUNCTIONS = """
import json, urllib.request

def input_handler(data, context):
    told = context.custom_attributes
    body = data.read()
    if "post" in told:
        body = json.dumps({"instances": [[5, 6]]}).encode()
        body = urllib.request.urlopen(context.rest_uri, body).read()
        return json.dumps({"instances": [[1, json.loads(body)["predictions"][0]]]})
    if "fields" in told:
        raise RuntimeError(repr(context))
    return body

def output_handler(response, context):
    return response.content + str(response.status_code).encode(), "text/" + context.model_name
"""

HANDLER = """
def handler(data, context):
    body = data.read()
    return 5 if body == b"5" else body[::-1], context.accept_header
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    subprocess.run([sys.executable, "-c", MAKES_MODELS, folder / "3"], check=True)
    return folder


def model(folder: Path, saved: Path, version: str = "3", **changed: Any) -> TensorFlowModel:
    with tarfile.open(folder / "model.tar.gz", "w:gz") as tar:
        tar.add(saved / "3", version)
    session = Session(home=Home(folder / "home"))
    env = {"SAGEMAKER_MODEL_SERVER_WORKERS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return TensorFlowModel(
        f"file://{folder}/model.tar.gz", sagemaker_session=session, env=env, **changed
    )


@pytest.fixture(scope="module")
def predictor(saved: Path, tmp_path_factory) -> Iterator[TensorFlowPredictor]:
    found = model(tmp_path_factory.mktemp("plain"), saved).deploy(1, "local")
    yield found
    found.delete_endpoint()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"instances": [[1, 2], [3, 4]]}, {"predictions": [3, 7]}),
        ({"inputs": [[1, 2]]}, {"outputs": [3]}),
        ([1, 2], {"predictions": [3]}),  # a list of scalars is one instance
        ([[1, 2], [3, 4]], {"predictions": [3, 7]}),  # deeper ones are many
        (
            {
                "signature_name": "two",
                "instances": [{"a": 1, "b": "x"}, {"a": 2, "b": {"b64": "eQ=="}}],
            },
            {"predictions": [{"double": 2, "text": "x!"}, {"double": 4, "text": "y!"}]},
        ),
        (
            {"signature_name": "two", "inputs": {"a": [1], "b": ["x"]}},
            {"outputs": {"double": [2], "text": ["x!"]}},
        ),
        ({"signature_name": "bytes", "instances": [0, 255]}, {"predictions": [0, 255]}),
        (
            {"signature_name": "mixed", "inputs": [[1, 2]]},
            {"outputs": {"each": [[1, 2]], "total": 3}},
        ),
    ],
)
def test_json_of_a_prediction(predictor, body, expected) -> None:
    assert predictor.predict(body) == expected


def test_lines_of_json_and_csv(predictor: TensorFlowPredictor) -> None:
    name, session = predictor.endpoint_name, predictor.sagemaker_session
    lines = TensorFlowPredictor(name, session, IdentitySerializer("application/jsonlines"))
    assert lines.predict(b"[1, 2]\n[3, 4]\n") == {"predictions": [3, 7]}
    rows = TensorFlowPredictor(name, session, CSVSerializer())
    assert rows.predict([[1, 2], [3, 4]]) == {"predictions": [3, 7]}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "status 400: The body is not the application/json that it says"),
        (b'{"inputs": 1, "instances": 1}', "either"),
        (b"[1, 2, 3]", "status 400"),
        (b'["a", "b"]', "not what the model takes"),
        (b'{"instances": []}', "no list with something in it"),
        (
            b'{"instances": [[1, 2]], "signature_name": "x"}',
            "expected one of: bytes, mixed, serving_default, two, whole",
        ),
        (b'{"instances": [[1, 2]], "signature_name": []}', "expected one of: bytes"),
        (b'{"signature_name": "bytes", "instances": [300]}', "one is not between 0 and 255"),
        (b'{"signature_name": "bytes", "instances": [-1]}', "one is not between 0 and 255"),
        (
            b'{"signature_name": "mixed", "instances": [[1, 2]]}',
            "1 of each, no list of total; expected",
        ),
        (b'{"a": 1}', "expected them for the inputs of the model"),
        (b'{"signature_name": "two", "instances": [1]}', "has the inputs a, b"),
    ],
)
def test_a_body_that_is_wrong(predictor, body, text) -> None:
    asks = TensorFlowPredictor(
        predictor.endpoint_name,
        predictor.sagemaker_session,
        IdentitySerializer("application/json"),
    )
    with pytest.raises(ModelError, match=text) as caught:
        asks.predict(body)
    assert caught.value.status_code == 400
    assert predictor.predict([1, 2]) == {"predictions": [3]}


def test_other_methods_and_types_are_refused(predictor: TensorFlowPredictor) -> None:
    with pytest.raises(ModelError, match="status 400: The method is classify; expected predict"):
        predictor.classify([1, 2])
    asks = TensorFlowPredictor(
        predictor.endpoint_name, predictor.sagemaker_session, IdentitySerializer("a/b")
    )
    with pytest.raises(ModelError, match="status 415: Content type a/b is not supported"):
        asks.predict(b"")
    with pytest.raises(ValueError, match="the serializer makes a/b"):
        asks.regress(b"")


def test_csv_of_whole_numbers(saved: Path, tmp_path: Path) -> None:
    program = f"""
    from pathlib import Path
    import tensorflow as tf
    from smdistributed.launch.serve.handlers.tensorflow import Model, _request_of
    from smdistributed.launch.serve.messages import Call
    request = _request_of(Call("text/csv", "", {{}}, b"1,2\\n3,4"))
    model = Model(Path({str(saved / "3")!r}))
    print(model.answer({{**request, "signature_name": "whole"}}).decode())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"predictions": [[2, 3], [4, 5]]}


def test_two_handlers_and_rest_uri(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "inference.py").write_text(textwrap.dedent(FUNCTIONS))
    made = model(tmp_path, saved, entry_point=str(tmp_path / "inference.py"))
    predictor = made.deploy(1, "local")
    try:
        session, name = made.sagemaker_session, predictor.endpoint_name
        plain = Predictor(name, session)
        body = json.dumps({"instances": [[1, 2]]}).encode()
        assert plain.predict(body) == b'{"predictions": [3.0]}200'
        assert plain.predict(b"[1]").startswith(b'{"error": ')
        assert plain.predict(b"", custom_attributes="post") == b'{"predictions": [12.0]}200'
        asks = TensorFlowPredictor(name, session, model_name="mine", model_version=9)
        with pytest.raises(ModelError) as caught:
            asks.predict(1, {"CustomAttributes": "fields"})
    finally:
        predictor.delete_endpoint()
    assert "model_name='mine', model_version='9', method='predict'" in str(caught.value)
    assert "request_content_type='application/json'" in str(caught.value)


def test_one_handler_wins(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "inference.py").write_text(textwrap.dedent(FUNCTIONS) + HANDLER)
    made = model(tmp_path, saved, entry_point=str(tmp_path / "inference.py"))
    predictor = made.deploy(1, "local")
    try:
        plain = Predictor(predictor.endpoint_name, made.sagemaker_session)
        assert plain.predict(b"abc") == b"cba"
        with pytest.raises(ModelError, match="status 500: handler has returned int"):
            plain.predict(b"5")  # and not five bytes
    finally:
        predictor.delete_endpoint()


def test_a_version_is_a_number(saved: Path, tmp_path: Path) -> None:
    text = r"no SavedModel in a folder whose name is a number \(latest/saved_model\.pb\)"
    made = model(tmp_path, saved, version="latest")
    with pytest.raises(UnexpectedStatusException, match=text):
        made.deploy(1, "local")
    made.sagemaker_session.delete_endpoint(made.endpoint_name)
