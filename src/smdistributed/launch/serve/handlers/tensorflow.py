# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models of TensorFlow: a SavedModel, and `handler`, or `input_handler` and `output_handler`.

The SavedModel runs in this process. Functions that post to `context.rest_uri`, as to TensorFlow
Serving, reach it by a listener of the worker's own.

Source: launch specification, section 10.5.
"""

from __future__ import annotations

import base64
import binascii
import csv
import http.server
import io
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from smdistributed.launch.serve.handlers.answers import InferenceError, made_answer
from smdistributed.launch.serve.handlers.bodies import CSV, JSON, main_type
from smdistributed.launch.serve.handlers.functions import import_program
from smdistributed.launch.serve.messages import Answer, Call

__all__ = ["Context", "TensorFlowHandlers"]

_JSON_LINES = ("application/jsonlines", "application/jsons")
_CUSTOM = "x-amzn-sagemaker-custom-attributes"
_MODEL = "model"
_MOST_TEXT = 1000
_WIDEST = 8


class Context(NamedTuple):
    """What a function may ask about the server and the call."""

    model_name: str
    model_version: str
    method: str
    rest_uri: str
    grpc_uri: str
    custom_attributes: str
    request_content_type: str
    accept_header: str
    content_length: int


class Response:
    """What the model has said, as `output_handler` gets it.

    Attributes:
        status_code: of the answer.
        content: its body.
        headers: its content type.
    """

    def __init__(self, status_code: int, content: bytes) -> None:
        self.status_code = status_code
        self.content = content
        self.headers = {"content-type": JSON}

    @property
    def text(self) -> str:
        """The body as text."""
        return self.content.decode("utf-8")

    def json(self) -> Any:
        """The body as a value."""
        return json.loads(self.content)


class TensorFlowHandlers:
    """Answers with one SavedModel.

    Args:
        model_dir: the model's folder; its code is below `code/`.

    Raises:
        ValueError: there is no SavedModel, or one of two functions alone.
    """

    def __init__(self, model_dir: Path) -> None:
        self._folder, self._version = _saved_model(model_dir)
        code = model_dir / "code"
        if (code / "lib").is_dir():
            sys.path.insert(0, str(code / "lib"))
        module = import_program(code, os.environ.get("SAGEMAKER_PROGRAM", ""))
        self._handler = getattr(module, "handler", None)
        self._before, self._after = _pair(module)
        self._model: Model | None = None
        self._rest_uri = ""

    def load(self) -> None:
        """Loads the model."""
        model = self._model = Model(self._folder)
        listener = _Listener(model)
        port = listener.server_address[1]
        self._rest_uri = f"http://127.0.0.1:{port}/v1/models/{_MODEL}:predict"
        threading.Thread(target=listener.serve_forever, daemon=True).start()

    def answer(self, call: Call) -> Answer:
        """Answers a call."""
        context = self._context(call)
        if self._handler is not None:
            said = self._handler(io.BytesIO(call.body), context)
            return _answer(said, "handler")
        if context.method != "predict":
            raise InferenceError(
                400, f"The method is {context.method}; expected predict, the only one here."
            )
        if self._before is None:
            processed: Any = _request_of(call)
        else:
            processed = self._before(io.BytesIO(call.body), context)
        response = self._ask(processed)
        if self._after is not None:
            return _answer(self._after(response, context), "output_handler")
        return Answer(response.status_code, JSON, response.content)

    def _ask(self, body: Any) -> Response:
        assert self._model is not None
        try:
            return Response(200, self._model.answer(body))
        except InferenceError as error:
            return Response(error.status_code, json.dumps({"error": str(error)}).encode())

    def _context(self, call: Call) -> Context:
        given = call.headers.get(_CUSTOM, "")
        named = dict(each.strip().partition("=")[::2] for each in given.split(","))
        return Context(
            model_name=named.get("tfs-model-name") or _MODEL,
            model_version=named.get("tfs-model-version") or self._version,
            method=named.get("tfs-method") or "predict",
            rest_uri=self._rest_uri,
            grpc_uri="",
            custom_attributes=given,
            request_content_type=call.content_type or JSON,
            accept_header=call.accept if call.accept not in ("", "*/*") else JSON,
            content_length=len(call.body),
        )


class Model:
    """A SavedModel that is asked as TensorFlow Serving is.

    Args:
        folder: of the SavedModel.
    """

    def __init__(self, folder: Path) -> None:
        self._loaded = tf.saved_model.load(str(folder))  # keeps its variables
        self._signatures: dict[str, Any] = dict(self._loaded.signatures)
        if not self._signatures:
            raise ValueError(
                f"the SavedModel in {folder} has no signatures; expected such as model.export() of"
                " Keras writes, or tf.saved_model.save(..., signatures=...)."
            )

    def answer(self, body: Any) -> bytes:
        """The answer to a request for a prediction, both in TensorFlow Serving's JSON.

        Raises:
            InferenceError: it is no such request, or the model does not take it.
        """
        request = _parsed(body)
        name = request.get("signature_name", "serving_default")
        if not isinstance(name, str) or name not in self._signatures:
            known = ", ".join(sorted(self._signatures))
            raise InferenceError(400, f"signature_name is {name!r}; expected one of: {known}.")
        signature = self._signatures[name]
        specs: dict[str, Any] = signature.structured_input_signature[1]
        is_by_row = "instances" in request
        if is_by_row == ("inputs" in request):
            raise InferenceError(400, 'The body has to have either "instances" or "inputs".')
        if is_by_row:
            values = _columns(request["instances"], specs)
        else:
            values = _named(request["inputs"], specs)
        tensors = {key: _tensor(key, values[key], spec) for key, spec in specs.items()}
        try:
            outputs = signature(**tensors)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            text = str(error).removeprefix("Graph execution error:").strip()
            raise InferenceError(
                400, f"The model does not take this: {text[:_MOST_TEXT]}"
            ) from None
        lists = {key: _plain(value.numpy()) for key, value in outputs.items()}
        if not is_by_row:
            only = next(iter(lists.values())) if len(lists) == 1 else lists
            return json.dumps({"outputs": only}).encode()
        return json.dumps({"predictions": _rows(lists)}).encode()


class _Listener(http.server.ThreadingHTTPServer):
    """Answers what functions of this worker post to `rest_uri`."""

    daemon_threads = True

    def __init__(self, model: Model) -> None:
        self.model = model
        super().__init__(("127.0.0.1", 0), _RestRequest)


class _RestRequest(http.server.BaseHTTPRequestHandler):
    server: _Listener

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        status, content = 200, b""
        if not self.path.endswith(":predict"):
            status, content = 400, json.dumps({"error": "expected a path with :predict"}).encode()
        else:
            try:
                content = self.server.model.answer(body)
            except InferenceError as error:
                status = error.status_code
                content = json.dumps({"error": str(error)}).encode()
        self.send_response(status)
        self.send_header("Content-Type", JSON)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its base's name
        """Nothing: the worker's log is the user's."""


def _saved_model(model_dir: Path) -> tuple[Path, str]:
    """The folder of the latest version, and the version."""
    found = {
        path.parent
        for path in model_dir.rglob("saved_model.pb")
        if path.parent.name.isdecimal() and "code" not in path.relative_to(model_dir).parts[:1]
    }
    if not found:
        there = [str(each.relative_to(model_dir)) for each in model_dir.rglob("saved_model.pb")]
        raise ValueError(
            "the model has no SavedModel in a folder whose name is a number"
            f" ({', '.join(there) or 'and none elsewhere'}); expected such as 1/saved_model.pb."
            ' Save it to os.path.join(model_dir, "1").'
        )
    folder = max(found, key=lambda each: int(each.name))
    return folder, folder.name


def _pair(module: ModuleType | None) -> tuple[Any, Any]:
    before = getattr(module, "input_handler", None)
    after = getattr(module, "output_handler", None)
    if (before is None) != (after is None) and not hasattr(module, "handler"):
        raise ValueError(
            "inference.py has one of input_handler and output_handler; expected both, or handler."
        )
    return before, after


def _request_of(call: Call) -> dict[str, Any]:
    """The request of TensorFlow Serving that a body stands for."""
    kind = main_type(call.content_type or JSON)
    try:
        text = call.body.decode("utf-8")
        if kind == JSON:
            return _of_json(json.loads(text))
        if kind in _JSON_LINES:
            lines = [line for line in text.splitlines() if line.strip()]
            return {"instances": [json.loads(line) for line in lines]}
        if kind == CSV:
            rows = [row for row in csv.reader(io.StringIO(text)) if row]
            return {"instances": [[_cell(each) for each in row] for row in rows]}
    except (ValueError, RecursionError) as error:
        raise InferenceError(400, f"The body is not the {kind} that it says: {error}") from None
    raise InferenceError(
        415,
        f"Content type {call.content_type} is not supported; expected one of {JSON},"
        f" {_JSON_LINES[0]}, {CSV}. Write an input_handler that knows it.",
    )


def _of_json(value: Any) -> dict[str, Any]:
    """Simplified JSON: a scalar, a dict or a list of scalars is one instance."""
    if isinstance(value, dict):
        is_request = "instances" in value or "inputs" in value
        return value if is_request else {"instances": [value]}
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        return {"instances": value}
    return {"instances": [value]}


def _cell(text: str) -> float | str:
    for number in (int, float):  # 1.0 is no value of an input of whole numbers
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _parsed(body: Any) -> dict[str, Any]:
    if isinstance(body, (str, bytes, bytearray)):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InferenceError(400, f"The body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise InferenceError(400, "The body is no JSON object; expected one with instances.")
    return body


def _columns(instances: Any, specs: Mapping[str, Any]) -> dict[str, Any]:
    """Values by input, of a list of instances."""
    if not isinstance(instances, list) or not instances:
        raise InferenceError(400, "instances is no list with something in it; expected one.")
    if all(isinstance(each, dict) and set(each) != {"b64"} for each in instances):
        for each in instances:
            _require_names(each, specs)
        return {key: [each[key] for each in instances] for key in specs}
    return _named(instances, specs)


def _named(values: Any, specs: Mapping[str, Any]) -> dict[str, Any]:
    """Values by input: a model with one input need not name it."""
    if isinstance(values, dict) and set(values) != {"b64"}:
        _require_names(values, specs)
        return values
    if len(specs) != 1:
        raise InferenceError(
            400, f"The model has the inputs {', '.join(sorted(specs))}; expected values by name."
        )
    return {next(iter(specs)): values}


def _require_names(given: Mapping[str, Any], specs: Mapping[str, Any]) -> None:
    if set(given) != set(specs):
        raise InferenceError(
            400,
            f"There are values for {', '.join(sorted(map(str, given))) or 'nothing'}; expected"
            f" them for the inputs of the model: {', '.join(sorted(specs))}.",
        )


def _tensor(name: str, values: Any, spec: Any) -> tf.Tensor:
    try:
        given = _without_base64(values) if spec.dtype == tf.string else values
        tensor = tf.constant(given, dtype=spec.dtype)
        if spec.dtype.is_integer and spec.dtype.size < _WIDEST:
            _require_range(tf.constant(given, dtype=tf.int64), spec.dtype)
        if not spec.shape.is_compatible_with(tensor.shape):
            raise ValueError(f"they have shape {tensor.shape}")
        return tensor
    except (ValueError, TypeError, binascii.Error) as error:
        raise InferenceError(
            400,
            f"The values of {name} are not what the model takes ({spec.dtype.name}, shape"
            f" {spec.shape}): {str(error).splitlines()[0]}",
        ) from None


def _require_range(values: tf.Tensor, dtype: Any) -> None:
    """TensorFlow makes 44 of 300 in uint8, without a word."""
    if bool(tf.reduce_any((values < dtype.min) | (values > dtype.max))):
        raise ValueError(f"one is not between {dtype.min} and {dtype.max}")


def _without_base64(values: Any) -> Any:
    if isinstance(values, list):
        return [_without_base64(each) for each in values]
    if isinstance(values, dict) and set(values) == {"b64"}:
        return base64.b64decode(values["b64"], validate=True)
    return values


def _plain(array: Any) -> Any:
    """What JSON takes; text that is no UTF-8 as TensorFlow Serving has it."""
    if isinstance(array, bytes):
        try:
            return array.decode("utf-8")
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(array).decode()}
    if isinstance(array, np.ndarray):
        return [_plain(each) for each in array] if array.dtype == object else array.tolist()
    return array.item() if isinstance(array, np.generic) else array


def _rows(lists: Mapping[str, Any]) -> Any:
    """Predictions by instance: values, or a dict if the model has several outputs."""
    if len(lists) == 1:
        return next(iter(lists.values()))
    counts = {key: len(each) if isinstance(each, list) else None for key, each in lists.items()}
    count, *others = set(counts.values())
    if count is None or others:
        found = (f"{'no list' if n is None else n} of {key}" for key, n in sorted(counts.items()))
        raise InferenceError(
            400,
            f"The model's outputs are not by instance: there are {', '.join(found)}; expected as"
            ' many of each. Send "inputs" in place of "instances".',
        )
    return [{key: each[row] for key, each in lists.items()} for row in range(count)]


def _answer(said: Any, name: str) -> Answer:
    if not isinstance(said, tuple) or len(said) != 2:
        raise TypeError(
            f"{name} has returned {type(said).__name__}; expected a tuple of the body and its"
            " content type."
        )
    return made_answer(name, *said)
