# SPDX-License-Identifier: Apache-2.0
"""Traffic of mixture-of-experts layers, as the demand of :meth:`linkwise.Engine.plan`. Needs NumPy.

    >>> import numpy
    >>> from linkwise import Engine, moe
    >>> top_k = numpy.random.default_rng(0).integers(16, size=(8, 512, 4))     # 8 ranks, 512 tokens each, 4 experts per token
    >>> demand = moe.demand(top_k, expert_rank=numpy.arange(16) // 2, bytes_per_token=7168 * 2)
    >>> plan = Engine(cluster="rails2x4").plan(demand)
    >>> plan.ranks, plan.congestion_s >= plan.lower_bound_s
    (8, True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence, Union

from ._engine import _bad, _bytes

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    Matrix = numpy.typing.NDArray[numpy.uint64]
    Ranks = numpy.typing.NDArray[numpy.int64]

__all__ = ["balanced", "demand"]

#: An expert id of a token that is not sent: dropped, or padding.
NOT_SENT = -1


def _whole(name: str, values: Any, dimensions: int) -> Any:
    """An array of integers with this many dimensions."""
    import numpy

    try:
        array = numpy.asarray(values)
    except (TypeError, ValueError, RuntimeError) as e:  # ragged lists; a tensor on a GPU
        raise _bad(f"`{name}` is no array: {e}") from None
    if array.ndim != dimensions or (array.size and array.dtype.kind not in "iu"):
        raise _bad(f"`{name}` is an array of {array.dtype} of shape {array.shape}; integers with {dimensions} dimensions were expected")
    return array.astype("int64", copy=False)


def demand(
    top_k: Union[Sequence[Any], "numpy.typing.NDArray[Any]"],
    expert_rank: Any,
    bytes_per_token: int,
    *,
    once_per_rank: bool = False,
) -> "Matrix":
    """The bytes that the dispatch of one layer sends from each rank to each rank.

    The way back (combine) is the transpose. What a rank sends to itself crosses no link and is 0.

    Args:
        top_k: expert ids, from 0, of every token of every rank: an array [R, T, K], or R arrays [T, K] of ranks with different numbers T
            of tokens. -1 is not sent (a dropped or padded token).
        expert_rank: [E], the rank of each expert, 0 to R - 1.
        bytes_per_token: bytes of one token, such as hidden size x bytes per element.
        once_per_rank: a token whose experts share a rank is sent there once, as DeepEP sends it. Else once per expert, as an all-to-all of
            copies sends it.

    Returns:
        uint64 of shape [R, R], bytes from rank (row) to rank (column), for :meth:`linkwise.Engine.plan` of a cluster with R GPUs.

    O(R T K log(R T K) + R^2).

    >>> from linkwise import moe
    >>> top_k = [[[0, 1], [2, 3]], [[0, 1], [0, -1]]]       # 2 ranks, 2 tokens each, top 2
    >>> moe.demand(top_k, expert_rank=[0, 0, 1, 1], bytes_per_token=100).tolist()
    [[0, 200], [300, 0]]
    >>> moe.demand(top_k, expert_rank=[0, 0, 1, 1], bytes_per_token=100, once_per_rank=True).tolist()
    [[0, 100], [200, 0]]
    """
    import numpy

    size = _bytes("bytes_per_token", bytes_per_token)
    rank_of = _whole("expert_rank", expert_rank, 1)
    if isinstance(top_k, (str, bytes)) or not hasattr(top_k, "__len__"):
        raise _bad("`top_k` is no array of expert ids")
    ranks = len(top_k)
    if rank_of.size and not (0 <= rank_of.min() and rank_of.max() < ranks):
        raise _bad(f"`expert_rank` has rank {rank_of.min() if rank_of.min() < 0 else rank_of.max()}; `top_k` is of ranks 0 to {ranks - 1}")
    tokens = numpy.zeros((ranks, ranks), "int64")
    for source, ids in enumerate(top_k):
        ids = _whole(f"top_k[{source}]", ids, 2)
        if ids.size and not (NOT_SENT <= ids.min() and ids.max() < rank_of.size):
            wrong = ids.min() if ids.min() < NOT_SENT else ids.max()
            raise _bad(f"`top_k[{source}]` has expert {wrong}; `expert_rank` has {rank_of.size} experts, and -1 is not sent")
        token, _ = numpy.nonzero(ids != NOT_SENT)
        to = rank_of[ids[ids != NOT_SENT]]
        if once_per_rank:
            to = numpy.unique(token * ranks + to) % ranks
        tokens[source] = numpy.bincount(to, minlength=ranks)
    numpy.fill_diagonal(tokens, 0)
    most = int(tokens.max()) if ranks else 0
    if most * size >= 1 << 64:
        raise _bad(f"{most} tokens of {size} bytes are more than 2^64 bytes")
    return tokens.astype("uint64") * numpy.uint64(size)


def balanced(load: Any, ranks: int) -> "Ranks":
    """A rank for each expert such that the busiest rank has little load; every rank gets as many experts.

    Largest load first, each to the rank with the least load that has room; if that is no better than consecutive experts per rank, those. It
    counts tokens only: it knows no network and copies no expert. The busiest rank may have more load than in the best assignment.

    Args:
        load: [E], tokens per expert, 0 or more; integers or floats.
        ranks: number of ranks R; it divides E.

    Returns:
        int64 of shape [E]: the rank of each expert, as ``expert_rank`` of :func:`demand`.

    O(E log E + E R).

    >>> from linkwise import moe
    >>> moe.balanced([9, 8, 2, 1], ranks=2).tolist()        # 9 + 1 and 8 + 2; consecutive: 17 and 3
    [0, 1, 1, 0]
    """
    import numpy

    try:
        loads = numpy.asarray(load, "float64")
    except (TypeError, ValueError, RuntimeError) as e:
        raise _bad(f"`load` is no array of numbers: {e}") from None
    count = _bytes("ranks", ranks)
    if loads.ndim != 1 or not numpy.isfinite(loads).all() or (loads < 0).any():
        raise _bad(f"`load` has shape {loads.shape}; one finite load of 0 or more per expert was expected")
    if not count or loads.size % count:
        raise _bad(f"{loads.size} experts cannot be shared evenly by {count} ranks")
    room = loads.size // count
    consecutive = numpy.arange(loads.size, dtype="int64") // max(1, room)
    greedy = numpy.empty(loads.size, "int64")
    sums, experts = numpy.zeros(count), numpy.zeros(count, "int64")
    for expert in numpy.argsort(-loads, kind="stable"):
        rank = int(numpy.where(experts < room, sums, numpy.inf).argmin())
        greedy[expert] = rank
        sums[rank] += loads[expert]
        experts[rank] += 1
    plain = numpy.bincount(consecutive, weights=loads, minlength=count)
    return greedy if sums.max() < plain.max() else consecutive
