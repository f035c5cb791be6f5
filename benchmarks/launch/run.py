# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What jobs and endpoints cost beside what they wrap.

empty     `fit()` of a script that does nothing, beside the interpreter's own start
training  MNIST through `fit()` and under `smddprun`, in turn: milliseconds of a step
lines     ranks that print as fast as they can, through `fit()`: lines a second, complete, in order
jobs      `smd jobs --json` with 1,000 jobs that have ended
endpoint  200 clients with 20 requests each: requests a second, p50 and p95

python benchmarks/launch/run.py [--only NAME ...] [--rounds 11]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import io
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory, create_job
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary
from smdistributed.launch.storage import local_path
from smdistributed.sagemaker.pytorch import PyTorch, PyTorchModel, PyTorchPredictor
from smdistributed.sagemaker.session import Session

MNIST = Path(__file__).resolve().parents[2] / "examples" / "01_mnist"
NUM_STEPS = 300
NUM_RANKS, LINES_OF_A_RANK = 4, 50_000
NUM_JOBS = 1000
NUM_CLIENTS, REQUESTS_OF_A_CLIENT = 200, 20

PRINTS = f"""
import os
rank = os.environ["RANK"]
for number in range({LINES_OF_A_RANK}):
    print(f"rank {{rank}} line {{number}}")
"""

ECHOES = """
def model_fn(model_dir): return None
def predict_fn(data, model): return data + 1
"""


def spread(values: Sequence[float], unit: str) -> str:
    """Median, and the least and the greatest."""
    median = statistics.median(values)
    return f"{median:.3f} {unit} ({min(values):.3f} to {max(values):.3f})"


def estimator(folder: Path, home: Path, script: str, ranks: int | None = None) -> PyTorch:
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text(script)
    return PyTorch(
        entry_point="train.py",
        source_dir=str(source),
        image_uri="any/image:1",
        instance_count=1,
        instance_type="local",
        distribution=_mpi(ranks) if ranks else None,
        sagemaker_session=Session(home=Home(home)),
    )


def _mpi(ranks: int) -> dict[str, object]:
    return {"mpi": {"enabled": True, "processes_per_host": ranks}}


def empty(folder: Path, rounds: int) -> None:
    job = estimator(folder, folder / "home", "")
    fits, starts = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            job.fit(logs="None")
        fits.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", ""], check=True)
        starts.append(time.perf_counter() - begin)
    print(f"empty      fit() {spread(fits, 's')}; the interpreter alone {spread(starts, 's')}")


def training(folder: Path, rounds: int) -> None:
    ratios, ours, theirs = [], [], []
    for number in range(rounds):
        pair = {}
        for way in ("fit", "smddprun") if number % 2 == 0 else ("smddprun", "fit"):
            pair[way] = _through_fit(folder) if way == "fit" else _under_smddprun(folder)
        ours.append(pair["fit"])
        theirs.append(pair["smddprun"])
        ratios.append(pair["smddprun"] / pair["fit"])
    print(f"training   step by fit() {spread(ours, 'ms')}, by smddprun {spread(theirs, 'ms')};")
    print(f"           throughput of fit() / of smddprun {spread(ratios, '')}, {rounds} pairs")


def _through_fit(folder: Path) -> float:
    session = Session(home=Home(folder / "home"))
    job = PyTorch(
        entry_point="train.py",
        source_dir=str(MNIST),
        image_uri="any/image:1",
        instance_count=1,
        instance_type="local",
        hyperparameters={"max-steps": NUM_STEPS},
        distribution=_mpi(2),
        sagemaker_session=session,
    )
    job.fit(logs="None")
    assert job.latest_training_job is not None
    described = job.latest_training_job.describe()
    output = described["OutputDataConfig"]["S3OutputPath"].rstrip("/")
    uri = f"{output}/{described['TrainingJobName']}/output/output.tar.gz"
    with tarfile.open(local_path(uri, session.home)) as archive:
        file = archive.extractfile("result.json")
        assert file is not None
        return float(json.load(file)["step_ms"])


def _under_smddprun(folder: Path) -> float:
    result = folder / "result.json"
    smddprun = Path(sys.executable).with_name("smddprun")
    command = [str(smddprun), "-np", "2", sys.executable, str(MNIST / "train.py")]
    command += ["--max-steps", str(NUM_STEPS), "--result", str(result)]
    # As `fit()` sets it: the processes share the cores.
    environ = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2))}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
    return float(json.loads(result.read_text())["step_ms"])


def lines(folder: Path, rounds: int) -> None:
    job = estimator(folder, folder / "home", PRINTS, NUM_RANKS)
    times, is_right = [], True
    for _ in range(rounds):
        printed = io.StringIO()
        begin = time.perf_counter()
        with contextlib.redirect_stdout(printed):
            job.fit()
        times.append(time.perf_counter() - begin)
        seen: dict[str, list[int]] = {}
        for rank, number in re.findall(r"rank (\d+) line (\d+)$", printed.getvalue(), re.MULTILINE):
            seen.setdefault(rank, []).append(int(number))
        is_right &= seen == {str(rank): list(range(LINES_OF_A_RANK)) for rank in range(NUM_RANKS)}
    count = NUM_RANKS * LINES_OF_A_RANK
    how = "complete and in order" if is_right else "NOT complete, or not in order"
    print(f"lines      {count:,} of {NUM_RANKS} ranks, fit() in all {spread(times, 's')}: {how}")


def jobs(folder: Path, rounds: int) -> None:
    home = Home(folder / "many")
    job = estimator(folder, folder / "home", "")
    job.fit(logs="None")
    assert job.latest_training_job is not None
    record = JobDirectory(folder / "home" / "jobs" / job.latest_training_job.name).read()
    for number in range(NUM_JOBS):

        def named(name: str) -> JobRecord:
            return dataclasses.replace(record, request={**record.request, "TrainingJobName": name})

        made = create_job(home, [f"job-{number}"], named)
        made.lock.release()
    assert record.secondary is Secondary.COMPLETED
    command = [sys.executable, "-m", "smdistributed.smd.main", "jobs", "--json"]
    environ = {**os.environ, "SMD_HOME": str(home.root)}
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        done = subprocess.run(command, check=True, env=environ, capture_output=True)
        times.append(time.perf_counter() - begin)
        assert len(json.loads(done.stdout)) == NUM_JOBS
    print(f"jobs       {NUM_JOBS:,} listed by `smd jobs --json` in {spread(times, 's')}")


def endpoint(folder: Path, rounds: int) -> None:
    session = Session(home=Home(folder / "home"))
    with tarfile.open(folder / "model.tar.gz", "w:gz"):
        pass
    (folder / "serve.py").write_text(ECHOES)
    model = PyTorchModel(
        f"file://{folder}/model.tar.gz",
        entry_point=str(folder / "serve.py"),
        sagemaker_session=session,
    )
    predictor: PyTorchPredictor = model.deploy(1, "local")
    rates, p50s, p95s = [], [], []
    try:
        _asked(predictor)  # a round to warm up
        for _ in range(rounds):
            begin = time.perf_counter()
            times = _asked(predictor)
            rates.append(len(times) / (time.perf_counter() - begin))
            p50s.append(times[len(times) // 2] * 1e3)
            p95s.append(times[len(times) * 95 // 100] * 1e3)
    finally:
        predictor.delete_endpoint()
    print(f"endpoint   {NUM_CLIENTS} clients x {REQUESTS_OF_A_CLIENT} requests of 4 kB, no error:")
    print(f"           {spread(rates, 'a second')}, p50 {spread(p50s, 'ms')},")
    print(f"           p95 {spread(p95s, 'ms')}; {rounds} rounds")


def _asked(predictor: PyTorchPredictor) -> list[float]:
    """Seconds of each request of all clients at once, sorted; each answer is checked."""
    data = np.arange(1000, dtype=np.float32)

    def client(_: int) -> list[float]:
        times = []
        for _ in range(REQUESTS_OF_A_CLIENT):
            begin = time.perf_counter()
            said = predictor.predict(data)
            times.append(time.perf_counter() - begin)
            assert np.array_equal(said, data + 1)
        return times

    with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as threads:
        return sorted(itertools.chain.from_iterable(threads.map(client, range(NUM_CLIENTS))))


PARTS = {each.__name__: each for each in (empty, training, lines, jobs, endpoint)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What jobs and endpoints cost.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    print(f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {os.cpu_count()} processors")
    for name in arguments.only:
        with tempfile.TemporaryDirectory(prefix="smd-bench-") as folder:
            PARTS[name](Path(folder), arguments.rounds)


if __name__ == "__main__":
    main()
