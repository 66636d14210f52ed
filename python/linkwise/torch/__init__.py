# SPDX-License-Identifier: Apache-2.0
"""linkwise for PyTorch: step marks, callbacks, and the order of hosts at the rendezvous.

    from linkwise.torch import step
    for batch in loader:
        with step():
            train(batch)

``step``, ``begin`` and ``end`` report optimizer steps to the NCCL plugin, which then judges its arms by the time of a step. Without the
plugin (``linkwise run``) they do nothing. ``auto()`` reports every step of every optimizer without a change in the training loop.

``LightningCallback``, ``TransformersCallback`` and ``accelerate_steps`` do the same for these libraries; each is imported when it is used.

``torchrun --rdzv-backend linkwise``: see :mod:`linkwise.torch.rendezvous`.
"""

from typing import Any

from linkwise_step import begin, end, library, step

from .marks import auto

__all__ = [
    "LightningCallback",
    "TransformersCallback",
    "accelerate_steps",
    "auto",
    "begin",
    "end",
    "library",
    "step",
]


def __getattr__(name: str) -> Any:
    if name == "LightningCallback":
        from .lightning import LightningCallback

        return LightningCallback
    if name == "TransformersCallback":
        from .transformers import TransformersCallback

        return TransformersCallback
    if name == "accelerate_steps":
        from .accelerate import accelerate_steps

        return accelerate_steps
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
