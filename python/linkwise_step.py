# SPDX-License-Identifier: Apache-2.0
"""Tells the linkwise plugin where training steps begin and end.

    import linkwise_step

    for batch in loader:
        with linkwise_step.step():
            train(batch)

Steps are those of the process. Inside of a step a further ``with step()`` is a part of it: only the outermost counts.
Without the plugin (NCCL_TUNER_PLUGIN does not name it, or it cannot be loaded) everything here does nothing.
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
    """A step begins. A second begin without an end starts it anew."""
    if library() is not None:
        _library.linkwise_step_begin()


def end():
    """The step ends. An end without a begin is nothing."""
    if library() is not None:
        _library.linkwise_step_end()


@contextlib.contextmanager
def step():
    """A step, as a context; it also ends where the body raises. Steps that overlap, nested or of several threads, are one."""
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
