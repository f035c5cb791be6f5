# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a rank does next: activities on fibers, the most urgent first."""
