# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One job is the same job on every backend (launch specification, section 11).

Equal are what describes it, but for times and addresses, the files in its archives, and its
metrics. This machine is what the others are compared with.
"""

from __future__ import annotations

import datetime as dt
import tarfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import create_job
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary
from tests.conformance.backends.test_backends import BACKENDS, ended, job_of, lines_of, made
from tests.packages import require

OTHERS = [name for name in BACKENDS if name != "local"]

# Two hosts, which exchange what each has seen of its data.
SCRIPT = """
import hashlib, json, os, stat, sys
import torch, torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp

dist.init_process_group("smddp")
rank, count = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    x = torch.arange(32.0).reshape(8, 4)[rank::count] / 32 + step / 10
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    print(f"step {step} loss {total.item() / count:.9f}", flush=True)

def seen(folder):
    found = []
    for above, names, files in sorted(os.walk(folder, followlinks=True)):
        inside = os.path.relpath(above, folder)
        found += [f"{inside}/"]
        for name in sorted(files):
            path = os.path.join(above, name)
            mode = stat.S_IMODE(os.stat(path).st_mode)
            digest = hashlib.sha256(open(path, "rb").read()).hexdigest()
            found.append(f"{inside}/{name} {mode:o} {digest}")
    return found

host = os.environ["SM_CURRENT_HOST"]
told = {
    name: value
    for name, value in os.environ.items()
    if name.startswith("SM_") and not name.startswith(("SM_NUM_CPUS", "SM_RESOURCE_CONFIG"))
    and name not in ("SM_TRAINING_ENV", "SM_NETWORK_INTERFACE_NAME", "SM_CURRENT_HOST")
}
output = {name: seen(os.environ[f"SM_CHANNEL_{name}"]) for name in ("TRAIN", "EMPTY")}
with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], f"{host}.json"), "w") as file:
    json.dump({"told": told, "arguments": sys.argv[1:], **output}, file, indent=1, sort_keys=True)
if rank == 0:
    model_dir = os.environ["SM_MODEL_DIR"]
    state = {name: each.tolist() for name, each in model.module.state_dict().items()}
    with open(os.path.join(model_dir, "weights.json"), "w") as file:
        json.dump(state, file, sort_keys=True)
    os.symlink(os.path.join(model_dir, "weights.json"), os.path.join(model_dir, "link.json"))
    os.mkdir(os.path.join(model_dir, "sub"), 0o750)
    os.symlink("/opt/ml/input/config/hyperparameters.json", os.path.join(model_dir, "sub/settings"))
dist.destroy_process_group()
"""


def data_of(home: Home) -> dict[str, Any]:
    """Channels: files in folders, links, modes, and one without a file."""
    train = home.buckets / "b" / "train"
    (train / "a" / "empty").mkdir(parents=True)
    for number in range(20):
        (train / "a" / f"{number}").write_bytes(bytes([number]) * (number << 12))
    (train / "a" / "3").chmod(0o600)
    (home.buckets / "b" / "elsewhere").write_text("elsewhere")
    (train / "link").symlink_to(home.buckets / "b" / "elsewhere")
    (home.buckets / "b" / "empty").mkdir()

    def channel(name: str) -> dict[str, Any]:
        source = {
            "S3DataType": "S3Prefix",
            "S3Uri": f"s3://b/{name}/",
            "S3DataDistributionType": "FullyReplicated",
        }
        return {"ChannelName": name, "DataSource": {"S3DataSource": source}}

    return {"InputDataConfig": [channel("train"), channel("empty")]}


def outcome(name: str, home: Home) -> dict[str, Any]:
    backend = made(home)
    more = data_of(home)
    first = job_of(home, textwrap.dedent(SCRIPT), hosts=2, name="first")
    request = {**first.read().request, **more, "TrainingJobName": "job"}
    first.lock.release()
    now = dt.datetime.now(dt.UTC)
    record = JobRecord.new(request, first.read().local, "arn:aws:x", now)
    job = create_job(home, ["job"], lambda _: record)
    backend.submit(job)
    record = ended(backend, job)
    assert record.secondary is Secondary.COMPLETED, (record, lines_of(backend, job)[-20:])
    output = home.buckets / "b/out/job/output"
    points = sorted(line for line in lines_of(backend, job) if "loss" in line)
    return {
        "described": _without_times(record.describe(now)),
        "states": [each.secondary for each in record.transitions],
        "model": files_in(output / "model.tar.gz"),
        "output": files_in(output / "output.tar.gz"),
        "loss": points,
        "metrics": [(metric, value) for metric, value, _ in record.metrics],
    }


def _without_times(described: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in described.items()
        if name not in ("Local", "SecondaryStatusTransitions", "FinalMetricDataList")
        and not isinstance(value, dt.datetime)
        and "Seconds" not in name
    }


def files_in(archive: Path) -> dict[str, tuple[Any, ...]]:
    found = {}
    with tarfile.open(archive) as tar:
        for each in tar.getmembers():
            file = tar.extractfile(each)
            content = file.read() if file is not None else b""
            lines = content.decode().splitlines()
            found[each.name] = (each.type, each.mode & 0o777, lines)
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = Home(tmp_path_factory.mktemp("here") / "home")
    home.make()
    return outcome("local", home)


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.slow) if each == "ray" else each for each in OTHERS],
)
def test_a_job_is_the_same_everywhere(name, here, request, tmp_path) -> None:
    require("torch")
    home = Home(tmp_path / "home")
    home.make()
    settings = textwrap.dedent(BACKENDS[name](request))
    home.config.write_text(f'default_backend = "{name}"\n{settings}')
    there = outcome(name, home)
    for what in here:
        assert there[what] == here[what], what  # `-vv` shows the lines
