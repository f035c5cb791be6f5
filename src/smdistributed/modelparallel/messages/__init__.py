# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between the ranks of a pipeline, whatever the framework: what moves them, and waiting.

Source: our choice.
"""
