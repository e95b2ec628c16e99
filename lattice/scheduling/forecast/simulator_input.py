"""The input of the backfill simulator: free nodes by column, sets of columns, running work, queues, windows.

A column is a set of nodes that the same needs admit, so counts lose nothing. A set is what one need admits: some columns.
"""

from __future__ import annotations

from dataclasses import dataclass

BACKFILL, FIRST_FIT, IN_ORDER = "Backfill", "FirstFit", "InOrder"


@dataclass(frozen=True, slots=True)
class RunningWork:
    """Work that holds nodes: how many of each column; when it is expected, and when believed (by walltime), to end, seconds from now."""

    columns: tuple[tuple[int, int], ...]
    expected: float
    believed: float
    caps: tuple[tuple[int, int], ...] = ()
    """The caps that it uses, with the amounts that its end gives back."""


@dataclass(frozen=True, slots=True)
class Job:
    """One pending job: its set of columns (number), its nodes, its expected and believed durations in seconds.

    `after`: seconds from now before which it may not start.
    """

    columns: int
    nodes: int
    expected: float
    believed: float
    caps: tuple[tuple[int, int], ...] = ()
    after: float = 0.0
    window: int = -1
    """The number of the reservation window that it must run in; −1: none."""


@dataclass(frozen=True, slots=True)
class ColumnWindow:
    """A reservation window: columns that no other work may hold between two times, seconds from now."""

    start: float
    end: float
    columns: frozenset[int]


@dataclass(frozen=True)
class SimulatorInput:
    """All that a simulation reads: `free` nodes by column; `sets` of columns, in order of use; `room` left by cap; holders and queues."""

    free: tuple[int, ...]
    sets: tuple[tuple[int, ...], ...]
    held: tuple[RunningWork, ...]
    queues: tuple[tuple[Job, ...], ...]
    room: tuple[int, ...] = ()
    column_windows: tuple[ColumnWindow, ...] = ()
    modes: tuple[str, ...] = ()
    """The mode of each queue (BACKFILL, FIRST_FIT, IN_ORDER); empty: BACKFILL for all."""
