"""Follows allocations until they have ended, or until some other condition is true of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from lattice.cli.render.allocations import label, state_line
from lattice.errors import Expired, NotFound, Retry
from lattice.kube.cluster import EventKind
from lattice.kube.resources import ALLOCATIONS
from lattice.scheduling.queries.status_rows import is_final
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

PAUSE = 1.0
BETWEEN_WATCHES = 0.1
PATIENCE = 120.0
"""Seconds that an API server may be away before following gives up."""
NOTE_AFTER = 5.0
"""Seconds after which the person is told that the API server is away."""
LOOK_AGAIN_SECONDS = 60
"""Time after which a silent watch is replaced by a new read: after a restore of etcd it would stay silent for ever."""


def changes(console: Console, one: Allocation, *, deadline: float | None = None) -> Iterator[Allocation]:
    """Yields the allocation now and after each change, until the deadline (seconds since the epoch; None: for ever), once at least.

    Raises NotFound when it is deleted, or another object has its name, and Retry when the API server is away for two minutes, of which a
    note tells after 5 s.
    """
    outside, last, away_since, noted = console.outside, "", 0.0, False
    while True:
        try:
            for now in _read_and_watch(console, one, deadline):
                away_since = 0.0
                if one.metadata.uid and now.metadata.uid != one.metadata.uid:
                    raise NotFound(f"allocation {label(one)} was deleted, and another one has its name", reason="AllocationNotFound")
                if now.metadata.resource_version != last:
                    last = now.metadata.resource_version
                    yield now
        except Retry as error:
            if not away_since:
                away_since, noted = outside.now(), False
            if outside.now() - away_since > PATIENCE:
                raise
            if not noted and outside.now() - away_since >= NOTE_AFTER:
                console.note(f"Note: the API server has been away for {NOTE_AFTER:.0f} s; trying again for {PATIENCE / 60:.0f} min")
                noted = True
            outside.sleep(error.after_seconds or PAUSE)
        except Expired:
            outside.sleep(PAUSE)
        if deadline is not None and outside.now() >= deadline:
            return
        outside.sleep(BETWEEN_WATCHES)


def _read_and_watch(console: Console, one: Allocation, deadline: float | None) -> Iterator[Allocation]:
    """Yields the allocation from a read of etcd, then from one watch, until the watch ends. Raises NotFound where it is deleted."""
    name, namespace = one.metadata.name, one.metadata.namespace
    now = console.cluster.get(ALLOCATIONS, name, namespace, type=Allocation)
    yield now
    left = LOOK_AGAIN_SECONDS if deadline is None else min(LOOK_AGAIN_SECONDS, math.ceil(deadline - console.outside.now()))
    if left <= 0:
        return
    events = console.cluster.watch(
        ALLOCATIONS,
        namespace,
        type=Allocation,
        resource_version=now.metadata.resource_version,
        fields=f"metadata.name={name}",
        timeout_seconds=left,
    )
    with closing(events):
        for event in events:
            if event.kind is EventKind.DELETED:
                raise NotFound(f"allocation {label(one)} was deleted", reason="AllocationNotFound")
            if event.object is not None:
                yield event.object


def until(
    console: Console, one: Allocation, done: Callable[[Allocation], bool], *, deadline: float | None = None, notes_changes: bool = False
) -> Allocation | None:
    """Returns the allocation once `done` is true of it; None: the deadline came first. `notes_changes` prints each change of state.

    Raises as `changes` does.
    """
    said = ""
    for now in changes(console, one, deadline=deadline):
        line = f"{label(now)} {state_line(now)}"
        if notes_changes and line != said:
            console.complain(line)
            said = line
        if done(now):
            return now
    return None


def until_final(console: Console, one: Allocation, *, deadline: float | None = None, notes_changes: bool = False) -> Allocation | None:
    """Returns the allocation once it has ended for good; None: the deadline came first. `notes_changes` prints each change of state.

    Raises as `changes` does.
    """
    return until(console, one, is_final, deadline=deadline, notes_changes=notes_changes)
