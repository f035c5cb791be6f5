# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Handlers of PyTorch, a test for each row of section 10.4 of the launch specification."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from smdistributed.launch.serve.handlers.answers import answer_of
from smdistributed.launch.serve.handlers.pytorch import PyTorchHandlers
from smdistributed.launch.serve.messages import Answer, Call


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.delenv("SAGEMAKER_PROGRAM", raising=False)


def script(folder: Path, name: str = "model.pt") -> None:
    """A model that doubles, and says whether it trains."""

    class Doubles(torch.nn.Module):
        def forward(self, x):
            return torch.cat([2 * x, torch.full_like(x[..., :1], float(self.training))], -1)

    torch.jit.save(torch.jit.script(Doubles()), folder / name)


def handlers(folder: Path, code: str | None = None) -> PyTorchHandlers:
    if code is not None:
        (folder / "code").mkdir(exist_ok=True)
        (folder / "code" / "inference.py").write_text(textwrap.dedent(code))
    made = PyTorchHandlers(folder)
    made.load()
    return made


def ask(made, body: bytes = b"[1, 2]", kind: str = "application/json", accept: str = "") -> Answer:
    return answer_of(made, Call(kind, accept, {"x-a": "b"}, body))


FUNCTIONS = """
def model_fn(model_dir): return 10
def input_fn(body, kind): return repr(body)
def predict_fn(data, model): return f"{data} {model}"
def output_fn(said, accept): return f"{said} {accept}"
"""


# --- model_fn: "loads model.pt, else the only .pt or .pth, as TorchScript" ------------------------


@pytest.mark.parametrize("name", ["model.pt", "other.pt", "other.pth"])
def test_the_default_loads_the_only_script(tmp_path, name) -> None:
    script(tmp_path, name)
    assert json.loads(ask(handlers(tmp_path)).body) == [2, 4, 0]


def test_the_default_prefers_model_pt(tmp_path) -> None:
    (tmp_path / "a.pth").write_bytes(b"")
    script(tmp_path)
    assert ask(handlers(tmp_path)).status == 200


@pytest.mark.parametrize("names", [[], ["a.pt", "b.pth"]])
def test_the_default_needs_exactly_one_file(tmp_path, names) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    text = r"Exactly one \.pth or \.pt file is required for PyTorch models: \[.*\]"
    with pytest.raises(ValueError, match=text):
        handlers(tmp_path)


def test_the_default_says_that_weights_are_no_script(tmp_path) -> None:
    torch.save({"w": torch.zeros(1)}, tmp_path / "model.pth")
    with pytest.raises(ValueError, match=r"(?s)model\.pth could not be loaded.*model_fn"):
        handlers(tmp_path)


# --- input_fn: "JSON and CSV become a float tensor, NPY a tensor of the array's dtype" ------------

SHOWS_INPUT = """
def model_fn(model_dir): return None
def predict_fn(data, model): return data
def output_fn(said, accept): return f"{said.dtype} {said.tolist()}"
"""


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b"[[1, 2]]", "application/json", "torch.float32 [[1.0, 2.0]]"),
        (b"[true, false]", "application/json", "torch.float32 [1.0, 0.0]"),
        (b"1,2", "text/csv", "torch.float32 [1.0, 2.0]"),
    ],
)
def test_json_and_csv_become_floats(tmp_path, body, kind, expected) -> None:
    assert ask(handlers(tmp_path, SHOWS_INPUT), body, kind).body.decode() == expected


def test_npy_keeps_its_dtype(tmp_path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([[1], [2]], dtype=np.int32))
    answer = ask(handlers(tmp_path, SHOWS_INPUT), buffer.getvalue(), "application/x-npy")
    assert answer.body == b"torch.int32 [[1], [2]]"


def test_json_of_texts_is_the_senders_fault(tmp_path) -> None:
    answer = ask(handlers(tmp_path, SHOWS_INPUT), b'["a"]')
    assert answer.status == 400
    assert b"expected numbers" in answer.body


# --- "Bodies of application/json and text/csv reach input_fn as str, all others as bytes" ---------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("application/json", "'[1, 2]'"), ("text/csv", "'[1, 2]'"), ("x/y", "b'[1, 2]'")],
)
def test_what_reaches_input_fn(tmp_path, kind, expected) -> None:
    answer = ask(handlers(tmp_path, FUNCTIONS), kind=kind)
    assert answer.body.decode() == f"{expected} 10 application/json"


# --- predict_fn: "eval(), no gradients, calls the model" ------------------------------------------


def test_the_default_predicts_without_training_and_gradients(tmp_path) -> None:
    code = """
    import torch
    class Model(torch.nn.Linear):
        def forward(self, x):
            return torch.tensor([self.training, torch.is_grad_enabled()])
    def model_fn(model_dir): return Model(2, 1).train()
    """
    assert ask(handlers(tmp_path, code)).body == b"[false, false]"


# --- output_fn: "a tensor becomes a list, then JSON, NPY or CSV, as bytes" ------------------------


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/csv", "text/csv"),
        ("image/png, application/x-npy", "application/x-npy"),
    ],
)
def test_the_default_writes_what_is_accepted(tmp_path, accept, kind) -> None:
    script(tmp_path)
    answer = ask(handlers(tmp_path), accept=accept)
    assert (answer.status, answer.content_type) == (200, kind)


def test_the_default_refuses_other_types(tmp_path) -> None:
    script(tmp_path)
    answer = ask(handlers(tmp_path), accept="image/png")
    assert answer.status == 415
    assert b"image/png is not supported by this framework" in answer.body


def test_the_default_type_can_be_chosen(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", "text/csv")
    script(tmp_path)
    assert ask(handlers(tmp_path)).content_type == "text/csv"


# --- "A tuple that is returned is (data, content_type)" -------------------------------------------


@pytest.mark.parametrize(
    ("returned", "status", "kind"),
    [
        ('("x", "text/x")', 200, "text/x"),
        ('(b"x", "text/x")', 200, "text/x"),
        ('bytearray(b"x")', 200, "application/json"),
        ('("x", None)', 200, ""),
        ('("x", " text/x ")', 200, "text/x"),
        ("17", 500, "text/plain; charset=utf-8"),
        ('("x", 5)', 500, "text/plain; charset=utf-8"),
        ('("x", "text/x\\r\\nSet-Cookie: a=b")', 500, "text/plain; charset=utf-8"),
        ('("x", "text/\u4e2d")', 500, "text/plain; charset=utf-8"),
    ],
)
def test_what_output_fn_may_return(tmp_path, returned, status, kind) -> None:
    code = FUNCTIONS + f"def output_fn(said, accept): return {returned}\n"
    answer = ask(handlers(tmp_path, code))
    assert (answer.status, answer.content_type) == (status, kind)


# --- transform_fn: "stands for the last three" ----------------------------------------------------


def test_transform_fn_stands_for_three(tmp_path) -> None:
    code = """
    def model_fn(model_dir, context): return context.system_properties["batch_size"]
    def transform_fn(model, body, kind, accept, context):
        return f"{model} {body} {kind} {accept} {context.get_request_header(0, 'X-A')}", "text/x"
    """
    answer = ask(handlers(tmp_path, code))
    assert answer.body == b"1 [1, 2] application/json application/json b"


@pytest.mark.parametrize("other", ["input_fn", "predict_fn", "output_fn"])
def test_transform_fn_goes_with_none_of_the_three(tmp_path, other) -> None:
    code = f"def transform_fn(a, b, c, d): pass\ndef {other}(a, b): pass\n"
    text = "Cannot use transform_fn implementation in conjunction with input_fn, predict_fn"
    with pytest.raises(ValueError, match=text):
        handlers(tmp_path, code)


# --- "pre_model_fn(model_dir), model_warmup_fn(model_dir, model): before and after loading" -------


def test_functions_around_loading(tmp_path) -> None:
    code = FUNCTIONS + textwrap.dedent("""
    calls = []
    def pre_model_fn(model_dir): calls.append("before")
    def model_fn(model_dir): calls.append("load"); return calls
    def model_warmup_fn(model_dir, model): model.append("after")
    def predict_fn(data, model): return model
    """)
    answer = ask(handlers(tmp_path, code))
    assert answer.body.startswith(b"['before', 'load', 'after']")


# --- "Any other number is TypeError" --------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("def model_fn(): pass", "model_fn takes 0 arguments but 1 were given"),
        ("def input_fn(a, b, c, d): pass", "input_fn takes 4 arguments but 2 were given"),
        ("def predict_fn(a): pass", "predict_fn takes 1 arguments but 2 were given"),
        ("def output_fn(a): pass", "output_fn takes 1 arguments but 2 were given"),
        ("def transform_fn(a, b): pass", "transform_fn takes 2 arguments but 4 were given"),
    ],
)
def test_another_arity(tmp_path, code, text) -> None:
    with pytest.raises(TypeError, match=text):
        handlers(tmp_path, code)


# --- "An exception gives status 500 with its message and traceback" -------------------------------


def test_an_exception_is_answered(tmp_path, capfd) -> None:
    code = FUNCTIONS + "def predict_fn(data, model): raise KeyError('no such digit')\n"
    answer = ask(handlers(tmp_path, code))
    assert answer.status == 500
    assert b"no such digit" in answer.body
    assert b"inference.py" in answer.body
    assert "no such digit" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        ("SystemExit(3)", b"3\nTraceback"),
        ("KeyboardInterrupt", b"\nTraceback"),
        ("asyncio.CancelledError('late')", b"late\nTraceback"),
        ("Wordless", b"Wordless, whose text cannot be made: ZeroDivisionError\nTraceback"),
    ],
)
def test_nothing_that_is_raised_ends_the_worker(tmp_path, raised, text) -> None:
    code = FUNCTIONS + textwrap.dedent(f"""
    import asyncio
    class Wordless(Exception):
        def __str__(self): return 1 / 0
    def predict_fn(data, model): raise {raised}
    """)
    answer = ask(handlers(tmp_path, code))
    assert answer.status == 500
    assert answer.body.startswith(text)


def test_a_log_that_cannot_be_written_takes_no_answer_away(tmp_path, monkeypatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        made = handlers(tmp_path, FUNCTIONS + "def predict_fn(data, model): raise OSError('no')\n")
        assert ask(made).body.startswith(b"no\n")
        monkeypatch.setattr(sys, "stderr", None)
        assert ask(made).body.startswith(b"no\n")
        with contextlib.suppress(OSError):
            full.close()


# --- "BaseInferenceToolkitError(status_code, message, phrase) chooses the status" -----------------


@pytest.fixture
def stand_in(monkeypatch) -> None:
    from smdistributed.launch import serve

    monkeypatch.syspath_prepend(str(Path(serve.__file__).parent / "toolkit"))


@pytest.mark.parametrize(
    ("raised", "status", "text"),
    [
        ("BaseInferenceToolkitError(422, 'too long', 'Bad')", 422, b"Bad: too long"),
        ("GenericInferenceToolkitError(404, 'who')", 404, b"who: who"),
        ("UnsupportedFormatError('x/y')", 415, b"Content type x/y is not supported"),
    ],
)
def test_an_error_may_choose_its_status(tmp_path, stand_in, raised, status, text) -> None:
    code = FUNCTIONS + textwrap.dedent(f"""
    from sagemaker_inference.errors import *
    def predict_fn(data, model): raise {raised}
    """)
    answer = ask(handlers(tmp_path, code))
    assert answer.status == status
    assert answer.body.startswith(text)


# --- "Handlers import sagemaker_inference (content_types, decoder, encoder, errors)" --------------


def test_the_stand_in_decodes_and_encodes(tmp_path, stand_in) -> None:
    code = FUNCTIONS + textwrap.dedent("""
    from sagemaker_inference import content_types, decoder, encoder, errors, utils
    def input_fn(body, kind): return decoder.decode(body, kind)
    def predict_fn(data, model): return data * 2
    def output_fn(said, accept):
        (kind,) = utils.parse_accept(accept)
        assert kind == content_types.JSON
        return encoder.encode(said, kind)
    """)
    assert ask(handlers(tmp_path, code)).body == b"[2, 4]"
