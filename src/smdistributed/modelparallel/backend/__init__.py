# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A name of the original, under which training toolkits look for `exceptions`.

Source: modelparallel specification, section 0.
"""
