# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Says at the end of the run what failed, or did not run, before pytest (`tools/note.sh`).

`make test` runs the native tests first and ends with pytest's summary, which says "passed" of the
Python tests alone. Hundreds of lines lie between.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_VARIABLE = "SMD_TEST_NOTES"  # names a file with a note per line


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    path = Path(os.environ.get(_VARIABLE) or os.devnull)
    notes = path.read_text() if path.is_file() else ""
    if notes:
        terminalreporter.section("before the Python tests", red=True)
        terminalreporter.write_line(notes.rstrip(), red=True)
