# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the stand-in as `horovod` where nobody else finds a `horovod`.

It is installed when an interpreter starts, so it imports next to nothing.

Source: our choice; see docs/horovod.md.
"""
