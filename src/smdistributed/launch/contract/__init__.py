# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a training script finds in its container: files, directories and variables.

Standard library only: agents run on hosts that have nothing else.
Source: launch specification, sections 4.1 and 7.
"""
