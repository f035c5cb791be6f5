# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How far a step is on this rank, and what can be foreseen of the rest."""
