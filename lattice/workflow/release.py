"""Decides what becomes of work from the answers of its edges: it is queued, it waits, or it can never start."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lattice.units import parse_time
from lattice.views.allocation import AllocationSpec, Edge
from lattice.workflow.edges import MET, NEVER
from lattice.workflow.mutexes import MUTEX

WAITING_FOR_DEPENDENCY: Final = "WaitingForDependency"
FAILED: Final = "DependencyFailed"
NOT_NEEDED: Final = "DependencyNotNeeded"
LOST: Final = "DependencyLost"
MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Released:
    """Every edge that counts is met: the work may be queued."""


@dataclass(frozen=True, slots=True)
class EdgesAwaited:
    """Work waits, with this reason and sentence; `due`: when time alone changes that, seconds since the epoch; None: never."""

    reason: str
    message: str
    due: float | None = None


@dataclass(frozen=True, slots=True)
class EdgesUnmet:
    """Work depends on something that can never be met any more: it is cancelled with this reason and sentence."""

    reason: str
    message: str


EdgesVerdict = Released | EdgesAwaited | EdgesUnmet


def judge_edges(
    spec: AllocationSpec,
    edges: Sequence[Edge],
    now: float,
    *,
    lost: Collection[int] = (),
    numbers: Mapping[str, int] | None = None,
    has_mutexes: bool | None = None,
) -> EdgesVerdict:
    """Returns what becomes of work with this `spec`, whose edges stand in the order of `spec.dependsOn`, at `now` (epoch seconds).

    With `All` one edge that is never met decides, with `Any` the first that is met. `lost`: the edges, by index, of whose
    predecessor nobody knows anything any more. `numbers`: those of predecessors by uid, for the sentence. `has_mutexes`: whether it may
    have all its mutexes now, which it needs whatever the mode, once all else lets it go; None: where their edges show that it had them.
    """
    mutexes = {index for index, asked in enumerate(spec.depends_on) if asked.condition == MUTEX}
    verdict = _judge_events(
        spec, [edge for edge in edges if edge.index not in mutexes], len(spec.depends_on) - len(mutexes), now, lost, numbers
    )
    if not mutexes or not isinstance(verdict, Released):
        return verdict
    if has_mutexes is None:
        has_mutexes = all(edge.answer == MET for edge in edges if edge.index in mutexes)
    if has_mutexes:
        return verdict
    names = ", ".join(spec.depends_on[index].ref for index in sorted(mutexes))
    return EdgesAwaited(
        WAITING_FOR_DEPENDENCY, f"waits for mutex {names}: other work of its user has it, or was submitted before and waits for it"
    )


def _judge_events(
    spec: AllocationSpec, edges: Sequence[Edge], count: int, now: float, lost: Collection[int], numbers: Mapping[str, int] | None
) -> EdgesVerdict:
    """Returns what becomes of work by those of its edges (`count` are asked for) that wait for starts and ends."""
    if not count:
        return Released()
    any_suffices = spec.depends_on_mode == "Any"
    unmet = [edge for edge in edges if edge.answer and edge.answer != MET]
    delayed = [edge for edge in edges if edge.answer == MET and _due(edge) > now]
    met = [edge for edge in edges if edge.answer == MET and _due(edge) <= now]
    opened = [edge for edge in edges if not edge.answer]
    waits = [edge for edge in opened if edge.index not in lost]
    if len(met) == count or (any_suffices and met):
        return Released()
    known = numbers or {}
    if unmet and (not any_suffices or not (opened or delayed)):
        return _never(spec, unmet, known)
    gone = [edge for edge in opened if edge.index in lost]
    if gone and (not any_suffices or not (waits or delayed)):
        sentence = f"nobody knows how {_named(spec, gone, known)} ended: cancel it, or take spec.dependsOn away"
        return EdgesAwaited(LOST, sentence)
    due = min(map(_due, delayed), default=None)
    return EdgesAwaited(WAITING_FOR_DEPENDENCY, _awaited(spec, waits, delayed, known), due)


def is_released(spec: AllocationSpec, edges: Sequence[Edge], now: float) -> bool:
    """Tells whether work with these edges may be queued at `now`, in seconds since the epoch."""
    return isinstance(judge_edges(spec, edges, now), Released)


def _never(spec: AllocationSpec, unmet: Sequence[Edge], numbers: Mapping[str, int]) -> EdgesVerdict:
    """Returns the end, or with `onUnmet: Hold` the wait, of work whose edges (`unmet`) can never be met."""
    failed = [edge for edge in unmet if edge.answer == NEVER]
    reason = FAILED if failed else NOT_NEEDED
    sentence = f"{_named(spec, failed or unmet, numbers)} can never be met any more"
    if spec.on_unmet == "Hold":
        return EdgesAwaited(reason, f"{sentence}; it is held: cancel it, or take spec.dependsOn away")
    return EdgesUnmet(reason, sentence)


def _awaited(spec: AllocationSpec, waits: Sequence[Edge], delayed: Sequence[Edge], numbers: Mapping[str, int]) -> str:
    """Returns the sentence on what work waits for: the open edges first, then the delays that run."""
    parts = [_named(spec, waits, numbers)] if waits else []
    parts += [f"the delay of {_named(spec, delayed, numbers)} until {max(edge.due or '' for edge in delayed)}"] if delayed else []
    how = "the first of " if spec.depends_on_mode == "Any" and len(spec.depends_on) > 1 else ""
    left = len(waits) + len(delayed)
    return f"waits for {how}{' and '.join(parts)} ({left} of {len(spec.depends_on)} open)"


def _named(spec: AllocationSpec, edges: Sequence[Edge], numbers: Mapping[str, int]) -> str:
    """Returns edges in words, five at most, and how many more there are: `Success of prep (12), Any of 13`."""
    more = f" and {len(edges) - MOST_NAMED} more" if len(edges) > MOST_NAMED else ""
    return ", ".join(_words(spec, edges[:MOST_NAMED], numbers)) + more


def _words(spec: AllocationSpec, edges: Sequence[Edge], numbers: Mapping[str, int]) -> Iterator[str]:
    """Yields each edge in words: its condition, what it names, and the number of that, with its delay."""
    for edge in edges:
        asked = spec.depends_on[edge.index]
        number = numbers.get(edge.uid, 0)
        beside = f" ({number})" if number and str(number) != asked.ref else ""
        late = f" + {asked.delay}" if asked.delay else ""
        yield f"{asked.condition} of {asked.ref}{beside}{late}"


def _due(edge: Edge) -> float:
    """Returns when the delay of a met edge is over, seconds since the epoch; 0 without one."""
    return parse_time(edge.due) if edge.due else 0.0


@dataclass(frozen=True, slots=True)
class EdgesJudged:
    """The edges of pending work as they stand now, and what follows; `unwritten`: its status does not show them so yet.

    `urgent`: a predecessor that is being deleted waits until the status shows its answer.
    """

    edges: tuple[Edge, ...] = ()
    verdict: EdgesVerdict = Released()
    unwritten: bool = False
    urgent: bool = False


WITHOUT_EDGES: Final = EdgesJudged()
"""Of work that depends on nothing."""
