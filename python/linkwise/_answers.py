# SPDX-License-Identifier: Apache-2.0
"""The types of answers. Each is a frozen view of the JSON that the command, the server and this package have in common."""

from __future__ import annotations

import copy
import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Type, TypeVar

T = TypeVar("T", bound="Answer")


@dataclass(frozen=True)
class Answer:
    """An answer. ``to_dict()`` has every field of the JSON, also those of a newer linkwise that this class does not name."""

    _json: Mapping[str, Any] = field(repr=False, compare=False)

    def to_dict(self) -> Dict[str, Any]:
        """The answer as JSON's types. The caller may change the result."""
        return copy.deepcopy(dict(self._json))

    @classmethod
    def _of(cls: Type[T], json: Mapping[str, Any]) -> T:
        values: Dict[str, Any] = {}
        kinds = _kinds(cls)
        for f in dataclasses.fields(cls):
            if f.name != "_json" and f.name in json:
                values[f.name] = _typed(kinds[f.name], json[f.name])
        return cls(json, **values)


_KINDS: Dict[type, Dict[str, Any]] = {}


def _kinds(cls: type) -> Dict[str, Any]:
    if cls not in _KINDS:
        _KINDS[cls] = typing.get_type_hints(cls)
    return _KINDS[cls]


def _typed(kind: Any, value: Any) -> Any:
    """The value, with dictionaries made into the answer that the annotation names."""
    if value is None:
        return None
    inner = getattr(kind, "__args__", ())
    if isinstance(value, list) and inner:
        return [_typed(inner[0], v) for v in value]
    for k in (kind, *inner):
        if isinstance(value, dict) and isinstance(k, type) and issubclass(k, Answer):
            return k._of(value)
    return value


def _brief(answer: Any) -> str:
    figures = f"{answer.predicted_busbw_gb_per_s:.1f} +- {answer.std_gb_per_s:.1f} GB/s"
    return f"{len(answer.gpus)} GPUs, split {answer.split!r}, {figures}"


@dataclass(frozen=True)
class Scored(Answer):
    """An allocation and its prediction."""

    split: str = ""
    gpus: List[str] = field(default_factory=list)
    predicted_busbw_gb_per_s: float = 0.0
    std_gb_per_s: float = 0.0
    score_gb_per_s: Optional[float] = None


@dataclass(frozen=True)
class Committed(Answer):
    """The job that holds the GPUs now."""

    job: str = ""
    repeated: bool = False
    attempts: int = 1


@dataclass(frozen=True, repr=False)
class Placement(Answer):
    """The GPUs chosen for a job.

    ``gpus`` are names ``HOST:INDEX`` by host; ``rank_order`` has them in the order of ranks; ``split`` is GPUs per host (``"4+4"``).
    Bandwidths are bus bandwidths in GB/s (1e9 bytes per second).
    """

    gpus: List[str] = field(default_factory=list)
    rank_order: List[str] = field(default_factory=list)
    split: str = ""
    predicted_busbw_gb_per_s: float = 0.0
    std_gb_per_s: float = 0.0
    score_gb_per_s: Optional[float] = None
    search: str = ""
    model: str = ""
    collective: str = ""
    size_bytes: int = 0
    evaluations: int = 0
    pods: List[List[str]] = field(default_factory=list)
    groups: List[Dict[str, Any]] = field(default_factory=list)
    contention: Optional[Dict[str, Any]] = None
    bottleneck: Dict[str, Any] = field(default_factory=dict)
    packed: Optional[Scored] = None
    rule: Optional[Scored] = None
    price: Dict[str, Any] = field(default_factory=dict)
    equal_counts: Optional[Scored] = None
    uneven_counts: Optional[Scored] = None
    beyond_level: Optional[Scored] = None
    given_way: Optional[Scored] = None
    worth_measuring: List[List[str]] = field(default_factory=list)
    runner_ups: List[Scored] = field(default_factory=list)
    avoided: Optional[Dict[str, Any]] = None
    suspects_touched: List[Dict[str, Any]] = field(default_factory=list)
    committed: Optional[Committed] = None
    network_changes: List[str] = field(default_factory=list)
    outside_validated: List[str] = field(default_factory=list)
    found_switches: Optional[str] = None
    found_switches_yaml: Optional[str] = None
    _hosts: Any = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Placement({_brief(self)}, rank_order={self.hosts})"

    @property
    def hosts(self) -> List[str]:
        """The hosts in the order of ranks, each once."""
        return list(dict.fromkeys(g.rsplit(":", 1)[0] for g in self.rank_order))

    def _repr_html_(self) -> str:
        from ._html import placement

        return placement(self)


@dataclass(frozen=True, repr=False)
class Explanation(Answer):
    """The bandwidth expected of given GPUs, GB/s, and what limits it."""

    gpus: List[str] = field(default_factory=list)
    split: str = ""
    predicted_busbw_gb_per_s: float = 0.0
    std_gb_per_s: float = 0.0
    score_gb_per_s: Optional[float] = None
    model: str = ""
    collective: str = ""
    size_bytes: int = 0
    bottleneck: Dict[str, Any] = field(default_factory=dict)
    suspects_touched: List[Dict[str, Any]] = field(default_factory=list)
    expected_with_suspects_gb_per_s: float = 0.0
    outside_validated: List[str] = field(default_factory=list)
    _hosts: Any = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Explanation({_brief(self)}, bottleneck={self.bottleneck})"

    def _repr_html_(self) -> str:
        from ._html import placement

        return placement(self)


@dataclass(frozen=True)
class Release(Answer):
    """The released jobs, each with the GPUs that it held; ``free`` is the number of free GPUs afterwards."""

    released: List[Dict[str, Any]] = field(default_factory=list)
    free: int = 0
    repeated: bool = False


@dataclass(frozen=True)
class Allocation(Answer):
    """GPUs that a job holds now; ``already`` if it held them before."""

    job: str = ""
    gpus: List[str] = field(default_factory=list)
    already: bool = False
    free: int = 0
    repeated: bool = False


@dataclass(frozen=True)
class Observation(Answer):
    """Readings that were stored: one entry of ``readings`` per reading, in the order of the request."""

    job: str = ""
    readings: List[Dict[str, Any]] = field(default_factory=list)
    learned: int = 0
    suspected: Optional[List[str]] = None
    repeated: bool = False


@dataclass(frozen=True)
class Fit(Answer):
    """A fitted model."""

    kind: str = ""
    collective: str = ""
    sizes_bytes: List[int] = field(default_factory=list)
    intra_readings: int = 0
    multi_host_readings: int = 0
    left_out: int = 0
    distrusted: int = 0
    intra_suspects: int = 0
    not_chosen: int = 0
    replaced: int = 0
    slow_parts: List[Dict[str, Any]] = field(default_factory=list)
    nic_factors: Dict[str, float] = field(default_factory=dict)
    tiers: Dict[str, Any] = field(default_factory=dict)
    simulated_readings: int = 0
    repeat_noise: float = 0.0
    evaluations: int = 0
    seed: int = 0
    parameters: Optional[int] = None
    parameter_bytes: Optional[int] = None
    epochs: List[int] = field(default_factory=list)
    best_epochs: List[int] = field(default_factory=list)


@dataclass(frozen=True)
class Status(Answer):
    """The operator's state: free GPUs, jobs, drained GPUs, suspects."""

    cluster: str = ""
    hosts: int = 0
    gpus: int = 0
    free: List[str] = field(default_factory=list)
    jobs: List[Dict[str, Any]] = field(default_factory=list)
    drained: List[Dict[str, Any]] = field(default_factory=list)
    suspects: List[Dict[str, Any]] = field(default_factory=list)
    version: int = 0


@dataclass(frozen=True)
class Diagnosis(Answer):
    """Slow hardware that explains low readings."""

    cluster: str = ""
    readings: int = 0
    judged: int = 0
    left_out: int = 0
    noise: float = 0.0
    simulated_readings: int = 0
    defects: List[Dict[str, Any]] = field(default_factory=list)
    shared: List[Dict[str, Any]] = field(default_factory=list)
    hosts: List[Dict[str, Any]] = field(default_factory=list)
    stray: List[Dict[str, Any]] = field(default_factory=list)
    measure_next: Optional[List[str]] = None
