"""Judges the graph of a DAG and orders its members; says how a DAG has ended, from how its members have (decisions, "DAG state")."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lattice.errors import Rejected
from lattice.models.conditions import CANCELLED, COMPLETED, FAILED, RUNNING
from lattice.models.forms import FORMS
from lattice.units import shown
from lattice.views.dag import Counts, Member, MemberState

MOST_MEMBERS: Final = 1000
"""Most members of a DAG, where the site sets no other limit."""
SKIPPED_ENDS: Final = frozenset({"DependencyFailed", "DependencyNotNeeded"})
"""Ends of members that never started since their edges could not be met."""
FINAL: Final = frozenset({COMPLETED, FAILED, CANCELLED})
_CATCHING: Final = frozenset({"Failure", "Any"})
_MOST_NAMED: Final = 12
"""Most members that the sentence on a cycle names."""


def check_graph(members: Sequence[Member], most: int = MOST_MEMBERS) -> None:
    """Raises Rejected for members that are no graph: none, more than `most`, a name that is none or comes twice, an edge to nobody, to
    itself or twice, a cycle; its `fields` say where.
    """
    if not members:
        raise _wrong("DagInvalid", "a DAG has no members (least: 1): name at least one", "spec.members")
    if len(members) > most:
        sentence = f"DAG exceeds maximum size ({len(members)} allocations, limit: {most}). Hint: Split the workflow into smaller DAGs"
        raise _wrong("DagTooLarge", f"{sentence}, or ask the operators to raise scheduling.maxDagSize", "spec.members")
    places: dict[str, int] = {}
    for index, member in enumerate(members):
        field = f"spec.members[{index}].name"
        if not FORMS["member"].matches(member.name):
            raise _wrong("DagInvalid", FORMS["member"].refusal(field, member.name), field)
        if member.name in places:
            sentence = f'{field}: "{member.name}" is the name of spec.members[{places[member.name]}] already: each has one of its own'
            raise _wrong("DagInvalid", sentence, field)
        places[member.name] = index
    for index, member in enumerate(members):
        _check_edges(f"spec.members[{index}].dependsOn", member, places)
    order_members(members)


def _check_edges(field: str, member: Member, places: Mapping[str, int]) -> None:
    """Raises Rejected for the first edge of a member to nobody, to itself, or that comes twice."""
    seen: set[tuple[str, str]] = set()
    for place, edge in enumerate(member.depends_on):
        at = f"{field}[{place}].ref"
        if edge.ref == member.name:
            raise _wrong("DagInvalid", f'{at}: member "{member.name}" waits for itself: take the edge out', at)
        if edge.ref not in places:
            hint = "edges name members of the same DAG"
            raise _wrong("DagInvalid", f'{at}: {shown(edge.ref)} is no member ("{member.name}" waits for it): {hint}', at)
        if (edge.ref, edge.condition) in seen:
            raise _wrong("DagInvalid", f'{at}: "{member.name}" waits for {edge.condition} of "{edge.ref}" twice: write it once', at)
        seen.add((edge.ref, edge.condition))


def order_members(members: Sequence[Member]) -> tuple[int, ...]:
    """Returns the places of the members in an order in which each comes after those that it waits for, else as they were written.

    Raises Rejected with the path of a cycle. Edges to unknown members are passed over.
    """
    places = {member.name: index for index, member in enumerate(members)}
    after: dict[int, list[int]] = {}
    left: list[int] = []
    for index, member in enumerate(members):
        before = {places[edge.ref] for edge in member.depends_on if edge.ref in places}
        left.append(len(before))
        for one in before:
            after.setdefault(one, []).append(index)
    ready = [index for index, count in enumerate(left) if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for follower in after.get(index, ()):
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, follower)
    if len(order) < len(members):
        path = _cycle(members, places, {index for index, count in enumerate(left) if count})
        raise _wrong(
            "DagCycle", f"spec.members: {path} is a cycle: none of them could ever start; take one of its edges out", "spec.members"
        )
    return tuple(order)


def _cycle(members: Sequence[Member], places: Mapping[str, int], stuck: set[int]) -> str:
    """Returns a cycle among members of which each waits for another one of them, in words: `a → b → a`, in the order of work."""
    path, index = [], min(stuck)
    while index not in path:
        path.append(index)
        index = next(places[edge.ref] for edge in members[index].depends_on if places.get(edge.ref) in stuck)
    ring = path[path.index(index) :][::-1]
    first = ring.index(min(ring))
    names = [members[one].name for one in (*ring[first:], *ring[: first + 1])]
    if len(names) > _MOST_NAMED:
        names = [*names[: _MOST_NAMED - 1], f"… ({len(names) - _MOST_NAMED} more)", names[-1]]
    return " → ".join(names)


def dag_phase(members: Sequence[Member], states: Mapping[str, MemberState], *, cancelled: bool) -> str:
    """Returns Running until every member is final; then Cancelled where the DAG was `cancelled`, Failed where a failed member was not
    caught by a `Failure` or `Any` successor that ran, Cancelled where a member was cancelled by itself and no `Any` successor ran, else
    Completed.
    """
    if any(states[member.name].phase not in FINAL for member in members):
        return RUNNING
    if cancelled:
        return CANCELLED
    caught, passed = _caught(members, states)
    ends = [(member.name, states[member.name]) for member in members]
    if any(state.phase == FAILED and name not in caught for name, state in ends):
        return FAILED
    if any(state.phase == CANCELLED and state.reason not in SKIPPED_ENDS and name not in passed for name, state in ends):
        return CANCELLED
    return COMPLETED


def _caught(members: Iterable[Member], states: Mapping[str, MemberState]) -> tuple[set[str], set[str]]:
    """Returns the names of the members that have a `Failure` or `Any` successor that ran, and those with an `Any` one."""
    caught, passed = set[str](), set[str]()
    for member in members:
        if states[member.name].phase not in (COMPLETED, FAILED):
            continue
        for edge in member.depends_on:
            if edge.condition in _CATCHING:
                caught.add(edge.ref)
            if edge.condition == "Any":
                passed.add(edge.ref)
    return caught, passed


def uncaught(members: Sequence[Member], states: Mapping[str, MemberState]) -> list[str]:
    """Returns the names of the failed members that no successor caught, in the order in which they were written."""
    caught, _ = _caught(members, states)
    return [member.name for member in members if states[member.name].phase == FAILED and member.name not in caught]


def count_members(states: Iterable[MemberState]) -> Counts:
    """Returns how many members are in which state; one that has nodes or is getting them counts as running."""
    pending = running = completed = failed = cancelled = skipped = total = 0
    for state in states:
        total += 1
        match state.phase:
            case "" | "Pending":
                pending += 1
            case "Completed":
                completed += 1
            case "Failed":
                failed += 1
            case "Cancelled" if state.reason in SKIPPED_ENDS:
                skipped += 1
            case "Cancelled":
                cancelled += 1
            case _:
                running += 1
    return Counts(total=total, pending=pending, running=running, completed=completed, failed=failed, cancelled=cancelled, skipped=skipped)


def _wrong(reason: str, sentence: str, field: str) -> Rejected:
    """Returns the error for a graph that is none."""
    return Rejected(sentence, reason=reason, fields=(field,))
