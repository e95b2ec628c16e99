"""Renders every gate before an allocation: one line each with its limits below, the first that blocks marked; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lattice.cli.render.answers import label
from lattice.cli.render.quota import amount_text
from lattice.cli.render.text import Column, Painted, plural, printable, table
from lattice.scheduling.queries.quota_answers import Gate, Limit, QuotaExplanation

_TITLES: Final = {
    "Itself": "itself",
    "HardQuota": "hard quota",
    "Budget": "budget",
    "QuotaTree": "quota tree",
    "VCluster": "vcluster, borrowing",
    "Reservation": "reservation",
    "Nodes": "priority and room",
}
_VERDICTS: Final = {"Passes": "open", "Blocks": "BLOCKS", "Unlimited": "open", "NotAsked": "not asked yet"}
_WORDS: Final = {"runtime": "may use now", "max": "max", "min": "min (not preemptible)"}
_LIMITS: Final = (
    Column(""),
    Column("WHOSE", shrink_to=12),
    Column("LIMIT", shrink_to=8),
    Column("RESOURCE"),
    Column("USED", right=True),
    Column("ASKED", right=True),
    Column("AT MOST", right=True),
    Column("MIN", right=True, leave=2),
    Column("MAX", right=True, leave=3),
    Column("REQUEST", right=True, leave=1),
)


def gate_lines(found: QuotaExplanation, *, width: int, color: bool) -> list[str]:
    """Returns all lines of `quota explain`; `width` 0 is unlimited."""
    lines = list(_head(found))
    for number, gate in enumerate(found.gates, 1):
        lines += _gate(number, gate, width, color)
    return [*lines, _conclusion(found)]


def _head(found: QuotaExplanation) -> Iterator[str]:
    """Yields the lines on whom an explanation is of, what it asks for or holds, and to which group it belongs."""
    verb = "holds" if found.holds else "asks for"
    kind = "may be preempted" if found.preemptible else "may not be preempted: it counts against the min of its group"
    who = f"{label(found.allocation)} of tenant {found.tenant} in {found.vcluster}"
    yield f"Allocation {who} {verb} {plural(found.nodes, 'node')}; it {kind}"
    if found.leaf:
        yield f"Its group of the quota tree: {found.leaf}" + (f" (tree {found.tree})" if found.tree else "")


def _gate(number: int, gate: Gate, width: int, color: bool) -> Iterator[str]:
    """Yields the lines of one gate: its verdict, its limits as a table, and who borrows."""
    verdict = _VERDICTS[gate.verdict]
    mark = "→" if gate.first else " "
    said = f"{gate.reason}: {gate.message}" if gate.reason else gate.message
    if gate.verdict == "Unlimited" and not said:
        said = "no limit is set"
    title, rest = f"{mark} {number} {_TITLES[gate.gate]}: ", f"; {said}" if said else ""
    red = color and gate.verdict == "Blocks"
    yield Painted(f"{title}\x1b[31m{verdict}\x1b[0m{printable(rest)}") if red else title + verdict + rest
    if gate.limits:
        rows = [_limit(one) for one in gate.limits]
        yield from (f"     {line}" for line in table(_LIMITS, rows, width=max(0, width - 5)))
    for one in gate.borrowers:
        who = one.name or plural(one.count, "other group")
        yield f"     {one.resource}: {amount_text(one.resource, one.borrowed)} borrowed by {who}"


def _limit(one: Limit) -> list[str]:
    """Returns the cells of one limit of a gate, marked where it blocks."""
    key = one.resource
    extra = [amount_text(key, number) if number is not None else "" for number in (one.min, one.max, one.request)]
    name = _WORDS.get(one.name, one.name)
    numbers = [amount_text(key, one.used), amount_text(key, one.requested) if one.requested else "", amount_text(key, one.limit)]
    return ["✗" if one.blocks else " ", "  " * (one.depth or 0) + one.of, name, key, *numbers, *extra]


def _conclusion(found: QuotaExplanation) -> str:
    """Returns the sentence on which gate blocks first, or that none does, or that the work holds its nodes."""
    if found.holds:
        return "It holds its nodes: the figures include it"
    first = next((gate for gate in found.gates if gate.first), None)
    if first is None:
        return "No gate blocks it: the next cycle decides"
    rest = sum(gate.verdict == "Blocks" for gate in found.gates) - 1
    also = f"; {plural(rest, 'gate')} behind it would block too" if rest > 0 else ""
    return f"Blocked first by {_TITLES[first.gate]}: {first.reason}{also}"
