"""Counts the future use of nodes: running work until its walltime's end, expected starts, reserved windows."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Final

from lattice.scheduling.cluster.node_cache import indices_of
from lattice.scheduling.queries.answers import Point, Timeline
from lattice.scheduling.queries.context import QueryContext
from lattice.units import format_time

STEPS: Final = 96
SHORTEST: Final = 600.0
LONGEST: Final = 7 * 86400.0
"""The least and the most time that a timeline covers, seconds."""
SOON: Final = 86400.0
"""Windows that begin later than this, and after the end of all work, do not lengthen the timeline. Seconds."""
_NICE: Final = (10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0)

Span = tuple[float, float, int]
"""The use of nodes from one time until another (seconds since the epoch): how many."""


def timeline(context: QueryContext, vcluster: str = "") -> Timeline:
    """Returns the use of nodes from now on at 96 equal steps; of the home nodes of `vcluster`, if it has any, else of all nodes.

    Counts running work until its walltime's end, pending work with an expected start, and reservation windows.
    """
    home = vcluster if any(facts.home == vcluster for facts in context.nodes.values()) else ""
    shown = [facts for facts in context.nodes.values() if not home or facts.home == home]
    nodes, usable = frozenset(facts.index for facts in shown), sum(facts.usable for facts in shown)
    running = [
        (context.now, holder.end if holder.end is not None else float("inf"), count)
        for holder in context.holders.values()
        if (count := len(nodes.intersection(holder.nodes)))
    ]
    planned, too_early = _planned(context, vcluster if home else "")
    kept = [(window.start, window.end, len(nodes.intersection(indices_of(window.nodes)))) for window in context.state.windows]
    work = (*running, *planned)
    step = _step(context.now, work or too_early, kept)  # what begins hours later does not hide the next minutes
    at = [context.now + number * step for number in range(STEPS)]
    columns = [_in_use(spans, at, step) for spans in (running, [*planned, *too_early], kept)]
    points = [_point(moment, usable, *counts) for moment, *counts in zip(at, *columns, strict=True)]
    return Timeline(nodes=usable, step_seconds=step, points=points)


def _point(moment: float, usable: int, running: int, planned: int, reserved: int) -> Point:
    """Returns the use at one moment such that the counts together never exceed the usable nodes.

    Running work mostly ends before its walltime, so planned work may overlap it: planned and reserved nodes are cut to those left.
    """
    planned = min(planned, max(0, usable - running))
    return Point(at=format_time(moment), running=running, planned=planned, reserved=min(reserved, max(0, usable - running - planned)))


def _planned(context: QueryContext, vcluster: str) -> tuple[list[Span], list[Span]]:
    """Returns the expected runs of pending work as two lists: work that may start now, and work that is too early (not-before,
    back-off).
    """
    planned, too_early = list[Span](), list[Span]()
    for uid, candidate in context.candidates.items():
        expected = context.expected.get(uid)
        if expected is None or expected.p50 is None or (vcluster and candidate.vcluster != vcluster):
            continue
        length = candidate.walltime + candidate.grace if candidate.walltime is not None else float("inf")
        opens = max(candidate.not_before, candidate.back_off_until)
        begin = max(expected.p50, opens)
        (too_early if opens > context.now else planned).append((begin, begin + length, candidate.minimum))
    return planned, too_early


def _step(now: float, work: Iterable[Span], kept: Iterable[Span]) -> float:
    """Returns the length of a step in seconds, a round number with which the timeline covers all work, and windows that begin within a day
    or before that work ends; in all 10 minutes at least, 7 days at most.
    """
    last = _last(now, work)
    windows = [window for window in kept if window[0] <= max(last, now + SOON)]
    wanted = min(LONGEST, max(SHORTEST, max(last, _last(now, windows)) - now)) / STEPS
    return next((step for step in _NICE if step >= wanted), ceil(wanted / 3600) * 3600.0)


def _last(now: float, spans: Iterable[Span]) -> float:
    """Returns the last begin or end in these spans that is known and after `now`; `now` without any."""
    return max((moment for begin, end, _ in spans for moment in (begin, end) if now < moment < float("inf")), default=now)


def _in_use(spans: Iterable[Span], at: list[float], step: float) -> list[int]:
    """Returns the nodes in use at each of the times `at`, which are `step` seconds apart; a use is counted from the first of them at or
    after its begin to the last before its end.
    """
    changes = [0] * (len(at) + 1)
    for begin, end, count in spans:
        first = max(0, ceil((begin - at[0]) / step))
        last = len(at) if end == float("inf") else min(len(at), max(0, ceil((end - at[0]) / step)))
        if first < last:
            changes[first] += count
            changes[last] -= count
    total, counts = 0, []
    for change in changes[:-1]:
        total += change
        counts.append(total)
    return counts
