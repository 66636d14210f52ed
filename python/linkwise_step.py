# SPDX-License-Identifier: Apache-2.0
"""Reports the begin and end of training steps to the linkwise plugin.

    import linkwise_step

    for batch in loader:
        with linkwise_step.step():
            loss = train(batch)
            total += loss.item()        # waits for the GPU: here the step ends

A step must end where the program waits for the GPU: at ``loss.item()``, ``torch.cuda.synchronize()``, or
``event.synchronize()`` on an event of this step. A host that runs up to three steps ahead of the GPU is allowed for.
Farther ahead, a step's time says nothing about its calls. A loop that reads its loss only now and then keeps one step
in flight like this:

    for batch in loader:
        with linkwise_step.step():
            train(batch)
            event = torch.cuda.Event()
            event.record()
            if before is not None:
                before.synchronize()    # the step before this one
            before = event

Report one step per optimizer step, with its micro-batches inside. Every step must make the same collective calls;
leave evaluation and checkpoints outside.

Steps belong to the process. A ``with step()`` inside a step is part of it: only the outermost one counts.
Without the plugin (NCCL_TUNER_PLUGIN does not name it, or it cannot be loaded) all functions do nothing.
"""

import contextlib
import ctypes
import os
import threading

_library = None
_looked = False
_lock = threading.Lock()
_open = 0


def library():
    """The plugin that NCCL loads, or None."""
    global _library, _looked
    if not _looked:
        _looked = True
        path = os.environ.get("NCCL_TUNER_PLUGIN", "")
        if path:
            try:
                found = ctypes.CDLL(path)
                found.linkwise_step_begin, found.linkwise_step_end  # AttributeError: another plugin
                _library = found
            except (OSError, AttributeError):
                _library = None
    return _library


def begin():
    """Begins a step. A second begin without an end restarts the step."""
    if library() is not None:
        _library.linkwise_step_begin()


def end():
    """Ends the step. An end without a begin has no effect."""
    if library() is not None:
        _library.linkwise_step_end()


@contextlib.contextmanager
def step():
    """A step as a context manager; an exception ends it, too. Overlapping steps, nested or in several threads, count as one."""
    global _open
    with _lock:
        _open += 1
        if _open == 1:
            begin()
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0:
                end()
