# SPDX-License-Identifier: Apache-2.0
"""Answers as HTML for notebooks: plain tables and inline SVG, no scripts, nothing from a network."""

from __future__ import annotations

from html import escape
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

Host = Tuple[str, str, int]
#: Colour and words of a GPU.
Marks = Dict[Tuple[str, int], Tuple[str, str]]

CHOSEN, HELD, DRAINED, SUSPECT, LINE = "#76b900", "#2f80ed", "#9aa5b1", "#d64545", "#7b8794"
#: Hosts drawn; the chosen ones first.
HOSTS_MAX = 48
#: Links listed.
LINKS_MAX = 12


def _gb(value: float) -> str:
    return f"{value:,.1f} GB/s"


def placement(answer: Any) -> str:
    """The cluster with the chosen GPUs filled, and the figures of the decision."""
    chosen: Dict[str, Set[int]] = {}
    for gpu in answer.gpus:
        host, _, index = gpu.rpartition(":")
        chosen.setdefault(host, set()).add(int(index))
    hosts: List[Host] = list(answer._hosts)
    hosts = hosts or [(h, "", max(g) + 1) for h, g in chosen.items()]
    shown = [h for h in hosts if h[0] in chosen] + [h for h in hosts if h[0] not in chosen]
    shown, left = shown[:HOSTS_MAX], max(0, len(shown) - HOSTS_MAX)
    rows: List[Tuple[str, str]] = [
        ("GPUs", f"{len(answer.gpus)} ({answer.split})"),
        ("predicted bus bandwidth", f"{_gb(answer.predicted_busbw_gb_per_s)} &#177; {answer.std_gb_per_s:,.1f}"),
        ("model", f"{escape(answer.model)}, {escape(str(answer.collective))}, {answer.size_bytes:,} bytes"),
    ]
    rule = getattr(answer, "rule", None)
    if rule is not None:
        rows.append(("fewest hosts, even split", f"{_gb(rule.predicted_busbw_gb_per_s)} ({escape(rule.split)})"))
    committed = getattr(answer, "committed", None)
    if committed is not None:
        rows.append(("held by", escape(committed.job)))
    for s in answer.suspects_touched:
        rows.append(("suspect", escape(str(s.get("component", "")))))
    if answer.outside_validated:
        rows.append(("extrapolated", escape("; ".join(answer.outside_validated))))
    if left:
        rows.append(("not drawn", f"{left} hosts"))
    marks = {(host, g): (CHOSEN, "chosen") for host, of in chosen.items() for g in of}
    return f"<div>{_hosts(shown, marks, 'hosts and chosen GPUs')}{_table(rows)}</div>"


def status(answer: Any) -> str:
    """The cluster with held, drained and suspect GPUs, and their numbers."""
    marks: Marks = {}
    for job in answer.jobs:
        marks.update({_gpu(g): (HELD, f"held by {job['id']}") for g in job["gpus"]})
    for drained in answer.drained:
        marks.update({_gpu(g): (DRAINED, f"drained {drained['reason']}".strip()) for g in drained["gpus"]})
    # A suspect component of a host may slow each of its GPUs.
    suspects = {s["host"]: f"{s['component']}, probability {s['probability']:.2f}" for s in reversed(answer.suspects)}
    marked = {host for host, _ in marks}.union(suspects)
    hosts = sorted(answer._hosts, key=lambda h: h[0] not in marked)
    held = sum(color == HELD for color, _ in marks.values())
    rows = [
        ("GPUs", f"{answer.gpus} on {answer.hosts} hosts of {escape(answer.cluster)}"),
        (f"{_square('none')} free", f"{len(answer.free)}"),
        (f"{_square(HELD)} held", f"{held} by {len(answer.jobs)} jobs"),
        (f"{_square(DRAINED)} drained", f"{sum(color == DRAINED for color, _ in marks.values())}"),
        (f"{_square('none', SUSPECT)} suspect", "; ".join(escape(f"{host}: {what}") for host, what in suspects.items()) or "none"),
    ]
    if len(hosts) > HOSTS_MAX:
        rows.append(("not drawn", f"{len(hosts) - HOSTS_MAX} hosts"))
    return f"<div>{_hosts(hosts[:HOSTS_MAX], marks, 'hosts with held, drained and suspect GPUs', suspects)}{_table(rows)}</div>"


def _gpu(name: str) -> Tuple[str, int]:
    host, _, index = name.rpartition(":")
    return host, int(index)


def _square(fill: str, stroke: str = LINE) -> str:
    return f"<svg width='12' height='12'><rect x='1' y='1' width='10' height='10' fill='{fill}' stroke='{stroke}'/></svg>"


def _hosts(hosts: Sequence[Host], marks: Marks, label_of_all: str, suspects: Mapping[str, str] = {}) -> str:  # noqa: B006
    cell, name_px, height = 16, 110, 22
    per_row = 3
    gpus_max = max((h[2] for h in hosts), default=1)
    width = name_px + gpus_max * cell + 14
    out = []
    for i, (host, kind, gpus) in enumerate(hosts):
        x, y = (i % per_row) * width, (i // per_row) * height
        label = host if len(host) <= 16 else host[:15] + "…"
        out.append(f'<text x="{x + name_px - 6}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
        for g in range(gpus):
            fill, what = marks.get((host, g), ("none", ""))
            stroke = SUSPECT if host in suspects else LINE
            title = ", ".join(w for w in (f"{host}:{g} {kind}", what, suspects.get(host, "")) if w)
            out.append(
                f'<rect x="{x + name_px + g * cell}" y="{y + 3}" width="{cell - 3}" height="{cell - 3}" fill="{fill}" '
                f'stroke="{stroke}"><title>{escape(title)}</title></rect>'
            )
    rows = (len(hosts) + per_row - 1) // per_row
    total = min(per_row, max(1, len(hosts))) * width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{rows * height + 4}" role="img" '
        f'aria-label="{label_of_all}" style="font:12px sans-serif;fill:currentColor">{"".join(out)}</svg>'
    )


def _table(rows: List[Tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th style='text-align:left'>{k}</th><td style='text-align:left'>{v}</td></tr>" for k, v in rows)
    return f"<table>{cells}</table>"


def plan(answer: Any) -> str:
    """The busiest links of a plan as bars."""
    busy = [(n / (c * 1e9) if c > 0 else 0.0, f"{a} > {b}", n) for a, b, c, n in answer.links if n]
    busy.sort(key=lambda b: (-b[0], b[1]))
    most = busy[0][0] if busy else 1.0
    bars = "".join(
        f"<tr><td>{escape(name)}</td><td><svg width='200' height='12'><rect width='{200 * s / most:.0f}' height='12' fill='#2f80ed'/></svg></td>"
        f"<td>{s * 1e3:.3f} ms</td><td>{n:,} bytes</td></tr>"
        for s, name, n in busy[:LINKS_MAX]
    )
    rows = [
        ("busiest link", f"{answer.congestion_s * 1e3:.3f} ms, {escape(answer.bottleneck)}"),
        ("no plan needs less than", f"{answer.lower_bound_s * 1e3:.3f} ms (gap {100 * answer.gap:.2f} %)"),
        ("rule", f"{escape(answer.rule)}, {answer.exceptions} exceptions"),
    ]
    return f"<div>{_table(rows)}<table>{bars}</table></div>"
