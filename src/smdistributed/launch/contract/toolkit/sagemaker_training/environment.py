# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The job, as a script asks for it.

Source: launch specification, section 7.2.
"""

from smdistributed.launch.contract.reader import Environment

__all__ = ["Environment"]
