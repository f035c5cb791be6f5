# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Data and checkpoints in S3, hosts on other machines, one of which is lost while it trains."""

from __future__ import annotations

import datetime as dt
import io
import re
from pathlib import Path

import pytest
import torch
from machine_speed import scaled

from smdistributed.launch.jobs.states import Secondary
from tests.clusters.object_store import FaultyServer, ObjectStore
from tests.clusters.ssh import SshHosts, ssh_hosts, why_not
from tests.conformance.backends.ssh_jobs import SshJobs

NUM_STEPS = 16
SECRET = "SECRET-of-the-test"

TRAINS = f"""
    import glob, os, time
    import torch
    import torch.distributed as dist
    import smdistributed.dataparallel.torch.torch_smddp
    dist.init_process_group("smddp")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = os.environ["SM_CHANNEL_TRAIN"]
    pieces = [torch.load(os.path.join(data, name)) for name in sorted(os.listdir(data))]
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if known := sorted(glob.glob("/opt/ml/checkpoints/*.pt")):
        state = torch.load(known[-1])
        first = state["step"] + 1
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    print("begins at", first, "with", len(pieces), "pieces", flush=True)
    for step in range(first, {NUM_STEPS}):
        piece = pieces[step % len(pieces)]
        mine = piece[rank::world]
        loss = torch.nn.functional.mse_loss(model(mine), mine.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {{step}} loss {{total.item() / world:.7f}}", flush=True)
            state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}
            torch.save({{"step": step, **state}}, "/opt/ml/checkpoints/new")
            os.rename("/opt/ml/checkpoints/new", f"/opt/ml/checkpoints/{{step:02}}.pt")
        time.sleep(0.4)
        dist.barrier()
"""


def losses_of_one_process(pieces: list[torch.Tensor]) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for step in range(NUM_STEPS):
        piece = pieces[step % len(pieces)]
        loss = torch.nn.functional.mse_loss(model(piece), piece.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def give_credentials(hosts: SshHosts) -> None:
    """Where boto3 looks for them on each machine, in its own home directory."""
    text = f"[default]\naws_access_key_id = mine\naws_secret_access_key = {SECRET}\n"
    for name in hosts.names:
        hosts.run(name, f"umask 077; mkdir -p ~/.aws; printf '{text}' > ~/.aws/credentials")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["power_off", "silence"])
def test_the_loss_goes_on_where_a_lost_host_has_left_it(
    how: str, object_store: ObjectStore, tmp_path: Path
) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    torch.manual_seed(1)
    pieces = [torch.rand(8, 4) for _ in range(5)]
    bucket = object_store.bucket()
    for number, piece in enumerate(pieces):
        file = io.BytesIO()
        torch.save(piece, file)
        object_store.put(bucket, {f"train/{number}": file.getvalue()})
    with ssh_hosts(3) as hosts, FaultyServer(object_store.url, hosts.address) as server:
        give_credentials(hosts)
        jobs = SshJobs(tmp_path, hosts, more=f'\n[s3]\nendpoint_url = "{server.url}"\n')
        source = {
            "S3DataType": "S3Prefix",
            "S3Uri": f"s3://{bucket}/train/",
            "S3DataDistributionType": "FullyReplicated",
        }
        job = jobs.started(
            TRAINS,
            InputDataConfig=[{"ChannelName": "train", "DataSource": {"S3DataSource": source}}],
            CheckpointConfig={"S3Uri": f"s3://{bucket}/run", "LocalPath": "/opt/ml/checkpoints"},
            RetryStrategy={"MaximumRetryAttempts": 1},
            HyperParameters={
                "sagemaker_program": '"train.py"',
                "sagemaker_submit_directory": '"s3://b/job.tar.gz"',
                "sagemaker_distributed_dataparallel_enabled": "true",
            },
        )
        jobs.wait(
            job,
            lambda _: any(key.startswith("run/05") for key in object_store.contents(bucket)),
            60,
        )
        lost_at = dt.datetime.now(dt.UTC)
        if how == "power_off":
            hosts.machines["host-1"].power_off()
        else:
            hosts.links["host-1"].silence()
        record = jobs.ended(job, 120)
        lines = jobs.lines(job)
        assert record.secondary is Secondary.COMPLETED, (record, lines[-20:])
        (lost,) = [each for each in record.transitions if each.secondary is Secondary.INTERRUPTED]
        assert (lost.start - lost_at).total_seconds() < scaled(20)
        machines = [each["machine"] for each in job.events() if each["event"] == "host"]
        assert machines == ["host-0", "host-1", "host-0", "host-2"]
        text = "\n".join(lines)
        begun = sorted(map(int, re.findall(r"begins at (\d+) with 5 pieces", text)))
        assert begun[:2] == [0, 0]
        assert begun[2:] == [begun[2]] * 2
        assert begun[2] > 5, "it goes on"
        # Each step has one loss, or the same one twice, and they are those of one process.
        curve: dict[int, float] = {}
        for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", text):
            assert float(loss) == pytest.approx(curve.setdefault(int(step), float(loss)), abs=1e-6)
        expected = losses_of_one_process(pieces)
        assert [curve[step] for step in range(NUM_STEPS)] == pytest.approx(expected, abs=1e-5)
        described = record.describe(dt.datetime.now(dt.UTC))
        states = [each["Status"] for each in described["SecondaryStatusTransitions"]]
        assert states.count("Starting") == 2
        assert states.count("Training") == 2
        kept = [key for key in object_store.contents(bucket) if key.endswith(".pt")]
        assert kept == [f"run/{step:02}.pt" for step in range(NUM_STEPS)]
        for file in job.path.rglob("*"):
            if file.is_file():
                assert SECRET.encode() not in file.read_bytes(), file
        others = hosts.names if how == "silence" else ["host-0", "host-2"]
        jobs.require_nothing_left(others, seconds=30)
