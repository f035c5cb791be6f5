# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`import smdistributed_sagemaker_alias` switches the alias on where no `.pth` file is read.

That is in folders of `PYTHONPATH`; in an environment the alias is on by itself.

Raises:
    ImportError: there is another `sagemaker`, which wins.
"""

import smdistributed_sagemaker_alias_finder as _finder

_others = _finder.real_sdk()
if _others is not None:
    raise ImportError(_finder._verdict(_others))
_finder.install()
