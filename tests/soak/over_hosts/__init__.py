# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Random collectives between test hosts, while one fault after the other happens to them.

    python -m tests.soak.over_hosts --minutes 30          # as root, see tests/multihost

Ranks are processes that live long. In each round they make process groups, two lanes each (threads
with groups of their own) work and check every result, and something happens: a cable is pulled, a
process is killed, strangers knock. Then every rank must have either right results or an error that
names the culprit, within a bound; and all go on together, in the processes that are still alive.
What they hold when they have left their groups must not grow.

`faults.py` has the faults and what is expected after each, `driver.py` the rounds, `rank.py` what
runs as a rank, `rank_process.py` the driver's end of one, `strangers.py` uninvited connections,
`report.py` what is printed.
"""
