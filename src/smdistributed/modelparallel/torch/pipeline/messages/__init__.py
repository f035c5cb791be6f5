# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks of a pipeline tell each other: types, their bytes, and who gets them."""
