# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The version of the package, in one place; the build reads it from here.

It must compare as 2.0 or later, since scripts that ask for "1.4.0 or later" take the backend path
(dataparallel specification, section 1, rule 5). Development releases count as *earlier* than the
release they lead to, so a suffix like `.dev0` may only follow a version above 2.0.
"""

__all__ = ["__version__"]

__version__ = "2.0.0"
