# SPDX-License-Identifier: Apache-2.0
"""The exception of linkwise."""


class Error(Exception):
    """A request that linkwise did not answer.

    ``str(error)`` is the message and, behind a semicolon, the remedy, unless the message ends with it.

    Attributes:
        code: stable word for programs, such as ``"no_model"`` or ``"gpu_held"``.
        kind: ``"malformed"`` (correct the request), ``"impossible"`` (not in the present state), ``"busy"`` (send the same request
            again), ``"broken"`` (a file or the machine failed).
        message: what was found, and where.
        remedy: what to do.
    """

    def __init__(self, message: str, code: str = "internal", kind: str = "broken", remedy: str = "") -> None:
        super().__init__(message, code, kind, remedy)
        self.message = message
        self.code = code
        self.kind = kind
        self.remedy = remedy

    def __str__(self) -> str:
        said = not self.remedy or self.message.endswith(self.remedy)
        return self.message if said else f"{self.message}; {self.remedy}"
