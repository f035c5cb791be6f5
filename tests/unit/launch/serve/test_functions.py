# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The user's functions, and how many arguments each gets (launch specification, section 10.4)."""

from __future__ import annotations

import sys

import pytest

from smdistributed.launch.serve.handlers.functions import Context, import_program, with_context


@pytest.mark.parametrize(
    ("function", "gets_context"),
    [
        (lambda a, b: (a, b), False),
        (lambda a, b, context: (a, b, context), True),
        (lambda a, b, context=None: (a, b, context), True),
        (lambda a, b=0: (a, b), False),
        (lambda a, *rest: (a, *rest), False),  # `*rest` counts as one
        (lambda a, b, *rest: (a, b, *rest), True),
    ],
)
def test_one_parameter_more_is_the_context(function, gets_context) -> None:
    expected = (1, 2, "context") if gets_context else (1, 2)
    assert with_context(function, 2)(1, 2, "context") == expected


def test_another_number_is_an_error() -> None:
    def input_fn(body, kind, context, more):
        raise AssertionError

    with pytest.raises(TypeError, match=r"input_fn takes 4 arguments but 2 were given\."):
        with_context(input_fn, 2)


def test_a_context_knows_the_server_and_the_header() -> None:
    context = Context({"model_dir": "/m", "gpu_id": None, "batch_size": 1}, {"x-a": "b"})
    assert context.system_properties["model_dir"] == "/m"
    assert context.get_request_header(0, "X-A") == "b"
    assert context.get_request_header(0, "X-B") is None
    assert context.get_all_request_header(0) == {"x-a": "b"}


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def test_the_default_program_need_not_be_there(tmp_path) -> None:
    assert import_program(tmp_path, "") is None
    (tmp_path / "inference.py").write_text("import beside\nvalue = beside.value")
    (tmp_path / "beside.py").write_text("value = 7")
    module = import_program(tmp_path, "")
    assert module is not None
    assert module.value == 7


def test_a_program_that_is_named_has_to_be_there(tmp_path) -> None:
    (tmp_path / "other.py").write_text("")
    with pytest.raises(FileNotFoundError, match=r"'serve\.py' is not in .*other\.py"):
        import_program(tmp_path, "serve.py")


def test_a_program_has_to_be_python(tmp_path) -> None:
    (tmp_path / "train.sh").write_text("")
    with pytest.raises(ValueError, match=r"'train\.sh' is no Python file"):
        import_program(tmp_path, "train.sh")


def test_a_program_may_lie_in_a_folder(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "serve.py").write_text("import beside\nvalue = beside.value")
    (tmp_path / "a" / "beside.py").write_text("value = 8")
    module = import_program(tmp_path, "a/serve.py")
    assert module is not None
    assert module.value == 8
