# SPDX-License-Identifier: Apache-2.0
"""The engine and its requests."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar, Union, cast

from . import _native
from ._answers import Allocation, Diagnosis, Explanation, Fit, Observation, Placement, Release, Status
from ._errors import Error

if TYPE_CHECKING:
    import numpy
    import numpy.typing

Path = Union[str, "os.PathLike[str]"]
Gpus = Union[str, Sequence[str]]
Drawn = TypeVar("Drawn", Placement, Explanation, Status)

#: Fields of a request that are constraints on the chosen GPUs.
CONSTRAINTS = (
    "only_hosts",
    "excluded_hosts",
    "gpu_type",
    "gpus_per_host_min",
    "gpus_per_host_max",
    "hosts_max",
    "per_host",
    "exclusive_nics",
    "uneven",
    "switches_max",
    "switch_tier",
    "require_level",
    "prefer_level",
    "spread",
)


def _bad(message: str) -> Error:
    return Error(message, "bad_request", "malformed", "correct the request")


def _path(name: str, value: Optional[Path]) -> Optional[str]:
    if value is None:
        return None
    try:
        text = os.fspath(value)
        if isinstance(text, str):
            text.encode()
    except TypeError:
        raise _bad(f"`{name}` is a {type(value).__name__}; a path was expected") from None
    except UnicodeEncodeError:
        raise _bad(f"`{name}` is {value!r}, which is no Unicode text") from None
    if not isinstance(text, str):
        raise _bad(f"`{name}` is bytes; a path as text was expected")
    if not text or "\0" in text:
        raise _bad(f"`{name}` is {text!r}; a path was expected")
    return text


def _names(name: str, gpus: Gpus) -> List[str]:
    """A list of names; text is separated at spaces."""
    try:
        names = gpus.split() if isinstance(gpus, str) else list(gpus)
    except TypeError:
        raise _bad(f"`{name}` is a {type(gpus).__name__}; names of GPUs were expected") from None
    for n in names:
        if not isinstance(n, str):
            raise _bad(f"`{name}` has a {type(n).__name__}; names of GPUs were expected")
        try:
            n.encode()
        except UnicodeEncodeError:
            raise _bad(f"`{name}` has {n[:60]!r}, which is no Unicode text") from None
    return names


def _is_array(value: Any) -> bool:
    """True for a NumPy array. Does not import NumPy: a program that has an array has imported it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


class Link(NamedTuple):
    """A link of a plan."""

    from_: str
    to: str
    capacity_gb_per_s: float
    bytes: int


class Plan:
    """The paths of every byte of a demand, and how far the busiest link is from the optimum.

    Times follow from the capacities of links and are not measured.

    Attributes:
        ranks: number of ranks.
        congestion_s: time that the busiest link needs, seconds.
        lower_bound_s: no plan needs less, seconds.
        gap: ``congestion_s / lower_bound_s - 1``.
        evidence: the proof of the bound, in words.
        bottleneck: name of the busiest link.
        rule: the rule of every pair without an exception.
        exceptions: number of pairs that do not follow the rule.
        completion_s: modelled completion time, seconds.
        notes: what the network leaves out.

    >>> demand = [[0] * 8 for _ in range(8)]
    >>> demand[0][4] = 1 << 30                              # 1 GiB from GPU 0 of the first host to GPU 0 of the second
    >>> plan = Engine(cluster="rails2x4").plan(demand)
    >>> sum(size for src, dst, size, links in plan.flows()) == 1 << 30
    True
    >>> plan.congestion_s >= plan.lower_bound_s > 0
    True
    >>> busiest = max(plan.links, key=lambda link: link.bytes / link.capacity_gb_per_s)
    >>> abs(busiest.bytes / (busiest.capacity_gb_per_s * 1e9) - plan.congestion_s) < 1e-9
    True
    """

    ranks: int
    congestion_s: float
    lower_bound_s: float
    gap: float
    evidence: str
    bottleneck: str
    rule: str
    exceptions: int
    completion_s: float
    notes: List[str]

    def __init__(self, native: "_native.Plan") -> None:
        self._native = native
        self._summary: Dict[str, Any] = native.summary()
        self.__dict__.update(self._summary)

    def __repr__(self) -> str:
        return f"Plan(ranks={self.ranks}, congestion_s={self.congestion_s!r}, gap={self.gap!r}, bottleneck={self.bottleneck!r})"

    @property
    def links(self) -> List[Link]:
        """The links and the bytes of the plan on each."""
        return [Link(*link) for link in self._native.links()]

    def flows(self) -> List[Tuple[int, int, int, List[int]]]:
        """Every flow as ``(src, dst, bytes, links)``; ``links`` are indexes into :attr:`links`. For large plans use :meth:`arrays`."""
        src, dst, size, first, hops = self._native.flow_lists()
        return [(s, d, n, hops[first[i] : first[i + 1]]) for i, (s, d, n) in enumerate(zip(src, dst, size))]

    def arrays(self) -> "Dict[str, numpy.typing.NDArray[Any]]":
        """The F flows as NumPy arrays, without a copy.

        ``src``, ``dst`` (uint32, shape [F]): ranks. ``bytes`` (uint64, [F]). The links of flow i are
        ``hops[first_hop[i]:first_hop[i + 1]]``; ``first_hop`` is uint64 of shape [F + 1], ``hops`` uint32.
        """
        return dict(zip(("src", "dst", "bytes", "first_hop", "hops"), self._native.flow_arrays()))

    def to_dict(self) -> Dict[str, Any]:
        """The plan as JSON's types, in the form of the server's ``/v1/route/plan``."""
        links = [{"from": a, "to": b, "capacity_gb_per_s": c, "bytes": n} for a, b, c, n in self._native.links()]
        flows = [{"src": s, "dst": d, "hops": h, "bytes": n} for s, d, n, h in self.flows()]
        return {**self._summary, "links": links, "flows": flows}

    def _repr_html_(self) -> str:
        from ._html import plan

        return plan(self)


class Engine:
    """The engine of one cluster: place, commit, observe, learn, route.

    Args:
        cluster: a cluster file, or the name of a built-in one (:func:`linkwise.clusters`). Without it, the cluster of ``state``.
        state: who holds which GPU: a file, or the URL of a PostgreSQL database. A missing one is made if ``cluster`` is given.
        model: model file. Every fit and every reading that is learned is saved there. A missing one is made by the first fit.
        store: readings: a file, or the URL of a PostgreSQL database. A missing one is made.

    Threads can share an engine. The interpreter's lock is released while it computes. After ``os.fork`` the child must make its own.

    Raises:
        Error: a file cannot be read, or the parts are of different clusters.

    >>> Engine(cluster="h100x")
    Traceback (most recent call last):
    ...
    linkwise._errors.Error: ...did you mean `h100`?...
    """

    def __init__(
        self,
        cluster: Optional[Path] = None,
        state: Optional[Path] = None,
        model: Optional[Path] = None,
        store: Optional[Path] = None,
    ) -> None:
        paths = (_path(n, v) for n, v in (("cluster", cluster), ("state", state), ("model", model), ("store", store)))
        self._native = _native.Engine(*paths)
        self._hosts: Optional[Tuple[Tuple[str, str, int], ...]] = None

    def __repr__(self) -> str:
        n = self._native
        return f"Engine(cluster={n.cluster_name!r}, model={n.model_kind!r}, state={n.has_state!r})"

    def _repr_html_(self) -> str:
        from html import escape

        return self.status()._repr_html_() if self._native.has_state else f"<code>{escape(repr(self))}</code>"

    def request(self, request: Mapping[str, Any], now: Optional[float] = None) -> Dict[str, Any]:
        """Answers any request of the engine, in the JSON that all programs of linkwise share.

        ``now`` is the time of the request, seconds since 1970; None: the clock's.

        >>> Engine(cluster="h100").request({"request": "model"})
        Traceback (most recent call last):
        ...
        linkwise._errors.Error: this request needs a model, and none is loaded; fit a model and name its file
        """
        try:
            text = json.dumps(_plain(request), allow_nan=False)
        except (TypeError, ValueError, RecursionError, AttributeError, OverflowError) as e:
            raise _bad(f"the request cannot be written as JSON: {e}") from None
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise _bad(f"the request has text that is no Unicode: {e}") from None
        answer: Dict[str, Any] = json.loads(self._native.request(text, None if now is None else _number("now", now)))
        return answer

    # Placement

    def place(
        self,
        gpus: Optional[int] = None,
        *,
        pods: Optional[Sequence[int]] = None,
        groups: Optional[Sequence[Mapping[str, Any]]] = None,
        size_bytes: Optional[int] = None,
        free: Optional[Gpus] = None,
        commit: Optional[str] = None,
        lease_s: Optional[float] = None,
        key: Optional[str] = None,
        now: Optional[float] = None,
        **more: Any,
    ) -> Placement:
        """Chooses the GPUs of a job.

        Args:
            gpus: number of GPUs.
            pods: instead, number of GPUs of every pod; a pod runs on one host.
            groups: groups of ranks: ``[{"kind": "tensor", "size": 8}, {"kind": "data", "size": 4}]``.
            size_bytes: message size to optimise for; None: the largest of the model.
            free: GPUs to choose from; None: all that are neither drained nor held.
            commit: id of the job that gets the GPUs; None: nothing is taken.
            lease_s: the job loses its GPUs unless it is renewed within this time, seconds.
            key: idempotency key of a commit: a repetition under the same key gets the same answer.
            more: constraints (``hosts_max``, ``per_host``, ``gpus_per_host_min``, ``uneven``, ``only_hosts``, ``excluded_hosts``,
                ``exclusive_nics``, ``switches_max``, ``require_level``, ``prefer_level``, ``spread``, ``gpu_type``, ...), and ``jobs``,
                ``contention``, ``loss_weight``, ``slack``, ``search``, ``seed``, ``measured`` as in docs/requests.md.

        Raises:
            Error: no model, a request that is malformed, or one that the free GPUs cannot meet.

        >>> engine = Engine(cluster="h100")
        >>> _ = engine.fit("nccl", collective="all_reduce")
        >>> choice = engine.place(12, hosts_max=2, excluded_hosts=["n0"])
        >>> len(choice.rank_order), len(choice.hosts), "n0" in choice.hosts
        (12, 2, False)
        >>> choice.predicted_busbw_gb_per_s >= choice.rule.predicted_busbw_gb_per_s    # the fewest hosts, split evenly
        True
        """
        request: Dict[str, Any] = {"request": "place"}
        constraints = {name: more.pop(name) for name in CONSTRAINTS if name in more}
        given = {"gpus": gpus, "pods": pods, "groups": groups, "size_bytes": size_bytes, "commit": commit, "lease_s": lease_s, "key": key}
        request.update({**_some(**given), **_some(**more)})
        if free is not None:
            request["free"] = _names("free", free)
        if _some(**constraints):
            request["constraints"] = _some(**constraints)
        return self._drawn(Placement, self.request(request, now))

    def commit(self, job: str, gpus: Union[int, Gpus], *, now: Optional[float] = None, **more: Any) -> Union[Placement, Allocation]:
        """Gives GPUs to a job: a number chooses them as :meth:`place` does, names take exactly these.

        Returns a :class:`Placement` for a number, else an :class:`Allocation`.

        >>> engine = Engine(cluster="h100", state="site.state")
        >>> _ = engine.fit("nccl", collective="all_reduce")
        >>> engine.commit("train-7", 8, key="submit-7").committed.job
        'train-7'
        >>> engine.commit("train-8", "n3:[0-1]").gpus
        ['n3:0', 'n3:1']
        >>> engine.commit("train-9", "n3:0")
        Traceback (most recent call last):
        ...
        linkwise._errors.Error: ...n3:0...
        """
        # An array has `__index__`, too.
        if isinstance(gpus, str) or hasattr(gpus, "__iter__") or not hasattr(gpus, "__index__"):
            names = _names("gpus", cast("Gpus", gpus))
            request = {"request": "allocate", "job": job, "gpus": names, **more}
            return Allocation._of(self.request(request, now))
        return self.place(gpus, commit=job, now=now, **more)

    def release(self, *jobs: str, key: Optional[str] = None, now: Optional[float] = None) -> Release:
        """Releases the GPUs of all these jobs, or of none.

        >>> engine = Engine(cluster="h100", state="site.state")
        >>> _ = engine.commit("a", "n0:[0-7]"), engine.commit("b", "n1:[0-3]")
        >>> engine.release("a", "b").free == engine.status().gpus
        True
        """
        return Release._of(self.request({"request": "release", "jobs": list(jobs), **_some(key=key)}, now))

    def status(self) -> Status:
        """The state: free GPUs, jobs, drained GPUs, suspects.

        >>> engine = Engine(cluster="h100", state="site.state")
        >>> _ = engine.commit("a", "n0:[0-7]")
        >>> now = engine.status()
        >>> now.gpus, len(now.free), now.jobs[0]["id"], now.jobs[0]["split"]
        (32, 24, 'a', '8')
        """
        return self._drawn(Status, self.request({"request": "status"}))

    # Learning

    def observe(
        self,
        job: str,
        readings: Union[float, Mapping[str, Any], Sequence[Mapping[str, Any]]],
        *,
        gpus: Optional[Gpus] = None,
        collective: str = "all_reduce",
        simulated: bool = False,
        only_store: bool = False,
        force: bool = False,
        key: Optional[str] = None,
        now: Optional[float] = None,
    ) -> Observation:
        """Records the bandwidth that a job achieved, and teaches the model.

        Args:
            readings: bus bandwidth in GB/s of ``collective``, or readings such as
                ``{"collective": "all_reduce", "busbw_gb_per_s": 210.0, "size_bytes": 1 << 30}``.
            gpus: the job's GPUs; None: those that it holds in the state.
            simulated: True if the readings are simulated; reports then call them so.
            only_store: do not teach the model.
            force: store a reading above what the links allow, too.

        >>> engine = Engine(cluster="h100", store="readings.db")
        >>> stored = engine.observe("train-7", 212.5, gpus="n[0-1]:[0-7]")
        >>> stored.readings[0]["busbw_gb_per_s"], stored.readings[0]["collective"]
        (212.5, 'all_reduce')
        >>> engine.observe("train-7", 99_000.0, gpus="n[0-1]:[0-7]")    # bits, not bytes?
        Traceback (most recent call last):
        ...
        linkwise._errors.Error: ...check the unit (GB/s, not Gbit/s)...
        """
        shape = getattr(readings, "shape", ())
        if shape and not isinstance(readings, Mapping):
            raise _bad(f"`readings` is an array of shape {tuple(shape)}; one bandwidth or a list of dictionaries was expected")
        if hasattr(readings, "__float__"):
            readings = {"collective": collective, "busbw_gb_per_s": _number("readings", readings)}
        if isinstance(readings, Mapping):
            readings = [readings]
        if isinstance(readings, (str, bytes)) or not hasattr(readings, "__iter__"):
            raise _bad(f"`readings` is a {type(readings).__name__}; a bandwidth or a list of readings was expected")
        request: Dict[str, Any] = {"request": "observe", "job": job, "readings": [_reading(r) for r in readings]}
        request.update(simulated=simulated, only_store=only_store, force=force, **_some(key=key))
        if gpus is not None:
            request["gpus"] = _names("gpus", gpus)
        return Observation._of(self.request(request, now))

    def fit(self, kind: Optional[str] = None, *, collective: Optional[str] = None, seed: int = 0) -> Fit:
        """Fits a model to all usable readings, then uses it, and saves it if the engine has a model file.

        ``kind`` None is ``"gp"``; ``"nccl"`` needs no readings but ``collective``.

        >>> engine = Engine(cluster="h100")
        >>> fitted = engine.fit("nccl", collective="all_reduce")
        >>> fitted.kind, fitted.intra_readings, fitted.multi_host_readings
        ('nccl', 0, 0)
        """
        return Fit._of(self.request({"request": "fit", "seed": seed, **_some(kind=kind, collective=collective)}))

    def diagnose(self, *, collective: Optional[str] = None) -> Diagnosis:
        """Looks for slow hardware in the readings.

        >>> engine = Engine(cluster="h100", store="readings.db")
        >>> for busbw, pair in ((340, "01"), (338, "02"), (160, "03"), (342, "12"), (161, "13"), (159, "23")):
        ...     _ = engine.observe("job" + pair, busbw, gpus=f"n{pair[0]}:[0-7] n{pair[1]}:[0-7]", only_store=True)
        >>> found = engine.diagnose()
        >>> found.readings, found.hosts[0]["host"], found.hosts[0]["ratio"] < 0.8    # of comparable hosts; the slowest first
        (6, 'n3', True)
        """
        return Diagnosis._of(self.request({"request": "diagnose", **_some(collective=collective)}))

    # Prediction

    def explain(self, gpus: Optional[Gpus] = None, *, job: Optional[str] = None, size_bytes: Optional[int] = None) -> Explanation:
        """The bandwidth expected of GPUs, or of those of a job, and what limits it.

        >>> engine = Engine(cluster="h100")
        >>> _ = engine.fit("nccl", collective="all_reduce")
        >>> inside, across = engine.explain("n0:[0-7]"), engine.explain("n[0-1]:[0-7]")
        >>> inside.predicted_busbw_gb_per_s > across.predicted_busbw_gb_per_s
        True
        >>> inside.bottleneck["kind"], across.split
        ('host', '8+8')
        """
        names = None if gpus is None else _names("gpus", gpus)
        return self._drawn(Explanation, self.request({"request": "explain", **_some(gpus=names, job=job, size_bytes=size_bytes)}))

    def predict(self, allocations: Any, size_bytes: Optional[int] = None) -> Tuple[Any, Any]:
        """The bandwidth expected of many allocations at once.

        Args:
            allocations: A lists of GPUs, or a boolean NumPy array of shape [A, G]: column g is GPU g of the cluster in host order.
            size_bytes: message size; None: the largest of the model.

        Returns:
            Mean and standard deviation of the bus bandwidth, GB/s: two lists, or for an array two float64 arrays of shape [A] (not
            copied). One GPU has 0.

        >>> engine = Engine(cluster="h100")
        >>> _ = engine.fit("nccl", collective="all_reduce")
        >>> mean, std = engine.predict([["n0:0"], "n0:[0-7]"])
        >>> mean[0], mean[1] > 100
        (0.0, True)
        """
        if _is_array(allocations):
            if allocations.dtype != bool or allocations.ndim != 2:
                raise _bad(f"an array of {allocations.dtype} with {allocations.ndim} dimensions; a boolean matrix was expected")
            if hasattr(allocations, "mask"):
                raise _bad("a masked array; fill it first: `allocations.filled(False)`")
            return self._native.predict_rows(allocations.view("uint8"), _whole("size_bytes", size_bytes))
        if isinstance(allocations, (str, memoryview)) or not hasattr(allocations, "__iter__"):
            raise _bad("`allocations` must be a sequence of lists of GPUs, or a boolean matrix")
        names = [_names(f"allocations[{i}]", a) for i, a in enumerate(allocations)]
        return self._native.predict(names, _whole("size_bytes", size_bytes))

    # Routes

    def plan(
        self,
        demand_bytes: Any,
        *,
        links: Sequence[str] = (),
        relay_read_gb_per_s: Optional[float] = None,
        relay_write_gb_per_s: Optional[float] = None,
    ) -> Plan:
        """Splits skewed traffic over links, with a proven distance from the optimum.

        Args:
            demand_bytes: bytes from each rank (row) to each rank (column), a square of the cluster's GPUs, at most 1,024: lists of
                integers, or a NumPy array of any integer type.
            links: rates that differ from the cluster file: ``"n0:0>n0:1=60"`` in GB/s, ``"n0:2>rail2=x0.5"`` as a share; 0 is dead.
            relay_read_gb_per_s, relay_write_gb_per_s: limits on what a GPU forwards for others.

        >>> engine = Engine(cluster="rails2x4")
        >>> plan = engine.plan([[0, 1 << 30, 0, 0, 0, 0, 0, 0]] + [[0] * 8] * 7)
        >>> plan.gap < 0.05
        True
        """
        options = (_names("links", links), relay_read_gb_per_s, relay_write_gb_per_s)
        if _is_array(demand_bytes):
            if demand_bytes.ndim != 2 or demand_bytes.dtype.kind not in "iu":
                raise _bad(f"an array of {demand_bytes.dtype} with {demand_bytes.ndim} dimensions; a square of integers was expected")
            if demand_bytes.dtype.kind == "i" and demand_bytes.size and demand_bytes.min() < 0:
                raise _bad("the demand has negative entries")
            return Plan(self._native.plan_matrix(demand_bytes.astype("uint64", copy=False), *options))
        rows = []
        for i, row in enumerate(demand_bytes):
            try:
                rows.append([_bytes(f"demand_bytes[{i}]", n) for n in row])
            except TypeError:
                raise _bad(f"row {i} of the demand is a {type(row).__name__}; a list of bytes was expected") from None
        return Plan(self._native.plan(rows, *options))

    def _drawn(self, kind: Type[Drawn], answer: Dict[str, Any]) -> Drawn:
        out = kind._of(answer)
        if self._hosts is None:
            self._hosts = tuple(self._native.hosts())
        # The list, not a method of the engine: an answer can be pickled, and does not keep the engine open.
        object.__setattr__(out, "_hosts", self._hosts)
        return out


def _some(**fields: Any) -> Dict[str, Any]:
    return {k: v for k, v in fields.items() if v is not None}


def _reading(value: Any) -> Dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _bad(f"a reading is a {type(value).__name__}; a dictionary was expected")
    return dict(value)


def _plain(value: Any) -> Any:
    """JSON's types, with NumPy's numbers and arrays as Python's."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if _is_array(value):
        return _plain(value.tolist())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.bool_):
        return bool(value)
    if hasattr(value, "__index__"):
        return value.__index__()
    return float(value) if hasattr(value, "__float__") else value


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several numbers
        raise _bad(f"`{name}` is {value!r}; a number was expected") from None


def _whole(name: str, value: Any) -> Optional[int]:
    return None if value is None else _bytes(name, value)


def _bytes(name: str, value: Any) -> int:
    try:
        number: int = value.__index__()
    except AttributeError:
        raise _bad(f"`{name}` has {value!r}; a whole number was expected") from None
    if not 0 <= number < 1 << 64:
        raise _bad(f"`{name}` has {number}; 0 to 2^64 - 1 was expected")
    return number
