# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A DeepSpeed script: the same training with ZeRO stages 0 to 3, each from the same weights.

    train_deepspeed.py FOLDER

Stage n leaves its record in FOLDER/stage<n>.
"""

import sys
from pathlib import Path

import deepspeed
import record
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (imported for its effect)


def train(stage: int, folder: Path) -> None:
    rank, num_processes = dist.get_rank(), dist.get_world_size()
    model = record.initial_net()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=record.LEARNING_RATE, momentum=record.MOMENTUM
    )
    share = record.JOINED_BATCH_SIZE // num_processes
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": share,
            "gradient_clipping": 0.0,  # DeepSpeed clips at 1.0 unless told otherwise
            "zero_optimization": {"stage": stage},
            # torch's SGD is not on its list; it is what the comparison needs.
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    data, _ = record.digits()
    losses = []
    for start in range(rank * share, len(data["labels"]), record.JOINED_BATCH_SIZE):
        batch = slice(start, start + share)
        loss = cross_entropy(engine(data["images"][batch]), data["labels"][batch])
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / num_processes)
    # With stage 3 each rank keeps a part of every weight; here all are gathered for reading.
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        state = {name: tensor.clone() for name, tensor in engine.module.state_dict().items()}
    folder.mkdir(exist_ok=True)
    record.write(folder, losses, state, stage=engine.zero_optimization_stage())
    engine.destroy()


def main() -> None:
    deepspeed.init_distributed(dist_backend="smddp")
    for stage in range(4):
        train(stage, Path(sys.argv[1]) / f"stage{stage}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
