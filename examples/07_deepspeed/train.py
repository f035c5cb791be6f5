# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small network on real digits with DeepSpeed's ZeRO, data-parallel, over smddp.

What it takes to name the backend is marked "smddp:".

    smddprun -x DS_ACCELERATOR=cpu -np 2 train.py
    smddprun -x DS_ACCELERATOR=cpu -np 2 train.py --stage 3
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm

# smddp: import the library; this registers the backend
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (imported for its effect)

sys.path.append(str(Path(__file__).resolve().parents[1] / "01_mnist"))
import digits

# DeepSpeed calls torch 2.13 by names of older versions, which torch mentions each time.
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


def main() -> None:
    parser = argparse.ArgumentParser(description="A small network on digits, by DeepSpeed.")
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), default=2, help="ZeRO stage")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--local_rank", type=int, help="passed by DeepSpeed's own launcher")
    args = parser.parse_args()

    deepspeed.utils.logger.setLevel(logging.WARNING)
    # smddp: name the backend before deepspeed.initialize, which would take Gloo
    deepspeed.init_distributed(dist_backend="smddp")

    torch.manual_seed(1)
    train, test = digits.split(digits.load())
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(28 * 28, 256), nn.ReLU(), nn.Linear(256, digits.NUM_CLASSES)
    )
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": args.batch_size,
            "zero_optimization": {"stage": args.stage},
            # torch's own AdamW: DeepSpeed's for CPUs is compiled when first used.
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    if dist.get_rank() == 0:
        print(
            f"ZeRO stage {engine.zero_optimization_stage()}, {dist.get_world_size()} processes, "
            f"backend {dist.get_backend()}",
            flush=True,
        )
    train_set = TensorDataset(torch.from_numpy(train.images), torch.from_numpy(train.labels))
    sampler = DistributedSampler(train_set, seed=1)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    test_images, test_labels = torch.from_numpy(test.images), torch.from_numpy(test.labels)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        bar = tqdm(
            train_loader, desc=f"epoch {epoch + 1}", mininterval=1, disable=dist.get_rank() != 0
        )
        for images, labels in bar:
            loss = cross_entropy(engine(images), labels)
            engine.backward(loss)
            engine.step()
        with torch.no_grad():
            right = (engine(test_images).argmax(dim=1) == test_labels).float().mean().item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: test accuracy {right:.1%}", flush=True)
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
