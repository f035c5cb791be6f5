# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Without a GPU: what scripts call around it, and a whole script that insists on one.

Source: dataparallel specification, section 4.6.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.conformance.dataparallel.cpu_shims.runs import (
    TEST_TIMEOUT_S,
    error_of,
    import_library,
    in_mode,
    needs_no_cuda,
    run_python,
)

FOLDER = Path(__file__).parent

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


def measure_time(rank: int, world_size: int) -> None:
    import_library()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(100).sum()
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    assert end.elapsed_time(start) == -start.elapsed_time(end)
    assert "not recorded" in error_of(
        lambda: start.elapsed_time(torch.cuda.Event(enable_timing=True))
    )
    assert "enable_timing=True" in error_of(lambda: start.elapsed_time(torch.cuda.Event()))
    stream = torch.cuda.Stream(priority=-1)
    with torch.cuda.stream(stream), torch.cuda.device(0):
        stream.wait_stream(torch.cuda.current_stream())
        stream.wait_event(stream.record_event())
    stream.synchronize()
    torch.cuda.synchronize(0)
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_max_memory_allocated()
    assert torch.cuda.max_memory_allocated() == 0
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())


@needs_no_cuda
@pytest.mark.filterwarnings("ignore")
def test_full_has_events_streams_and_their_like() -> None:
    in_mode("full", measure_time)


def use_amp(rank: int, world_size: int) -> None:
    import_library()
    model = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.weight.detach().clone()
    scaler = torch.cuda.amp.GradScaler()
    with torch.cuda.amp.autocast():
        output = model(torch.ones(1, 2).cuda())
    assert output.dtype == torch.float32
    scaler.scale(output.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before - 1)


@needs_no_cuda
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_amp_of_old_scripts_runs_in_float32(mode: str) -> None:
    in_mode(mode, use_amp)


@needs_no_cuda
def test_smddprun_cpu_runs_a_script_that_refuses_to_run_without_cuda(tmp_path: Path) -> None:
    # "so that scripts which raise without CUDA run too [...]. `smddprun --cpu` sets `full`."
    command = ["-m", "smdistributed.launch", "-np", "2"]
    script = [str(FOLDER / "gpu_only.py"), str(tmp_path)]
    refused = run_python([*command, *script])
    assert refused.returncode == 1
    assert "this script needs a GPU" in refused.stderr
    done = run_python([*command, "--cpu", *script])
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines()]
    first, second = sorted(reports, key=lambda report: report["rank"])
    assert first["losses"] == second["losses"]
    assert first["losses"][-1] < 0.1 * first["losses"][0]
    assert (first["weight"], first["bias"]) == (second["weight"], second["bias"])
    assert first["milliseconds"] > 0
    assert first["name"] == "CPU (SMDDP_CPU_SHIM=full)"
    assert done.stderr.count("device_ids=[0], output_device=0 left out") == 1
