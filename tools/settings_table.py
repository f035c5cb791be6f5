# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the table of settings into docs/environment.md, from the list that the package has.

python tools/settings_table.py
"""

from pathlib import Path

from smdistributed._common.variable_table import table

PAGE = Path(__file__).parents[1] / "docs" / "environment.md"
HEAD = "| Variable | Default | Meaning |"


def main() -> None:
    """Replaces the table, from its head to the next empty line."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEAD)
    _, _, after = rest.partition("\n\n")
    PAGE.write_text(f"{before}{table()}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
