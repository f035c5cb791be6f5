# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Lists, dicts, dataclasses and other objects that hold tensors: taken apart and rebuilt."""
