"""Foresees how a DAG goes on if everything that has not ended completes: which members follow each other the longest, and until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lattice.errors import Rejected
from lattice.models.conditions import CANCELLED, COMPLETED, FAILED
from lattice.units import parse_duration, parse_time
from lattice.views.allocation import Dependency
from lattice.views.dag import Member, MemberState
from lattice.workflow.dags import order_members
from lattice.workflow.edges import MET, Predecessor, condition_letter


@dataclass(frozen=True, slots=True)
class Outlook:
    """The forecast of a DAG: the members on its longest path, in their order, and its end (seconds since the epoch; None: unknown)."""

    path: tuple[str, ...] = ()
    end: float | None = None


@dataclass(slots=True)
class _Course:
    """The course of one member, known or foreseen: its final state, whether it runs, from when to when, and after which member."""

    state: str = COMPLETED
    runs: bool = True
    start: float = 0.0
    end: float | None = None
    after: str = ""


@dataclass(frozen=True)
class MemberTimes:
    """The known times of members, by name: the length of a run in seconds (None: without end), and the expected start."""

    seconds: Mapping[str, float | None] = field(default_factory=dict)
    starts: Mapping[str, float] = field(default_factory=dict)


def foresee(members: Sequence[Member], states: Mapping[str, MemberState], timing: MemberTimes, now: float) -> Outlook:
    """Returns the longest path through a DAG and its end, by the times that are known: ends of members that have ended, else their
    expected starts and the whole of their walltimes.

    What waits for a failure of work that has not ended is taken to be skipped. Raises Rejected for a cycle.
    """
    courses: dict[str, _Course] = {}
    for index in order_members(members):
        member = members[index]
        courses[member.name] = _course(member, states[member.name], courses, timing, now)
    running = [course for course in courses.values() if course.runs]
    ends = [course.end for course in running]
    known = [end for end in ends if end is not None]
    end = max(known) if known and len(known) == len(ends) else None
    last = ""
    for name, course in courses.items():  # of equal ends the one that comes after the others: times have whole seconds
        if course.runs and (not last or _late(course) >= _late(courses[last])):
            last = name
    path: list[str] = []
    while last:
        path.append(last)
        last = courses[last].after
    return Outlook(tuple(reversed(path)), end)


def _late(course: _Course) -> float:
    """Returns the end of a course; one without end comes last."""
    return float("inf") if course.end is None else course.end


def _course(member: Member, state: MemberState, courses: Mapping[str, _Course], timing: MemberTimes, now: float) -> _Course:
    """Returns how a member goes, from its state and from how those before it go."""
    before, ready = _released(member, courses)
    ended = parse_time(state.end_time) if state.end_time else now
    started = parse_time(state.start_time) if state.start_time else 0.0
    if state.phase in (COMPLETED, FAILED):
        return _Course(state.phase, True, started or ended, ended, before)
    if state.phase == CANCELLED:
        return _Course(CANCELLED, bool(started), started or ended, ended, before if started else "")
    if ready is None and not started:
        return _Course(CANCELLED, False, now, now)
    begin = started or max(now, ready or 0.0, timing.starts.get(member.name, 0.0))
    seconds = timing.seconds.get(member.name)
    return _Course(COMPLETED, True, begin, None if seconds is None else max(now, begin + seconds), before)


def _released(member: Member, courses: Mapping[str, _Course]) -> tuple[str, float | None]:
    """Returns the member after which this one may start, and when; None: never. An edge to work without end is met at its start alone."""
    if not member.depends_on:
        return "", 0.0
    order = {name: place for place, name in enumerate(courses)}
    met: list[tuple[float, int, str]] = []
    for edge in member.depends_on:
        at = _met(edge, courses.get(edge.ref))
        if at is not None:
            met.append((at, order[edge.ref], edge.ref))
        elif member.depends_on_mode != "Any":
            return "", None
    if not met:
        return "", None
    at, _, name = min(met) if member.depends_on_mode == "Any" else max(met)
    return name, at


def _met(edge: Dependency, before: _Course | None) -> float | None:
    """Returns when an edge is met; None: never, as far as can be foreseen."""
    if before is None:
        return None
    started = before.start if before.runs else 0.0
    if condition_letter(edge.condition, Predecessor("", before.state, started, before.end or 0.0)) != MET:
        return None
    at = before.start if edge.condition == "Started" else before.end
    if at is None:
        return None
    try:
        return at + (parse_duration(edge.delay) if edge.delay else 0.0)
    except Rejected:
        return at
