# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A training script as they are written for GPUs: it refuses to run without CUDA.

It calls what single-file scripts of 2020-2024 call, in their order: the check, the device, AMP,
pinned batches, DDP with `device_ids`, events for the time of a step, a checkpoint. There is no
`if cuda` in it, and nothing in it knows of the CPU. Prints one line of JSON.
"""

import contextlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (imported for its effect)

if not torch.cuda.is_available():
    sys.exit("this script needs a GPU")

dist.init_process_group(backend="smddp")
local_rank = int(os.environ["LOCAL_RANK"])
if torch.cuda.device_count() <= local_rank:
    sys.exit("this script needs one GPU per process")
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
torch.manual_seed(1)
torch.cuda.manual_seed_all(1)
torch.backends.cudnn.benchmark = True
torch.cuda.reset_peak_memory_stats()

features = torch.linspace(-1, 1, 64).unsqueeze(1)
data = TensorDataset(features, 3 * features - 1)
sampler = DistributedSampler(data, shuffle=False)
loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2, pin_memory=True)

model = nn.Linear(1, 1).to(device)
model = DistributedDataParallel(model, device_ids=[local_rank], output_device=local_rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
copies = torch.cuda.Stream()
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

losses = []
start.record()
for epoch in range(8):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        with torch.cuda.stream(copies):
            inputs = inputs.cuda(non_blocking=True)
            targets = targets.to(device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        inputs.record_stream(torch.cuda.current_stream())
        with torch.cuda.amp.autocast():
            loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    mean = torch.tensor([loss.item()], device=device)
    dist.all_reduce(mean)
    losses.append(mean.item() / dist.get_world_size())
end.record()
torch.cuda.synchronize()
torch.cuda.empty_cache()

path = f"{sys.argv[1]}/rank{dist.get_rank()}.pt"
torch.save({"model": model.module.state_dict(), "rng": torch.cuda.get_rng_state()}, path)
saved = torch.load(path, map_location=f"cuda:{local_rank}")
torch.cuda.set_rng_state(saved["rng"])
# A write that is a single call keeps the line whole.
report = {
    "rank": dist.get_rank(),
    "losses": losses,
    "weight": saved["model"]["weight"].item(),
    "bias": saved["model"]["bias"].item(),
    "milliseconds": start.elapsed_time(end),
    "memory_bytes": torch.cuda.max_memory_allocated(device),
    "name": torch.cuda.get_device_name(device),
}
with contextlib.suppress(BrokenPipeError):
    sys.stdout.write(json.dumps(report) + "\n")
dist.barrier(device_ids=[local_rank])
dist.destroy_process_group()
