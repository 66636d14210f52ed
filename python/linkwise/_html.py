# SPDX-License-Identifier: Apache-2.0
"""Answers as HTML for notebooks: plain tables and inline SVG, no scripts, nothing from a network."""

from __future__ import annotations

from html import escape
from typing import Any, Dict, List, Set, Tuple

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
    hosts: List[Tuple[str, str, int]] = answer._hosts() if answer._hosts else []
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
    return f"<div>{_hosts(shown, chosen)}{_table(rows)}</div>"


def _hosts(hosts: List[Tuple[str, str, int]], chosen: Dict[str, Set[int]]) -> str:
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
            used = g in chosen.get(host, ())
            fill = "#76b900" if used else "none"
            title = f"{host}:{g} {kind}{', chosen' if used else ''}"
            out.append(
                f'<rect x="{x + name_px + g * cell}" y="{y + 3}" width="{cell - 3}" height="{cell - 3}" fill="{fill}" '
                f'stroke="#7b8794"><title>{escape(title)}</title></rect>'
            )
    rows = (len(hosts) + per_row - 1) // per_row
    total = min(per_row, max(1, len(hosts))) * width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{rows * height + 4}" role="img" '
        f'aria-label="hosts and chosen GPUs" style="font:12px sans-serif;fill:currentColor">{"".join(out)}</svg>'
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
