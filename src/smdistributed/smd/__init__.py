# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smd`: jobs from the command line. Needs the packages of the extra `launch`."""
