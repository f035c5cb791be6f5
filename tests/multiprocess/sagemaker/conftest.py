# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of jobs share: a session, and a folder for sources."""

from tests.multiprocess.sagemaker.test_fit import session, source

__all__ = ["session", "source"]
