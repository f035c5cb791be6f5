# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What modules change beside what they return.

- Their arguments: `contents` walks through these on both ranks, `watch` compares on the rank that
  runs the module, `apply` makes the same changes on the rank that called it.
- Their own attributes: `attributes`.
"""
