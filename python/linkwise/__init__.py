# SPDX-License-Identifier: Apache-2.0
"""linkwise: choose GPUs, links and NCCL settings by measured bandwidth.

    >>> import linkwise
    >>> engine = linkwise.Engine(cluster="h100")
    >>> _ = engine.fit(kind="nccl", collective="all_reduce")    # NCCL's own model; readings make a better one
    >>> choice = engine.place(gpus=8, hosts_max=1)
    >>> choice.split, len(choice.gpus)
    ('8', 8)

The package computes from a cluster, an optional state (who holds which GPU), a store of readings and a model: the same four that the
command ``linkwise`` and the server use, in the same files. See :class:`Engine`.

Bandwidths are bus bandwidths in GB/s, 1e9 bytes per second. GPUs are names ``HOST:INDEX``; arguments also take lists such as
``n[0-3]:[0-7]``. Times are seconds since 1970.

``linkwise.torch`` has step marks, callbacks and the rendezvous for PyTorch. Importing this package imports neither PyTorch nor NumPy, and sets
no environment variable.
"""

from ._answers import (
    Allocation,
    Answer,
    Committed,
    Diagnosis,
    Explanation,
    Fit,
    Observation,
    Placement,
    Release,
    Scored,
    Status,
)
from ._engine import Engine, Plan
from ._errors import Error
from ._native import clusters, version

__version__ = version()

__all__ = [
    "Allocation",
    "Answer",
    "Committed",
    "Diagnosis",
    "Engine",
    "Error",
    "Explanation",
    "Fit",
    "Observation",
    "Placement",
    "Plan",
    "Release",
    "Scored",
    "Status",
    "clusters",
    "version",
]
