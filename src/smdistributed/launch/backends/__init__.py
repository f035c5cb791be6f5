# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where jobs run. A backend has five verbs; it never schedules."""
