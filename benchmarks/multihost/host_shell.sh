#!/bin/sh
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# What ssh is to mpirun, for test hosts: host_shell.sh ADDRESS COMMAND... runs COMMAND on the host
# with that address. SMD_TEST_HOSTS lists "ADDRESS=PID" of those that hold the hosts' namespaces.
address=$1
shift
for entry in $SMD_TEST_HOSTS; do
  if [ "${entry%%=*}" = "$address" ]; then
    exec nsenter --target "${entry#*=}" --net --uts -- sh -c "$*"
  fi
done
echo "host_shell.sh: $address is no test host; SMD_TEST_HOSTS has: $SMD_TEST_HOSTS." \
  "Start mpirun from benchmarks/multihost/run.py." >&2
exit 255
