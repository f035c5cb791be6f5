# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m smdistributed.compat.horovod train.py`: runs a script, for which `horovod` is there.

Source: our choice; see docs/horovod.md.
"""
