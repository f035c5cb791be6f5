# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One small module per measured library. A module is imported only by the process that needs it."""
