# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs: what one is called, what was asked for, and what has become of it.

Standard library only, like the agents.
"""
