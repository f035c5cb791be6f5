# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The modules of a model: which of them, and of their parameters, are on this rank.

`assignment` notes in modules which partition they are in, `placement` says what is here. `buffers`
deals with what modules hold, `wrapping` and `original_forwards` with modules around modules.
"""
