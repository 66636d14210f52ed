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


#: No step of the trainer: its count begins at 0.
NONE = -1


class LightningCallback(Callback):
    """Reports one step per optimizer step; micro-batches of accumulated gradients are parts of it. Validation and checkpoints are outside.

    A validation in the middle of accumulated gradients drops the whole step: its second half alone would be a step that is too short.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begun_at = NONE
        self._dropped_at = NONE

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self._begun_at == NONE and trainer.global_step != self._dropped_at:
            linkwise_step.begin()
            self._begun_at = trainer.global_step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self._begun_at != NONE and trainer.global_step != self._begun_at:
            linkwise_step.end()
            self._begun_at = NONE

    def on_validation_start(self, *_: Any) -> None:
        # Until the trainer has finished the step of this number, no other begins. The next begin drops the open one.
        if self._begun_at != NONE:
            self._begun_at, self._dropped_at = NONE, self._begun_at

    def on_exception(self, *_: Any) -> None:
        self._begun_at = self._dropped_at = NONE

    def on_train_end(self, *_: Any) -> None:
        self._begun_at = self._dropped_at = NONE
