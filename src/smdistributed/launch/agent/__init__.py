# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The agent of one host: prepares it, runs the script's processes, and says how they ended.

It is told what to do by files in the job's directory, and tells by files: who has started it may be
gone. Standard library only.
"""
