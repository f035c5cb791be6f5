# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Model parallel training; the framework-neutral part.

Importing this package imports no framework. What is decided here, before anything is done, is pure
and tested by table: `config` (the user's parameters), `topology` (which rank holds what),
`partition` (which module goes where) and `schedules` (who does what when).

`__version__` is 1.15 or later, the version of the original that scripts ask for.
Source: modelparallel specification, section 0.
"""

from smdistributed._common.version import __version__ as _package_version

__all__ = ["__version__"]

__version__ = f"1.15.0+open.{_package_version}"
