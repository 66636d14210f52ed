# SPDX-License-Identifier: Apache-2.0
"""The types of answers. Each is a frozen view of the JSON that the command, the server and this package have in common."""

from __future__ import annotations

import copy
import dataclasses
import json
import typing
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Type, TypeVar

T = TypeVar("T", bound="Answer")


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer. ``to_dict()`` has every field of the JSON, also those of a newer linkwise that this class does not name.

    Answers with the same JSON are equal, and can be keys of dictionaries. They can be pickled and outlive their engine.
    """

    _json: Mapping[str, Any] = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Answer) and self._json == other._json

    def __hash__(self) -> int:
        return hash((type(self), json.dumps(self._json, sort_keys=True)))

    def to_dict(self) -> Dict[str, Any]:
        """The answer as JSON's types. The caller may change the result."""
        return copy.deepcopy(dict(self._json))

    @classmethod
    def _of(cls: Type[T], answer: Mapping[str, Any]) -> T:
        values: Dict[str, Any] = {}
        kinds = _kinds(cls)
        for f in dataclasses.fields(cls):
            if f.name != "_json" and f.name in answer:
                values[f.name] = _typed(kinds[f.name], answer[f.name])
        return cls(answer, **values)


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


@dataclass(frozen=True, eq=False)
class Scored(Answer):
    """An allocation and its prediction."""

    split: str = ""
    gpus: List[str] = field(default_factory=list)
    predicted_busbw_gb_per_s: float = 0.0
    std_gb_per_s: float = 0.0
    score_gb_per_s: Optional[float] = None


@dataclass(frozen=True, eq=False)
class Committed(Answer):
    """The job that holds the GPUs now."""

    job: str = ""
    repeated: bool = False
    attempts: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class Placement(Scored):
    """The GPUs chosen for a job.

    ``gpus`` are names ``HOST:INDEX`` by host; ``rank_order`` has them in the order of ranks; ``split`` is GPUs per host (``"4+4"``).
    Bandwidths are bus bandwidths in GB/s (1e9 bytes per second).
    """

    rank_order: List[str] = field(default_factory=list)
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
    _hosts: Any = field(default=(), repr=False)

    def __repr__(self) -> str:
        return f"Placement({_brief(self)}, rank_order={self.hosts})"

    @property
    def hosts(self) -> List[str]:
        """The hosts in the order of ranks, each once."""
        return list(dict.fromkeys(g.rsplit(":", 1)[0] for g in self.rank_order))

    def _repr_html_(self) -> str:
        from ._html import placement

        return placement(self)


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Scored):
    """The bandwidth expected of given GPUs, GB/s, and what limits it."""

    model: str = ""
    collective: str = ""
    size_bytes: int = 0
    bottleneck: Dict[str, Any] = field(default_factory=dict)
    suspects_touched: List[Dict[str, Any]] = field(default_factory=list)
    expected_with_suspects_gb_per_s: float = 0.0
    outside_validated: List[str] = field(default_factory=list)
    _hosts: Any = field(default=(), repr=False)

    def __repr__(self) -> str:
        return f"Explanation({_brief(self)}, bottleneck={self.bottleneck})"

    def _repr_html_(self) -> str:
        from ._html import placement

        return placement(self)


@dataclass(frozen=True, eq=False)
class Release(Answer):
    """The released jobs, each with the GPUs that it held; ``free`` is the number of free GPUs afterwards."""

    released: List[Dict[str, Any]] = field(default_factory=list)
    free: int = 0
    repeated: bool = False


@dataclass(frozen=True, eq=False)
class Allocation(Answer):
    """GPUs that a job holds now; ``already`` if it held them before."""

    job: str = ""
    gpus: List[str] = field(default_factory=list)
    already: bool = False
    free: int = 0
    repeated: bool = False


@dataclass(frozen=True, eq=False)
class Observation(Answer):
    """Readings that were stored: one entry of ``readings`` per reading, in the order of the request."""

    job: str = ""
    readings: List[Dict[str, Any]] = field(default_factory=list)
    learned: int = 0
    suspected: Optional[List[str]] = None
    repeated: bool = False


@dataclass(frozen=True, eq=False)
class Fit(Answer):
    """A fitted model.

    Attributes:
        kind: kind of the model.
        collective: the collective.
        sizes_bytes: message sizes of the model, bytes, ascending.
        intra_readings: number of readings of single hosts.
        multi_host_readings: number of distinct readings of several hosts.
        left_out: number of readings left out: contended, or of another collective.
        distrusted: number of readings of several hosts with less weight.
        intra_suspects: number of subsets of single hosts that deviate far from comparable ones.
        not_chosen: number of readings beyond the limit, for which others of the same splits stand.
        replaced: number of readings that newer ones of the same GPUs replace.
        slow_parts: parts of the network that the readings show to be slower than their kind.
        nic_factors: by host type, the NICs' rate as a share of the cluster file's, 0 to 1 or more.
        tiers: by tier of switches, rates that the readings show.
        simulated_readings: number of simulated readings among them.
        repeat_noise: relative standard deviation of repeated measurements; 0.02 is 2 %.
        evaluations: number of evaluations of the objective function.
        seed: random seed.
        parameters: number of parameters of a network; None for other kinds.
        parameter_bytes: their size, bytes.
        epochs: number of epochs of every training.
        best_epochs: the epoch whose parameters were chosen, from 0.
    """

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


@dataclass(frozen=True, eq=False)
class Status(Answer):
    """The operator's state: free GPUs, jobs, drained GPUs, suspects.

    Attributes:
        cluster: name of the cluster.
        hosts, gpus: their numbers.
        free: the GPUs that a job can get, ``HOST:INDEX``.
        jobs: the jobs, oldest first: ``id``, ``gpus``, ``split``; ``since_unix_s`` and ``lease_until_unix_s`` in seconds since 1970,
            ``lease_s`` in seconds, ``predicted_gb_per_s`` and ``demand_gb_per_s`` in GB/s of bus bandwidth, ``size_bytes`` in bytes.
        drained: the drained GPUs by ``reason``.
        suspects: the components that may be slow, most probable first: ``probability`` from 0 to 1, ``factor`` the share of the full
            rate, 0 to 1.
        version: rises with every change of the state.
    """

    cluster: str = ""
    hosts: int = 0
    gpus: int = 0
    free: List[str] = field(default_factory=list)
    jobs: List[Dict[str, Any]] = field(default_factory=list)
    drained: List[Dict[str, Any]] = field(default_factory=list)
    suspects: List[Dict[str, Any]] = field(default_factory=list)
    version: int = 0
    _hosts: Any = field(default=(), repr=False)

    def _repr_html_(self) -> str:
        from ._html import status

        return status(self)


@dataclass(frozen=True, eq=False)
class Diagnosis(Answer):
    """Slow hardware that explains low readings.

    Attributes:
        cluster: name of the cluster.
        readings: number of readings in the store.
        judged: number of distinct readings that were judged; repetitions count once.
        left_out: number of readings without comparable ones.
        noise: standard deviation of the natural logarithm of ordinary readings over several hosts; 0.02 is about 2 %.
        simulated_readings: number of simulated readings among ``readings``.
        defects: defects of single hosts, the one that explains most readings first: ``probability`` from 0 to 1, ``candidates`` with
            ``factor``, the share of the full rate, 0 to 1, and ``since_unix_s``, seconds since 1970; ``cost`` in GB/s.
        shared: slow parts that hosts share: rails and switches.
        hosts: every host with readings, and how far it is from comparable hosts, slowest first.
        stray: single low readings that no defect explains.
        measure_next: the free GPUs whose reading is expected to tell most; None: no reading tells much.
    """

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
