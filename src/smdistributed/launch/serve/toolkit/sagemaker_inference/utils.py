# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Small helpers that handlers import."""

__all__ = ["parse_accept"]


def parse_accept(accept: str) -> list[str]:
    """The types of a line `Accept`, without their parameters."""
    return [each.split(";")[0].strip() for each in (accept or "").split(",") if each.strip()]
