"""Measures cycles in which next to nothing starts, which is most of a scheduler's work: a long queue on a full machine.

The cost function, ten reservations, a walltime of its own for nearly each allocation, and in each cycle one new allocation; then the same
with reservation windows in the days to come, and below a quota tree of many groups. Process times, the median of repeats, beside the scan
over nodes of `core`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median
from typing import Final

from lattice.quota.amounts import NODES
from lattice.quota.forest import Forest, TreeSpec
from lattice.quota.groups import Group
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.outcomes import Placed
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import mask_of
from lattice_dev.bench.core import NOW, TENANTS, CoreScene, cost_function, instance, scan
from lattice_dev.bench.figures import Baseline, Figure

REPEATS: Final = 9
DEPTH: Final = 10
HOUR: Final = 3600.0
WIDTH: Final = 300
"""Nodes of a reservation window."""

Prepare = Callable[[CoreScene], None]
Say = Callable[[float], None]


def measure(*, quick: bool, say: Say) -> list[Figure]:
    """Returns the figures of a cycle of a waiting queue: plain, with windows, below a quota tree."""
    pending, nodes, groups = (300, 500, 100) if quick else (3_000, 5_000, 1_000)
    kinds: tuple[tuple[str, Prepare], ...] = (
        ("", lambda _made: None),
        (" with 8 windows", _windows),
        (f" below {groups:,} groups", lambda made: _tree(made, groups)),
    )
    found = []
    for step, (what, prepare) in enumerate(kinds, 1):
        made = instance(pending, nodes, depth=DEPTH)
        made.candidates[:] = [replace(one, walltime=60.0 * (10 + number % 1440)) for number, one in enumerate(made.candidates)]
        made.state.scorings["hpc"] = cost_function(made.state)
        prepare(made)
        found.append(_figure(made, f"cycle of what waits{what}, {pending:,} pending on {nodes:,} nodes"))
        say(step / len(kinds))
    return found


def _figure(made: CoreScene, name: str) -> Figure:
    """Returns the figure of a cycle in which one newcomer joins a long queue on a full machine; the scene is filled for it, and loses its
    last candidate.
    """
    state, last = made.state, made.candidates.pop()
    placed = _placed(decide(state, "hpc", made.candidates, NOW))
    for candidate in placed:
        state.put_holder(state.holders[candidate.uid])
    waiting = [one for one in made.candidates if one.uid not in state.holders]
    gc.collect()
    gc.freeze()
    try:
        times: list[float] = []
        for number in range(REPEATS + 1):
            newcomer = replace(last, uid=f"new{number}", key=f"t/new{number}", submitted=NOW + number)
            queue, now = [*waiting, newcomer], NOW + number
            began = time.process_time()
            outcomes = list(decide(state, "hpc", queue, now))
            times.append((time.process_time() - began) * 1e3)
            for candidate in _placed(outcomes):
                state.drop_holder(candidate.uid)
            if state.quota_usage is not None:
                state.quota_usage.drop(newcomer.uid)
        began = time.process_time()
        scan(state, waiting)
        naive = (time.process_time() - began) * 1e3
    finally:
        gc.unfreeze()
    return Figure(name, median(times[1:]), "ms", None, Baseline("naive scan", naive), f"{len(waiting):,} wait after the first cycle")


def _placed(outcomes: Iterable[object]) -> list[Candidate]:
    """Returns the candidates that outcomes placed."""
    return [outcome.candidate for outcome in outcomes if isinstance(outcome, Placed)]


def _windows(made: CoreScene) -> None:
    """Sets eight reservation windows of an hour each, one an hour from the fifth hour on, each on 300 nodes."""
    made.state.set_windows(
        ReservationWindow(f"w{day}", NOW + (5 + day) * HOUR, NOW + (6 + day) * HOUR, mask_of(range(day * 64, day * 64 + WIDTH)))
        for day in range(8)
    )


def _tree(made: CoreScene, groups: int) -> None:
    """Plants a group for each tenant, and others up to `groups` in all; each tenant's is guaranteed its part, and each may have a quarter
    of all.

    Puts the candidates into their tenants' groups.
    """
    state, nodes = made.state, len(made.state.node_cache.nodes)
    each = max(1, nodes // (2 * TENANTS))
    names = [f"t{number}" for number in range(groups)]
    least = [each if number < TENANTS else 0 for number in range(groups)]
    spec = TreeSpec(groups=tuple(Group(name, min={NODES: part}, max={NODES: nodes // 4}) for name, part in zip(names, least, strict=True)))
    made.candidates[:] = [replace(one, quota=one.tenant) for one in made.candidates]
    forest = Forest([spec])
    state.plant(forest)
    forest.capacity("", {NODES: nodes})
    assert state.quota_usage is not None, "it was planted"  # noqa: S101 - for the type checker
    state.quota_usage.ask(made.candidates, NOW)
