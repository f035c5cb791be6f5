# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which data a channel means: decided here, and put where a script finds them by `launch.agent`.

objects     keys, prefixes, manifests, shares and orders; touches nothing
sources     what of this machine's files a channel of a request means
settings    the user's `config.toml`: where file systems are mounted
"""
