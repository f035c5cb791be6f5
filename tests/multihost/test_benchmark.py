# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/multihost measures what it says, on hosts of its own, and writes its page.

Times are not looked at.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from machine_speed import scaled

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "multihost"


@pytest.fixture(scope="module")
def layouts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("multihost_layouts", BENCHMARK / "layouts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("layout", "seconds"),
    [("2x1", 0.8), ("2x2", 0.8), ("4x1", 1.2)],  # 100 MB once, and one and a half times
)
def test_the_bound_depends_on_hosts_and_not_on_ranks(
    layouts: ModuleType, layout: str, seconds: float
) -> None:
    parsed = layouts.parse_layout(layout)
    assert str(parsed) == layout
    assert parsed.bound_seconds(100_000_000, 1.0) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["2", "1x2", "9x1", "2x0", "axb", ""])
def test_a_layout_that_is_none_is_refused(layouts: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match=r"expected 2 to 8 hosts .* Write for example 2x2"):
        layouts.parse_layout(text)


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARK / script), *arguments]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=scaled(100))
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


@pytest.mark.timeout(340)
def test_a_run_gives_verified_times_and_a_page(tmp_path: Path) -> None:
    result, steps = tmp_path / "run.json", tmp_path / "step.json"
    what = ["--layout", "2x1", "--gbit", "10", "--rounds", "1"]
    cases = ["--sizes", "4K,1M", "--libraries", "smddp-direct,gloo", "--turn-ms", "5"]
    run("run.py", *what, *cases, "--out", str(result))
    content = json.loads(result.read_text())
    found = {(r["size_bytes"], r["library"]): r for r in content["results"]}
    assert set(found) == {(s, n) for s in (4096, 1 << 20) for n in ("smddp-direct", "gloo")}
    for record in found.values():
        assert record["best_us"] <= record["median_us"] <= record["p90_us"]
        assert record["share"] == pytest.approx(record["bound_us"] / record["median_us"], abs=1e-3)
    assert str(tmp_path) not in result.read_text()  # paths tell where somebody works

    what += ["--steps", "1", "--compute-ms", "16"]
    run("step.py", *what, "--out", str(steps))
    run("report.py", "--run", str(result), "--step", str(steps), "--docs", str(tmp_path))
    page = (tmp_path / "multihost.md").read_text()
    assert "### 2x1 at 10 Gbit/s" in page
    assert "## Steps of DistributedDataParallel" in page
