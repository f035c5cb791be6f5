# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The reference stub of `_native` says what the compiled module offers, no more and no less.

nanobind writes a stub at every build; a copy of it lives in the source tree, where mypy and editors
read it. Comparing the two makes a change of the Python-visible signatures a visible decision.
"""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

REFERENCE = (
    Path(__file__).resolve().parents[2] / "src" / "smdistributed" / "collectives" / "_native.pyi"
)


def test_reference_stub_equals_the_one_this_build_generated() -> None:
    spec = importlib.util.find_spec("smdistributed.collectives._native")
    assert spec is not None
    assert spec.origin is not None
    generated = Path(spec.origin).with_name("_native.pyi")
    difference = difflib.unified_diff(
        REFERENCE.read_text(encoding="utf-8").splitlines(),
        generated.read_text(encoding="utf-8").splitlines(),
        fromfile=str(REFERENCE),
        tofile="generated from native/bindings",
        lineterm="",
    )
    lines = list(difference)
    assert not lines, "run `make stub` and review the change:\n" + "\n".join(lines)
