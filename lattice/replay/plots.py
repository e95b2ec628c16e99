"""Draws pictures of a replay as PNG or SVG: utilisation over time, waiting by size, who ran where (needs matplotlib).

Equal replays give equal bytes: no date, no version and no random identifier is written.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum, log2
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from lattice.errors import Rejected
from lattice.replay.measures import Ran, Replayed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS: Final = 6000
"""With more bars than this the picture of groups shows shares instead of jobs."""
_SLOTS: Final = 400
_HOUR: Final = 3600.0
_LONG_HOURS: Final = 96
"""A longer time is shown in days."""
_OTHERS: Final = "all other tenants"
_GREY: Final = "#d0d0d0"
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
    """Returns the pictures of a replay in which a job ran, by file name; `suffix`: png or svg.

    Raises Rejected (`NotInstalled`) without matplotlib.
    """
    draws: dict[str, Callable[[Figure, Replayed], None]] = {
        "utilisation": _utilisation,
        "waiting-by-size": _waiting,
        "groups": _groups,
    }
    return {f"{name}.{suffix}": _bytes(draw, done, suffix) for name, draw in draws.items()}


def _bytes(draw: Callable[[Figure, Replayed], None], done: Replayed, suffix: str) -> bytes:
    """Returns what a function draws, as PNG or SVG; equal replays give equal bytes. Raises Rejected without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Rejected("plots need matplotlib: pip install 'lattice-hpc[plots]'", reason="NotInstalled") from error
    with mpl.rc_context({"svg.hashsalt": "lattice", "svg.fonttype": "none", "font.family": "DejaVu Sans", "path.simplify": True}):
        figure: Figure = Figure(figsize=(11, 6), layout="constrained")
        draw(figure, done)
        out = io.BytesIO()
        metadata: dict[str, Any] = {"Software": None} if suffix == "png" else {"Date": None, "Creator": None}
        figure.savefig(out, format=suffix, dpi=110, metadata=metadata)
    return out.getvalue()


@dataclass(frozen=True)
class _Time:
    """The time axis of a picture: from the first submission to the last end, in hours or days, divided into 400 slots."""

    first: float
    last: float

    @classmethod
    def spanning(cls, ran: Sequence[Ran]) -> _Time:
        """Returns the axis that spans these jobs."""
        return cls(min(each.job.submit for each in ran), max(each.end for each in ran))

    @property
    def step(self) -> float:
        """Returns the seconds of one slot."""
        return max(self.last - self.first, 1.0) / _SLOTS

    @property
    def unit(self) -> tuple[float, str]:
        """Returns the seconds of the axis's unit, and its name."""
        return (_HOUR, "hours") if self.last - self.first <= _LONG_HOURS * _HOUR else (24 * _HOUR, "days")

    @property
    def label(self) -> str:
        """Returns the label of the axis."""
        return f"{self.unit[1]} since the first submission"

    @property
    def end(self) -> float:
        """Returns the position of the last end on the axis."""
        return self.at(max(self.last, self.first + 1))

    def at(self, moment: float) -> float:
        """Returns the position of a moment on the axis."""
        return (moment - self.first) / self.unit[0]

    def slots(self) -> list[float]:
        """Returns the position of the middle of each slot."""
        return [self.at(self.first + (slot + 0.5) * self.step) for slot in range(_SLOTS)]


def _spread(rows: Iterable[tuple[float, float, float]], time: _Time) -> list[float]:
    """Returns the mean level in each slot of rows (begin, end, height)."""
    levels = [0.0] * _SLOTS
    for begin, end, height in rows:
        low, high = (begin - time.first) / time.step, (end - time.first) / time.step
        at, last = int(low), min(int(high), _SLOTS - 1)
        if at >= last:
            levels[min(at, _SLOTS - 1)] += height * (high - low)
            continue
        levels[at] += height * (at + 1 - low)
        for slot in range(at + 1, last):
            levels[slot] += height
        levels[last] += height * (high - last)
    return levels


def _utilisation(figure: Figure, done: Replayed) -> None:
    """Draws the share of nodes held over time, and below it the nodes that waiting jobs ask for."""
    time, nodes = _Time.spanning(done.ran), len(done.nodes)
    held = _spread(((each.start, each.end, len(each.nodes)) for each in done.ran), time)
    waiting = _spread(((each.job.submit, each.start, each.job.nodes) for each in done.ran), time)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.fill_between(time.slots(), [100 * level / nodes for level in held], step="mid", color=_INK, alpha=0.75, linewidth=0)
    above.set(title="Utilisation over time", ylabel=f"% of {nodes} nodes held", xlim=(0, time.end), ylim=(0, 105))
    below.fill_between(time.slots(), waiting, step="mid", color=_MARKS[1], alpha=0.75, linewidth=0)
    below.axhline(nodes, color="black", linewidth=0.8, linestyle="--", label=f"all {nodes} nodes")
    below.set(xlabel=time.label, ylabel="nodes asked for\nby what waits", ylim=(0, 1.05 * max(nodes, *waiting)))
    below.legend(loc="upper right")


def _waiting(figure: Figure, done: Replayed) -> None:
    """Draws a point for each job, nodes against wait, coloured by preemption class, and the median by size.

    Waits below a second are drawn at one second.
    """
    axes = figure.subplots()
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
    sizes, medians = _medians(done.ran)
    axes.plot(sizes, medians, color="black", marker="D", markersize=5, linewidth=1, label="median, by powers of 2")
    most = max(len(each.nodes) for each in done.ran)
    axes.set(xlabel="nodes", ylabel="wait", title="Waiting by size", xscale="log", yscale="log", xlim=(0.85, max(most, 2) * 1.18))
    ticks = [1 << power for power in range(most.bit_length())]
    axes.set_xticks(ticks, [str(size) for size in ticks], minor=False)
    axes.set_xticks([], minor=True)
    longest = max(each.wait for each in done.ran)
    waits = [at for at in range(len(_WAITS)) if at == 0 or _WAITS[at - 1][0] < longest]
    axes.set_yticks([_WAITS[at][0] for at in waits], [_WAITS[at][1] for at in waits], minor=False)
    axes.set_yticks([], minor=True)
    _legend(figure, axes)


def _medians(ran: Sequence[Ran]) -> tuple[list[float], list[float]]:
    """Returns sizes and median waits (1 s at least) of the jobs of 1, 2–3, 4–7, … nodes, without empty groups; each size is the geometric
    mean.
    """
    waits: dict[int, list[Ran]] = {}
    for each in ran:
        waits.setdefault(len(each.nodes).bit_length(), []).append(each)
    bins = [waits[power] for power in sorted(waits)]
    sizes = [2 ** (fsum(log2(len(each.nodes)) for each in mine) / len(mine)) for mine in bins]
    return sizes, [max(median(each.wait for each in mine), 1.0) for mine in bins]


def _legend(figure: Figure, axes: Axes) -> None:
    """Draws the legend beside the picture, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", markerscale=2)


def _groups(figure: Figure, done: Replayed) -> None:
    """Draws a bar for each run of neighbouring nodes; with very many nodes, the held share of each group."""
    axes, time = figure.subplots(), _Time.spanning(done.ran)
    order = sorted(range(len(done.nodes)), key=lambda at: (done.nodes[at].group, at))
    row = {done.nodes[at].index: place for place, at in enumerate(order)}
    bars = [(each, run) for each in done.ran for run in _runs(sorted(row[node] for node in each.nodes))]
    edges = [place for place in range(1, len(order)) if done.nodes[order[place]].group != done.nodes[order[place - 1]].group]
    names = list(dict.fromkeys(done.nodes[at].group for at in order))
    if len(bars) <= MOST_BARS:
        _draw_bars(figure, axes, done, bars, time)
        for edge in edges:
            axes.axhline(edge, color="black", linewidth=0.6)
    else:
        _draw_shares(figure, axes, done, names, time)
    starts = [0, *edges] if len(bars) <= MOST_BARS else list(range(len(names)))
    ends = [*edges, len(order)] if len(bars) <= MOST_BARS else [place + 1 for place in starts]
    if len(names) <= 60:
        axes.set_yticks([(low + high) / 2 for low, high in zip(starts, ends, strict=True)], names)
    axes.set(xlabel=time.label, ylabel="topology group", title="Who ran where")


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (first row, length) of each run of consecutive rows."""
    found: list[tuple[int, int]] = []
    for place in rows:
        if found and sum(found[-1]) == place:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((place, 1))
    return found


def _coloured(ran: Sequence[Ran]) -> dict[str, str]:
    """Returns the colours of the tenants that used the most nodes, as many as there are colours; others have none of their own."""
    used: dict[str, float] = {}
    for each in ran:
        used[each.job.tenant] = used.get(each.job.tenant, 0.0) + len(each.nodes) * (each.end - each.start)
    most = sorted(used, key=lambda tenant: (-used[tenant], tenant))[: len(_MARKS)]
    return dict(zip(sorted(most), _MARKS, strict=False))


def _draw_bars(figure: Figure, axes: Axes, done: Replayed, bars: Sequence[tuple[Ran, tuple[int, int]]], time: _Time) -> None:
    """Draws a rectangle for each stretch of nodes that a job held, coloured by tenant; small tenants share one colour."""
    from matplotlib.collections import PolyCollection

    colours = _coloured(done.ran)
    corners: dict[str, list[list[tuple[float, float]]]] = {tenant: [] for tenant in [*colours, _OTHERS]}
    for each, (low, count) in bars:
        left, right = time.at(each.start), time.at(each.end)
        tenant = each.job.tenant if each.job.tenant in colours else _OTHERS
        corners[tenant].append([(left, low), (right, low), (right, low + count), (left, low + count)])
    for tenant, mine in corners.items():
        if mine:
            colour = colours.get(tenant, _GREY)
            axes.add_collection(PolyCollection(mine, facecolors=colour, edgecolors="white", linewidths=0.3, label=tenant))
    axes.set(xlim=(0, time.end), ylim=(0, len(done.nodes)))
    _legend(figure, axes)


def _draw_shares(figure: Figure, axes: Axes, done: Replayed, names: Sequence[str], time: _Time) -> None:
    """Draws for each group of nodes which share of them was held over time."""
    group_of = {facts.index: facts.group for facts in done.nodes}
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for each in done.ran:
        for name, count in Counter(map(group_of.__getitem__, each.nodes)).items():
            rows[name].append((each.start, each.end, count))
    sizes = Counter(group_of.values())
    shares = [[level / sizes[name] for level in _spread(rows[name], time)] for name in names]
    image = axes.imshow(shares, aspect="auto", origin="lower", extent=(0, time.end, 0, len(names)), vmin=0, vmax=1, cmap="viridis")
    figure.colorbar(image, ax=axes, label="share of the group's nodes held")
