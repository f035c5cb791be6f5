# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What modules change beside what they return.

- Their arguments: `changed_arguments` tells the rule, and compares on the rank that runs the
  module; `apply` makes the same changes on the rank that called it; `argument_walk` is the way
  through the arguments that both ranks take.
- Their own attributes: `attributes`.
"""
