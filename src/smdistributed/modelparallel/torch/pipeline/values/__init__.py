# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Values on their way: promised, named, packed; and calls without their values (`signatures`)."""
