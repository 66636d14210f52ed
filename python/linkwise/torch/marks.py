# SPDX-License-Identifier: Apache-2.0
"""Steps without a change in the training loop."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Optional

import linkwise_step


class Marks:
    """Steps that begin where the one before ended: at the end of every optimizer step. The first step has no begin, and is not reported.

    A pause (evaluation, a checkpoint) must be announced with :meth:`pause`, else it counts as part of a step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False

    def stepped(self, *_: Any) -> None:
        """An optimizer has made a step."""
        with self._lock:
            if self._open:
                linkwise_step.end()
            linkwise_step.begin()
            self._open = True

    def pause(self) -> None:
        """What follows belongs to no step. The next step begins at the end of the next optimizer step."""
        with self._lock:
            self._open = False  # the next begin drops the step that has no end


class Auto:
    """A running :func:`auto`. A context manager: leaving it stops the reports."""

    def __init__(self, remove: Callable[[], None], marks: Marks) -> None:
        self._remove: Optional[Callable[[], None]] = remove
        self._marks = marks

    def pause(self) -> None:
        """What follows (evaluation, a checkpoint) belongs to no step."""
        self._marks.pause()

    def stop(self) -> None:
        """Reports nothing any more. A second call does nothing."""
        if self._remove is not None:
            self._remove()
            self._remove = None
            self._marks.pause()

    def __enter__(self) -> "Auto":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def auto(optimizer: Any = None) -> Auto:
    """Reports the steps of an optimizer; without one, of the first optimizer that makes a step (programs with several count once). When that
    one is gone, the next optimizer that makes a step takes its place.

    Uses PyTorch's own hooks (``register_optimizer_step_post_hook``); nothing is replaced. A step is the time from the end of one optimizer
    step to the end of the next one, as the host sees it.
    """
    marks = Marks()
    if optimizer is not None:
        handle = optimizer.register_step_post_hook(lambda *_: marks.stepped())
        return Auto(handle.remove, marks)
    from torch.optim.optimizer import register_optimizer_step_post_hook

    # Weak: an optimizer that the program has dropped must not live on here, and its address may become another's.
    counted: Optional["weakref.ReferenceType[Any]"] = None

    def hook(which: Any, *_: Any) -> None:
        nonlocal counted
        now = counted() if counted is not None else None
        if now is None:
            marks.pause()  # what was between the two optimizers is no step
            counted, now = weakref.ref(which), which
        if now is which:
            marks.stepped()

    handle = register_optimizer_step_post_hook(hook)
    return Auto(handle.remove, marks)
