#!/usr/bin/env bash
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/install_clusters.sh
# Installs the programs of clusters that tests start on this machine: Slurm and an SSH server, of
# Debian's packages. Needs root and apt-get, unless they are there. No service is started: tests run
# daemons of their own, and nothing of this is wanted beside them.
set -euo pipefail

missing=()
for each in slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client sshd:openssh-server \
    ssh:openssh-client ip:iproute2 s3fs:s3fs; do
  PATH=$PATH:/usr/sbin:/sbin command -v "${each%%:*}" >/dev/null || missing+=("${each##*:}")
done
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi
if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
  echo "These packages of Debian are missing: ${missing[*]}. Install them; make env-clusters does it" \
    "as root, where there is apt-get." >&2
  exit 1
fi
echo "Installing ${missing[*]}, without starting a service"
policy=/usr/sbin/policy-rc.d
own=
if [[ ! -e $policy ]]; then
  own=1
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
fi
trap '[[ -z $own ]] || rm -f "$policy"' EXIT
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
log=$(mktemp)
# A fresh machine may have no package lists yet, or old ones.
install || { apt-get update -qq >>"$log" 2>&1 && install; } || { tail -n 20 "$log" >&2; exit 1; }
rm -f "$log"
