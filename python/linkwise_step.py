# SPDX-License-Identifier: Apache-2.0
"""Tells the linkwise plugin where training steps begin and end.

    import linkwise_step

    for batch in loader:
        with linkwise_step.step():
            train(batch)

Without the plugin (NCCL_TUNER_PLUGIN does not name it, or it cannot be loaded) everything here does nothing.
"""

import contextlib
import ctypes
import os

_library = None
_looked = False


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
    """A step begins."""
    if library() is not None:
        _library.linkwise_step_begin()


def end():
    """The step ends."""
    if library() is not None:
        _library.linkwise_step_end()


@contextlib.contextmanager
def step():
    """A step, as a context; it also ends where the body raises."""
    begin()
    try:
        yield
    finally:
        end()
