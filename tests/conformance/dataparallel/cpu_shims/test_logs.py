# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Without a GPU: each shim says once what it does.

Source: dataparallel specification, section 4.6, "each shim logs once".
"""

from __future__ import annotations

import json
import logging

import pytest
import torch
from torch import nn

from tests.conformance.dataparallel.cpu_shims.runs import (
    ALL_MODES,
    TEST_TIMEOUT_S,
    import_library,
    in_mode,
    needs_no_cuda,
    run_python,
)

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


def say_text_index_once(rank: int, world_size: int) -> list[int]:
    """Counts, by level, what is said of three indexes given as text, where CUDA is."""
    torch.cuda.is_available = lambda: True
    torch.cuda.set_device = lambda device: None
    nn.Module.cuda = lambda self, device=None: self
    records = import_library()
    torch.cuda.set_device(0)
    assert not [record for record in records if "given as text" in record.getMessage()]
    for device in ("0", "1"):
        torch.cuda.set_device(device)
    nn.Linear(1, 1).cuda("2")
    levels = [record.levelno for record in records if "given as text" in record.getMessage()]
    return [levels.count(logging.INFO), levels.count(logging.DEBUG), len(levels)]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_string_case_logs_once_in_every_mode(mode: str) -> None:
    """Section 4.6, "each shim logs once": at INFO in rank 0, as a debug message elsewhere."""
    assert in_mode(mode, say_text_index_once, ranks=2) == [[1, 0, 1], [0, 1, 1]]


USE_ALL_OF_FULL = """
import json, logging
import torch

records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append([record.levelname, record.getMessage()])

logger = logging.getLogger("smdistributed")
logger.setLevel(logging.DEBUG)
logger.addHandler(Keep())
import smdistributed.dataparallel.torch.torch_smddp
records.clear()
torch.ones(1, device="cpu").to("cpu")
assert records == [], records
for _ in range(2):
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    torch.ones(1, device="cuda").to("cuda:0")
    torch.nn.Linear(1, 1).to(torch.device("cuda", 0))
    torch.cuda.Event()
    torch.cuda.Stream()
print(json.dumps(records))
"""


@needs_no_cuda
@pytest.mark.parametrize(("rank", "level"), [("0", "INFO"), ("1", "DEBUG")])
def test_each_shim_that_full_adds_logs_once(rank: str, level: str) -> None:
    """Section 4.6, "each shim logs once": the mapping, the questions, events and streams."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = run_python(["-c", USE_ALL_OF_FULL], environ={**place, "SMDDP_CPU_SHIM": "full"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        [level, "torch.cuda.is_available() answers True to this script's own files"],
        [level, "torch.cuda.device_count() answers 2 to this script's own files"],
        [level, "the device cuda is taken as the cpu: there is no CUDA here"],
        [level, "torch.cuda.Event measures the time of the CPU"],
        [level, "torch.cuda.Stream is the order of the program: there is no CUDA here"],
    ]
