# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A small rendezvous, for jobs that bring none of their own.

A communicator is made from rank, world size and a function `exchange(key, value)` that returns
every rank's value. Under torch its store provides that function; everywhere else this does, with
the standard library alone. It is made for the few kilobytes of a job's start and for up to a few
hundred ranks, not for data.
"""

from smdistributed.collectives.rendezvous.client import Rendezvous

__all__ = ["Rendezvous"]
