# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`Framework` under the path that samples import it from; the SDK has no such module.

Source: launch specification, section 1.
"""

from smdistributed.sagemaker.estimator import Framework

__all__ = ["Framework"]
