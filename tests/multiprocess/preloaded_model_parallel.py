# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Import this to load what `smdistributed.modelparallel.torch` consists of, without its effects."""

from preloaded_rooms import load_rooms

load_rooms("smdistributed.modelparallel.torch")
