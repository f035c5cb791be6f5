# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Other libraries' names for what this package does, so that their scripts run on it.

- `smdistributed.compat.horovod`: Horovod's.

Source: our choice; see docs/architecture.md.
"""
