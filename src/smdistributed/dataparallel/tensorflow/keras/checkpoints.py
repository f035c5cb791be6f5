# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`BestModelCheckpoint`: a checkpoint callback that is told its path later.

Source: our choice: Horovod's name.
"""

from __future__ import annotations

from typing import Any

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = ["BestModel"]


class BestModel:
    """Keras's `ModelCheckpoint` that saves the best model only; to a path that is set afterwards.

        checkpoint = BestModelCheckpoint(monitor="val_loss")
        checkpoint.filepath = "best.keras"

    Args:
        monitor, verbose, save_weights_only, mode, save_freq: as for Keras's.

    Raises:
        SMDDPConfigInvalid: (a ValueError) when training begins: `filepath` has not been set.

    Source: our choice; see docs/tensorflow.md.
    """

    filepath: Any

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        parent: Any = super()
        parent.__init__(
            # Keras 3 wants one that ends like this.
            filepath="unset.weights.h5" if save_weights_only else "unset.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Requires a path."""
        if self.filepath is None:
            raise SMDDPConfigInvalid(
                "BestModelCheckpoint has no filepath; expected one before training begins. Set it:"
                " callback.filepath = 'best.keras'."
            )
        parent: Any = super()
        parent.on_train_begin(logs)
