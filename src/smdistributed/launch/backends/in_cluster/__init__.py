# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose own process runs in a cluster that shares no file with who has started them.

package     all that the job needs, as a folder that goes there
driver      the job's process there; it tells by its log what happens
follower    here: keeps what it tells in the job's directory
submission  which of several processes it follows, one after the other
cluster     what a follower asks of the cluster
"""
