# SPDX-License-Identifier: Apache-2.0
"""The callback for Lightning: ``Trainer(callbacks=[LightningCallback()])``."""

from typing import Any

import linkwise_step

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback  # the package's former name
    except ImportError as e:
        raise ImportError("LightningCallback needs the package `lightning`: pip install lightning") from e


class LightningCallback(Callback):
    """Reports one step per optimizer step; micro-batches of accumulated gradients are parts of it. Validation and checkpoints are outside."""

    def __init__(self) -> None:
        super().__init__()
        self._begun_at = -1

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self._begun_at < 0:
            linkwise_step.begin()
            self._begun_at = trainer.global_step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self._begun_at >= 0 and trainer.global_step != self._begun_at:
            linkwise_step.end()
            self._begun_at = -1

    def on_validation_start(self, trainer: Any, *_: Any) -> None:
        # In the middle of accumulated gradients: this step would contain the validation, and is dropped.
        self._begun_at = -1

    def on_exception(self, *_: Any) -> None:
        self._begun_at = -1

    def on_train_end(self, *_: Any) -> None:
        self._begun_at = -1
