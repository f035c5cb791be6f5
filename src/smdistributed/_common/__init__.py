# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What every room above may use: errors, environment contract, discovery, log format.

Standard library only, and no import here: each module is small, take the one you need.
"""
