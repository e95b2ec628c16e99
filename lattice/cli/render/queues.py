"""Renders the queues and the planned use of nodes: a table a vcluster, and a plot that fits the terminal; pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from lattice.cli.render.answers import factor_list
from lattice.cli.render.text import Column, Painted, age, clock, plural, relative, span, start_cell, table
from lattice.scheduling.queries.answers import Entry, Point, Queue, Queues, Timeline, Window
from lattice.units import parse_time

_COLUMNS: Final = (
    Column("#", right=True),
    Column("ID", right=True),
    Column("NAME", shrink_to=12),
    Column("USER", shrink_to=6),
    Column("NODES", right=True),
    Column("WALLTIME", right=True, leave=2),
    Column("CLASS", right=True, leave=1),
    Column("SCORE", right=True),
    Column("WAITING", right=True),
    Column("START", right=True),
    Column("REASON", shrink_to=10),
    Column("FACTORS"),
    Column("MESSAGE", shrink_to=20),
)
_WINDOWS: Final = (Column("RESERVATION", shrink_to=12), Column("KIND"), Column("NODES", right=True), Column("START"), Column("END"))
_APART: Final = {
    "Held": "held", "NotBefore": "not before their time", "RetryBackOff": "delayed after a failure", "NeverFits": "that never fit",
    "NotAdmitted": "not admitted",
}  # fmt: skip
"""By reason, the words for pending work that no free nodes would start now; other reasons are shown as they are."""
PLOT_ROWS: Final = 8
RUNNING, PLANNED, RESERVED, IDLE = "█", "▒", "·", " "
_COLORS: Final = {RUNNING: "32", PLANNED: "33", RESERVED: "36"}
LEGEND: Final = f"{RUNNING} runs now, until its walltime ends   {PLANNED} pending, as expected   {RESERVED} reserved"


def queue_lines(found: Queues, *, now: float, width: int, plot_width: int, wide: bool, color: bool) -> list[str]:
    """Returns all tables, and the plot; `plot_width` 0 leaves the plot out."""
    lines: list[str] = []
    for queue in found.vclusters:
        lines += [*([""] if lines else []), *_queue(queue, now, width, wide, color)]
    if found.reservations:
        lines += ["", *table(_WINDOWS, [_window(one, now) for one in found.reservations], width=width)]
    if plot_width and found.timeline is not None and found.timeline.points:
        lines += ["", *plot(found.timeline, plot_width, color=color)]
    return lines


def _queue(queue: Queue, now: float, width: int, wide: bool, color: bool) -> list[str]:
    """Returns the lines of one queue: a head, a table of its entries, and how many were left out."""
    able = queue.pending - sum(queue.apart.values())
    parts = [
        f"{queue.vcluster}: {queue.policy}",
        f"{able} pending",
        *(f"{count} {_APART.get(reason, reason)}" for reason, count in queue.apart.items()),
        *([f"the first {queue.depth} that are blocked hold reservations"] if queue.depth and able else []),
    ]
    lines = [", ".join(parts)]
    if queue.entries:
        lines += table(_COLUMNS, [_entry(one, now, wide) for one in queue.entries], width=0 if wide else width, color=color)
    if queue.left_out:
        lines.append(f"… and {queue.left_out} more; --limit shows more of them")
    return lines


def _entry(one: Entry, now: float, wide: bool) -> list[str]:
    """Returns the cells of one entry: an allocation, or several of others taken together."""
    place = str(one.position) if one.position else ""
    if one.work is None:
        if one.position and one.count > 1:
            place = f"{one.position}-{one.position + one.count - 1}"
        return [place, "", f"{one.whose}: {plural(one.count, 'allocation')}", "", str(one.nodes), *([""] * 8)]
    nodes = f"{one.nodes}-{one.maximum}" if one.maximum is not None else str(one.nodes)
    return [
        place,
        str(one.work.number or ""),
        one.work.name,
        one.work.user,
        nodes,
        clock(one.walltime),
        str(one.preemption_class) if one.preemption_class is not None else "",
        f"{one.score.total:.3f}" if one.score is not None else "",
        age(one.submitted, now),
        start_cell(one.expected_start.p50, one.expected_start.p90, now) if one.expected_start is not None else "",
        one.reason,
        " ".join(factor_list(one.score)) if wide and one.score is not None else "",
        one.message if wide else "",
    ]


def _window(one: Window, now: float) -> list[str]:
    """Returns the cells of one Reservation's window."""
    kind = "maintenance" if one.maintenance else "reservation"
    start, end = (f"{moment} ({relative(moment, now)})" for moment in (one.start, one.end))
    return [one.name or "(of others)", kind, str(one.nodes), start, end]


# The plot


def plot(found: Timeline, width: int, *, color: bool) -> list[str]:
    """Returns the plot: nodes upwards, time to the right; each column is a step in time, each row a share of the nodes.

    Empty where there are no nodes and no work.
    """
    top = max([found.nodes, *(point.running + point.planned + point.reserved for point in found.points)])
    if top <= 0:
        return []
    margin = len(str(top)) + 1
    points = _resample(found.points, max(8, width - margin - 2))
    rows = min(PLOT_ROWS, top)
    lines = [f"Nodes to come ({found.nodes} can be used)"]
    for row in range(rows, 0, -1):
        cells = "".join(_cell(point, (row - 0.5) * top / rows) for point in points)
        name = str(round(row * top / rows)) if row in (rows, (rows + 1) // 2) else ""
        line = f"{name:>{margin}}┤{_painted(cells, color)}".rstrip()
        lines.append(Painted(line) if color else line)
    lines.append(" " * margin + "└" + "─" * len(points))
    lines.append(" " * (margin + 1) + _times(found, points, len(points)))
    lines.append(LEGEND)
    return lines


def _resample(points: Sequence[Point], count: int) -> list[Point]:
    """Returns `count` points, dropping or repeating some, so that the plot fills the width."""
    return [points[at * len(points) // count] for at in range(count)]


def _cell(point: Point, level: float) -> str:
    """Returns the mark of one cell of the plot: what the node at this level does at this point."""
    if level <= point.running:
        return RUNNING
    if level <= point.running + point.planned:
        return PLANNED
    return RESERVED if level <= point.running + point.planned + point.reserved else IDLE


def _painted(cells: str, color: bool) -> str:
    """Returns cells of the plot, coloured by their marks if asked for."""
    if not color:
        return cells
    runs = ((key, "".join(run)) for key, run in groupby(cells))
    return "".join(f"\x1b[{_COLORS[key]}m{text}\x1b[0m" if key in _COLORS else text for key, text in runs)


def _times(found: Timeline, points: Sequence[Point], width: int) -> str:
    """Returns the time axis: `now`, each quarter of the shown time, its end; those for which there is no room are left out."""
    begin = parse_time(found.points[0].at)
    text = "now"
    for quarter in (1, 2, 3):
        at = width * quarter // 4
        name = "+" + span(parse_time(points[at].at) - begin)
        if at > len(text) + 1 and at + len(name) < width:
            text = f"{text:<{at}}{name}"
    last = "+" + span(found.step_seconds * len(found.points))
    return text if len(text) + len(last) + 1 > width else f"{text:<{width - len(last)}}{last}"
