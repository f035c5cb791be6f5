# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What modules change beside what they return: their arguments, and their own attributes."""
