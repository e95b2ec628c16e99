"""Checks what an Allocation depends on: references, conditions, delays, and whether the work that it names is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lattice.admission.facts import Facts
from lattice.admission.submission import Submission
from lattice.admission.verdicts import Caution, Finding, Refused, reading
from lattice.errors import Rejected
from lattice.units import parse_duration, shown
from lattice.views.allocation import Dependency
from lattice.workflow.edges import LONGEST_DELAY
from lattice.workflow.mutexes import MOST_MUTEXES, MUTEX, is_mutex_name
from lattice.workflow.references import WorkReference, parse_reference

MOST_EDGES: Final = 1000
"""Most entries of spec.dependsOn, as in the schema."""
SERVED: Final = ("Success", "Failure", "Any", "Started", "Mutex")
_LATER: Final = {"Corresponding": "task groups are not served by this release"}
_CONDITIONS: Final = "use " + ", ".join(SERVED[:-1]) + f" or {SERVED[-1]}"


def check_dependencies(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal for each edge that does not read, is not served, or names the work itself or what nobody knows.

    Whether work is known is left to the server where the facts do not tell; a caution says what may never be met.
    """
    edges = asked.spec.depends_on
    if len(edges) > MOST_EDGES:
        sentence = f"spec.dependsOn has {len(edges)} entries (limit: {MOST_EDGES})"
        yield Refused("DependencyInvalid", sentence, "spec.dependsOn", "put work in between that waits for some of them")
        return
    mutexes = [edge.ref for edge in edges if edge.condition == MUTEX]
    if len(mutexes) > MOST_MUTEXES:
        sentence = f"spec.dependsOn names {len(mutexes)} mutexes (limit: {MOST_MUTEXES})"
        yield Refused("DependencyInvalid", sentence, "spec.dependsOn", "use one mutex for what excludes each other")
    if mutexes and len(edges) > 1 and asked.spec.depends_on_mode == "Any":
        sentence = f"spec.dependsOnMode is Any, and spec.dependsOn names mutex {shown(mutexes[0])}, which is always needed"
        yield Refused("DependencyInvalid", sentence, "spec.dependsOnMode", "take the mutex out, or ask for All")
    seen: dict[tuple[str, str], int] = {}
    for index, edge in enumerate(edges):
        findings = list(_judge_edge(f"spec.dependsOn[{index}]", edge, asked, facts))
        yield from findings
        first = seen.setdefault((edge.ref, edge.condition), index)
        if first != index and not any(isinstance(one, Refused) for one in findings):
            sentence = f"spec.dependsOn[{index}] says what spec.dependsOn[{first}] says: {edge.condition} of {shown(edge.ref)}"
            yield Refused("DependencyInvalid", sentence, f"spec.dependsOn[{index}]", "write it once")
            return


def _judge_edge(field: str, edge: Dependency, asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields the findings on one edge; the first refusal ends them."""
    if edge.condition == MUTEX:
        if not is_mutex_name(edge.ref):
            sentence = f"{field}.ref: {shown(edge.ref)} names no mutex: small letters, digits and dashes, 63 at most, and no number"
            yield Refused("DependencyInvalid", sentence, f"{field}.ref", "write for example gpu-licence")
        if edge.delay:
            sentence = f"{field}.delay: a mutex has no delay (requested: {edge.delay})"
            yield Refused("DependencyInvalid", sentence, f"{field}.delay", "take it out")
        return
    try:
        reference = parse_reference(edge.ref, asked.namespace)
    except Rejected as error:
        hint = "name an allocation" if error.reason == "NotServed" else "`lattice status --all` shows numbers and names"
        yield Refused("DependencyInvalid", f"{field}.ref: {error.message}", f"{field}.ref", hint)
        return
    if edge.condition not in SERVED:
        why = _LATER.get(edge.condition, "there is no such condition")
        yield Refused("DependencyInvalid", f"{field}.condition {shown(edge.condition)}: {why}", f"{field}.condition", _CONDITIONS)
        return
    if edge.delay:
        seconds = reading(parse_duration, edge.delay, field=f"{field}.delay", reason="DurationInvalid")
        if isinstance(seconds, Refused):
            yield seconds
            return
        if seconds > LONGEST_DELAY:
            yield Refused("DurationInvalid", f"{field}.delay is {edge.delay} (limit: 366d)", f"{field}.delay", "set a shorter one")
            return
    if (reference.namespace, reference.name) == (asked.namespace, asked.name):
        yield Refused("DependencyInvalid", f"{field}.ref: {shown(edge.ref)} is this work itself", f"{field}.ref", "name other work")
        return
    yield from _known(field, edge, reference, asked, facts)


def _known(field: str, edge: Dependency, reference: WorkReference, asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal of an edge to work that nobody knows, a caution about an edge to a service; none where the facts do not tell."""
    if facts.predecessors is None:
        return
    found = facts.predecessors.get(reference)
    if found is None:
        sentence = f'{field}.ref: no work of tenant "{asked.spec.tenant}" has the {_what(reference)}, now or in its usage records'
        yield Refused("DependencyUnknown", sentence, f"{field}.ref", "`lattice status --all` and `lattice history` show numbers and names")
    elif edge.condition == "Success" and found == "Unbounded":
        yield Caution(f"{field}: {shown(edge.ref)} is a service, which does not end by itself: Success may never be met")


def _what(reference: WorkReference) -> str:
    """Returns a reference in words."""
    return f"number {reference.number}" if reference.number else f'name "{reference.namespace}/{reference.name}"'
