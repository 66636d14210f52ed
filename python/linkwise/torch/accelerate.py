# SPDX-License-Identifier: Apache-2.0
"""Steps of a loop that uses Accelerate."""

from typing import Any

from .marks import Auto, auto


def accelerate_steps(optimizer: Any) -> Auto:
    """Reports the steps of an optimizer that ``accelerator.prepare`` returned.

        optimizer = accelerator.prepare(optimizer)
        with accelerate_steps(optimizer):
            for batch in loader:
                with accelerator.accumulate(model):
                    ...
                    optimizer.step()

    Accelerate passes ``step()`` on only where gradients are synchronised, so accumulated batches are parts of one step.
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # AcceleratedOptimizer.optimizer
    if not hasattr(inner, "register_step_post_hook"):
        raise TypeError(f"{type(optimizer).__name__} is no optimizer of PyTorch or Accelerate")
    return auto(inner)
