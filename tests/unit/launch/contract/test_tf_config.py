# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Section 7.3: what TensorFlow's workers are told."""

from __future__ import annotations

import json

from smdistributed.launch.contract.tf_config import tf_config


def test_each_worker_knows_all_and_itself() -> None:
    workers = ["127.0.0.1:20001", "127.0.0.1:20002"]
    assert json.loads(tf_config(workers, 1)) == {
        "cluster": {"worker": workers},
        "task": {"type": "worker", "index": 1},
    }
