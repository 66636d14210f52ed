# SPDX-License-Identifier: Apache-2.0
"""A rendezvous that gives hosts their ranks in the order of the placement: ``torchrun --rdzv-backend linkwise``.

PyTorch's c10d rendezvous sorts hosts as text: node66 comes before node7, node7 before node8. A placement whose neighbours share a switch
loses its order there. This backend is c10d's, with its store, its heartbeats and its restarts; only the ranks differ.

    torchrun --nnodes 3 --rdzv-backend linkwise --rdzv-endpoint node7:29400 --rdzv-conf order=node7/node66/node8 train.py

The order comes from the first of these that is there, and must be the same on all hosts:

1. ``--rdzv-conf order=HOST/HOST/...``
2. ``--rdzv-conf placement=FILE``: the answer of ``linkwise place --format json``, whose ``rank_order`` names the GPUs
3. the variable ``LINKWISE_HOST_ORDER``: hosts separated by commas or spaces

Hosts are compared with the address that torchrun uses (``--local-addr``, else the host's name), first in full, then up to the first dot.
Hosts that the order does not name follow, with numbers in names compared as numbers. Without any order all hosts are sorted so. Several
agents on one host stay together.

torchrun finds this backend through the entry point ``torchrun.handlers`` of the installed package. It uses two private classes of
PyTorch's dynamic rendezvous; where a release has changed them, the backend says so before the job starts.
"""

from __future__ import annotations

import json
import logging
import os
import re
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

log = logging.getLogger("linkwise")

#: Largest placement file, bytes.
PLACEMENT_BYTES_MAX = 64 << 20
VARIABLE = "LINKWISE_HOST_ORDER"


def natural(name: str) -> Tuple[Tuple[int, int, str], ...]:
    """The key of a name whose numbers are compared as numbers: node8 before node66.

    >>> sorted(["node66", "node7", "node8"], key=natural)
    ['node7', 'node8', 'node66']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(p), p) if p.isascii() and p.isdigit() else (1, 0, p) for p in parts)


def _hosts(names: Iterable[str], where: str) -> List[str]:
    hosts = [n.strip() for n in names if n.strip()]
    twice = [h for i, h in enumerate(hosts) if h in hosts[:i]]
    if twice:
        raise ValueError(f"{where}: host {twice[0]!r} is named twice")
    return hosts


def _of_placement(path: str) -> List[str]:
    where = f"rdzv-conf placement={path}"
    try:
        if os.path.getsize(path) > PLACEMENT_BYTES_MAX:
            raise ValueError(f"{where}: the file is larger than {PLACEMENT_BYTES_MAX} bytes")
        with open(path, encoding="utf-8") as file:
            answer = json.load(file)
    except OSError as e:
        raise ValueError(f"{where}: {e.strerror}") from e
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as e:
        raise ValueError(f"{where}: no JSON: {e}; write it with `linkwise place --format json`") from e
    gpus = answer.get("rank_order") if isinstance(answer, dict) else None
    if not isinstance(gpus, list) or not gpus or not all(isinstance(g, str) and ":" in g for g in gpus):
        raise ValueError(f"{where}: it has no `rank_order`; write it with `linkwise place --format json`")
    return list(dict.fromkeys(g.rsplit(":", 1)[0] for g in gpus))


def order_of(config: Mapping[str, Any], environment: Mapping[str, str]) -> List[str]:
    """The hosts in the order of ranks, from the configuration of the rendezvous and the environment; empty if neither names any.

    >>> order_of({"order": "node7/node66/node8"}, {})
    ['node7', 'node66', 'node8']
    >>> order_of({}, {"LINKWISE_HOST_ORDER": "b, a"})
    ['b', 'a']
    """
    if config.get("order"):
        return _hosts(str(config["order"]).split("/"), "rdzv-conf order")
    if config.get("placement"):
        return _of_placement(str(config["placement"]))
    return _hosts(re.split(r"[,\s]+", environment.get(VARIABLE, "")), VARIABLE)


def ranked(addresses: Sequence[str], order: Sequence[str]) -> List[int]:
    """The indexes of the addresses in the order of ranks. O((addresses + order) log).

    >>> ranked(["node66", "node7", "node8.site"], ["node7", "node66", "node8"])
    [1, 0, 2]
    """
    full: Dict[str, int] = {host: i for i, host in enumerate(order)}
    short: Dict[str, List[int]] = {}
    for i, host in enumerate(order):
        short.setdefault(host.split(".", 1)[0], []).append(i)

    def place(address: str) -> int:
        if address in full:
            return full[address]
        # An IPv4 address has dots, too, and no short form.
        if re.fullmatch(r"[0-9.]+", address):
            return len(order)
        same = short.get(address.split(".", 1)[0], [])
        return same[0] if len(same) == 1 else len(order)

    return sorted(range(len(addresses)), key=lambda i: (place(addresses[i]), natural(addresses[i]), i))


def _classes() -> Tuple[Any, Any]:
    """PyTorch's handler and state holder; an error if they are not as this module knows them."""
    import torch
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

    try:
        holder, handler = dynamic._BackendRendezvousStateHolder, dynamic.DynamicRendezvousHandler
        for name in ("sync", "state", "mark_dirty"):
            getattr(holder, name)
        for name in ("participants", "complete"):
            getattr(dynamic._RendezvousState(), name)
        return holder, handler
    except AttributeError as e:
        raise RuntimeError(
            f"linkwise does not know the rendezvous of PyTorch {torch.__version__} ({e}); "
            "use --rdzv-backend c10d, or --rdzv-backend static with --node-rank in the placement's order"
        ) from e


def _ordered_holder(base: Any, order: List[str]) -> Any:
    class OrderedStateHolder(base):
        """Gives the ranks of the placement to a round that this node completes, before others see it."""

        _published_complete = False

        def sync(self) -> Any:
            state = self._state
            if self._dirty and state.complete and not self._published_complete:
                nodes = sorted(state.participants)  # c10d's order decides between agents of one host
                for rank, i in enumerate(ranked([n.addr for n in nodes], order)):
                    state.participants[nodes[i]] = rank
                unknown = [n.addr for n in nodes if order and ranked([n.addr, order[-1]], order)[0] == 1]
                if unknown:
                    log.warning("hosts that the order does not name get the last ranks: %s", ", ".join(unknown))
            done = super().sync()
            self._published_complete = self._state.complete
            return done

    return OrderedStateHolder


def create_handler(params: Any) -> Any:
    """The handler of a rendezvous; torchrun calls this."""
    holder, handler = _classes()
    order = order_of(params.config, os.environ)
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend

    backend, store = create_backend(params)
    plain = dynamic_rendezvous.create_handler(store, backend, params)
    try:
        node, settings = plain._this_node, plain._settings
    except AttributeError as e:
        raise RuntimeError(f"linkwise does not know this PyTorch's rendezvous ({e}); use --rdzv-backend c10d") from e
    return handler(node, settings, "linkwise", store, _ordered_holder(holder, order)(backend, settings))


def generator() -> Callable[[Any], Any]:
    """The entry point ``torchrun.handlers``."""
    return create_handler
