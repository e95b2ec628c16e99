"""Following allocations until they have ended, or until something else is true of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from lattice.cli.allocation_rows import is_final, label, phase_of, where_or_why
from lattice.errors import NotFound, Retry
from lattice.kube.resources import ALLOCATIONS
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
PATIENCE = 120.0
"""How long an API server may be away before following gives up."""


def changes(console: Console, one: Allocation, *, deadline: float | None = None) -> Iterator[Allocation]:
    """The allocation now and after each change, until the deadline; NotFound when it is deleted, or another one has its name.

    Asks at once, then ever more rarely while nothing changes, so that a long wait costs the server little.
    """
    pause, last, unreachable_since = FIRST_PAUSE, "", 0.0
    outside = console.outside
    while True:
        try:
            now = console.cluster.get(ALLOCATIONS, one.metadata.name, one.metadata.namespace, type=Allocation)
        except Retry as error:
            unreachable_since = unreachable_since or outside.now()
            if outside.now() - unreachable_since > PATIENCE:
                raise
            pause = max(pause, error.after_seconds or 1.0)
        else:
            unreachable_since = 0.0
            if one.metadata.uid and now.metadata.uid != one.metadata.uid:
                raise NotFound(f"allocation {label(one)} was deleted, and another one has its name", reason="AllocationNotFound")
            if now.metadata.resource_version != last or not last:
                last, pause = now.metadata.resource_version, FIRST_PAUSE
                yield now
        if deadline is not None and outside.now() >= deadline:
            return
        outside.sleep(pause if deadline is None else max(0.0, min(pause, deadline - outside.now())))
        pause = min(LONGEST_PAUSE, pause * 1.5)


def until(
    console: Console, one: Allocation, done: Callable[[Allocation], bool], *, deadline: float | None = None, tell: bool = False
) -> Allocation | None:
    """The allocation once `done` is true of it; None when the deadline came first. `tell` notes each change of state."""
    said = ""
    for now in changes(console, one, deadline=deadline):
        line = f"{label(now)} {phase_of(now)} {where_or_why(now)}".rstrip()
        if tell and line != said:
            console.complain(line)
            said = line
        if done(now):
            return now
    return None


def until_final(console: Console, one: Allocation, *, deadline: float | None = None, tell: bool = False) -> Allocation | None:
    """The allocation once it has ended for good; None when the deadline came first."""
    return until(console, one, is_final, deadline=deadline, tell=tell)
