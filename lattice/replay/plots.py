"""Pictures of a replay as bytes of PNG or SVG: utilisation over time, waiting by size, who ran where (needs matplotlib).

Equal replays give equal bytes: no date, no version and no random identifier is written.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from lattice.errors import Rejected
from lattice.replay.measures import Ran, Replayed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES: Final = ("png", "svg")
MOST_BARS: Final = 6000
"""With more bars than this the picture of groups shows shares instead of jobs."""
_SLOTS: Final = 400
_HOUR: Final = 3600.0
_INK: Final = "#1f4e79"
_WAITS: Final = (
    (1, "≤ 1 s"),
    (10, "10 s"),
    (60, "1 min"),
    (600, "10 min"),
    (3600, "1 h"),
    (36_000, "10 h"),
    (86_400, "1 d"),
    (604_800, "7 d"),
)
_MARKS: Final = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f", "#ff9da7", "#bab0ac")


def pictures(done: Replayed, suffix: str) -> dict[str, bytes]:
    """File names and contents; Rejected (`NotInstalled`) without matplotlib."""
    draws: dict[str, Callable[[Axes, Replayed], None]] = {
        "utilisation": _utilisation,
        "waiting-by-size": _waiting,
        "groups": _groups,
    }
    return {f"{name}.{suffix}": _bytes(draw, done, suffix) for name, draw in draws.items()}


def _bytes(draw: Callable[[Axes, Replayed], None], done: Replayed, suffix: str) -> bytes:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Rejected("plots need matplotlib: pip install 'lattice-hpc[plots]'", reason="NotInstalled") from error
    with mpl.rc_context({"svg.hashsalt": "lattice", "svg.fonttype": "none", "font.family": "DejaVu Sans", "path.simplify": True}):
        figure: Figure = Figure(figsize=(11, 6), layout="constrained")
        draw(figure.subplots(), done)
        out = io.BytesIO()
        metadata: dict[str, Any] = {"Software": None} if suffix == "png" else {"Date": None, "Creator": None}
        figure.savefig(out, format=suffix, dpi=110, metadata=metadata)
    return out.getvalue()


def _bounds(ran: Sequence[Ran]) -> tuple[float, float]:
    return min(each.job.submit for each in ran), max(each.end for each in ran)


def _spread(rows: Sequence[tuple[float, float, float]], first: float, step: float) -> list[float]:
    """The mean level of each slot, of rows (begin, end, height)."""
    levels = [0.0] * _SLOTS
    for begin, end, height in rows:
        low, high = (begin - first) / step, (end - first) / step
        at, last = int(low), min(int(high), _SLOTS - 1)
        if at >= last:
            levels[min(at, _SLOTS - 1)] += height * (high - low)
            continue
        levels[at] += height * (at + 1 - low)
        for slot in range(at + 1, last):
            levels[slot] += height
        levels[last] += height * (high - last)
    return levels


def _utilisation(axes: Axes, done: Replayed) -> None:
    """Nodes held, and nodes asked for by what waits."""
    first, last = _bounds(done.ran)
    step = max(last - first, 1.0) / _SLOTS
    hours = [(slot + 0.5) * step / _HOUR for slot in range(_SLOTS)]
    held = _spread([(each.start, each.end, len(each.nodes)) for each in done.ran], first, step)
    waiting = _spread([(each.job.submit, each.start, each.job.nodes) for each in done.ran], first, step)
    axes.fill_between(hours, held, step="mid", color=_INK, alpha=0.75, label="held")
    axes.plot(hours, waiting, color=_MARKS[1], linewidth=1, label="asked for by what waits")
    axes.axhline(len(done.nodes), color="black", linewidth=0.8, linestyle="--", label=f"{len(done.nodes)} nodes")
    axes.set(xlabel="hours since the first submission", ylabel="nodes", title="Utilisation over time", xlim=(0, hours[-1]))
    if max(waiting) > 20 * len(done.nodes):
        axes.set_yscale("symlog", linthresh=len(done.nodes))
    axes.legend(loc="upper right")


def _waiting(axes: Axes, done: Replayed) -> None:
    """One point a job: nodes against wait, coloured by preemption class; waits below a second stand at one."""
    classes = sorted({each.job.preemption_class for each in done.ran})
    for place, number in enumerate(classes):
        mine = [each for each in done.ran if each.job.preemption_class == number]
        axes.scatter(
            [len(each.nodes) for each in mine],
            [max(each.wait, 1.0) for each in mine],
            s=10,
            alpha=0.5,
            linewidths=0,
            color=_MARKS[place % len(_MARKS)],
            label=f"class {number}",
            rasterized=len(done.ran) > MOST_BARS,
        )
    axes.set(xlabel="nodes", ylabel="wait", title="Waiting by size", xscale="log", yscale="log")
    most = max(len(each.nodes) for each in done.ran)
    sizes = [1 << power for power in range(most.bit_length() + 1) if (1 << power) <= 2 * most]
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.set_xticks([], minor=True)
    longest = max(each.wait for each in done.ran)
    waits = [at for at in range(len(_WAITS)) if at == 0 or _WAITS[at - 1][0] < longest]
    axes.set_yticks([_WAITS[at][0] for at in waits], [_WAITS[at][1] for at in waits], minor=False)
    axes.set_yticks([], minor=True)
    axes.legend(loc="upper left", markerscale=2)


def _groups(axes: Axes, done: Replayed) -> None:
    """Who ran where: a bar for each run of neighbouring nodes; with very many, the share of each group that is held."""
    order = sorted(range(len(done.nodes)), key=lambda at: (done.nodes[at].group, at))
    row = {done.nodes[at].index: place for place, at in enumerate(order)}
    bars = [(each, run) for each in done.ran for run in _runs(sorted(row[node] for node in each.nodes))]
    edges = [place for place in range(1, len(order)) if done.nodes[order[place]].group != done.nodes[order[place - 1]].group]
    names = list(dict.fromkeys(done.nodes[at].group for at in order))
    if len(bars) <= MOST_BARS:
        _draw_bars(axes, done, bars, len(order))
        for edge in edges:
            axes.axhline(edge, color="black", linewidth=0.6)
    else:
        _draw_shares(axes, done, names)
    starts = [0, *edges] if len(bars) <= MOST_BARS else list(range(len(names)))
    ends = [*edges, len(order)] if len(bars) <= MOST_BARS else [place + 1 for place in starts]
    if len(names) <= 60:
        axes.set_yticks([(low + high) / 2 for low, high in zip(starts, ends, strict=True)], names)
    axes.set(xlabel="hours since the first submission", ylabel="topology group", title="Who ran where")


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """First row and length of each run of neighbours, of ascending rows."""
    found: list[tuple[int, int]] = []
    for place in rows:
        if found and sum(found[-1]) == place:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((place, 1))
    return found


def _draw_bars(axes: Axes, done: Replayed, bars: Sequence[tuple[Ran, tuple[int, int]]], rows: int) -> None:
    from matplotlib.collections import PolyCollection

    first, last = _bounds(done.ran)
    tenants = sorted({each.job.tenant for each in done.ran})
    for at, tenant in enumerate(tenants):
        corners = [
            [
                ((each.start - first) / _HOUR, low),
                ((each.end - first) / _HOUR, low),
                ((each.end - first) / _HOUR, low + count),
                ((each.start - first) / _HOUR, low + count),
            ]
            for each, (low, count) in bars
            if each.job.tenant == tenant
        ]
        color = _MARKS[at % len(_MARKS)]
        axes.add_collection(PolyCollection(corners, facecolors=color, edgecolors="white", linewidths=0.3, label=tenant))
    axes.set(xlim=(0, (last - first) / _HOUR), ylim=(0, rows))
    if len(tenants) <= 12:
        axes.legend(loc="upper right")


def _draw_shares(axes: Axes, done: Replayed, names: Sequence[str]) -> None:
    first, last = _bounds(done.ran)
    step = max(last - first, 1.0) / _SLOTS
    group_of = {facts.index: facts.group for facts in done.nodes}
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for each in done.ran:
        counts: dict[str, int] = {}
        for node in each.nodes:
            counts[group_of[node]] = counts.get(group_of[node], 0) + 1
        for name, count in counts.items():
            rows[name].append((each.start, each.end, count))
    sizes = {name: sum(facts.group == name for facts in done.nodes) for name in names}
    shares = [[level / sizes[name] for level in _spread(rows[name], first, step)] for name in names]
    image = axes.imshow(
        shares, aspect="auto", origin="lower", extent=(0, (last - first) / _HOUR, 0, len(names)), vmin=0, vmax=1, cmap="viridis"
    )
    figure = axes.get_figure()
    if figure is not None:
        figure.colorbar(image, ax=axes, label="share of the group's nodes held")
