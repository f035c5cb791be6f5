# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""smddp through ``torch.distributed``: what a training script gets."""

from adapters.torch_calls import TorchAdapter


class SmddpTorchAdapter(TorchAdapter):
    backend = "smddp"

    def start(self) -> str:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  (registers the backend)

        return super().start()
