# SPDX-License-Identifier: Apache-2.0
"""The callback for Transformers: ``Trainer(..., callbacks=[TransformersCallback()])``."""

from typing import Any

import linkwise_step

try:
    from transformers import TrainerCallback
except ImportError as e:
    raise ImportError("TransformersCallback needs the package `transformers`: pip install transformers") from e


class TransformersCallback(TrainerCallback):
    """Reports one step per optimizer step; accumulated batches are parts of it. Evaluation and checkpoints are outside."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        linkwise_step.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        linkwise_step.end()
