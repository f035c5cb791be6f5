# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Names of content types."""

ANY = "*/*"
CSV = "text/csv"
JSON = "application/json"
NPY = "application/x-npy"
OCTET_STREAM = "application/octet-stream"
UTF8_TYPES = [JSON, CSV]
