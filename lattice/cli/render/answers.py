"""Renders the scheduler's answers for people: expected start, score, blockers, changes, placement; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lattice.cli.render.text import Column, ahead, plural, relative, table
from lattice.scheduling.queries.answers import (
    Blocker,
    Change,
    ExpectedStart,
    Held,
    Placement,
    Position,
    Preemption,
    Quota,
    Ranking,
    Use,
    Work,
)

_BLOCKERS: Final = (
    Column("WHO"),
    Column("WHAT", shrink_to=16),
    Column("NODES", right=True),
    Column("SINCE", right=True),
    Column("UNTIL", right=True),
)
_SCORES: Final = (Column("FACTOR"), Column("VALUE", right=True), Column("WEIGHT", right=True), Column("POINTS", right=True))
_FACTORS: Final = {
    "f1": ("priority", "class"),
    "f2": ("waitTime", "waiting"),
    "f3": ("fairShare", "fair share"),
    "f4": ("topology", "topology"),
    "f5": ("dataReadiness", "data"),
    "f6": ("backlog", "backlog"),
    "f7": ("energy", "energy"),
    "f8": ("checkpoint", "checkpoint"),
    "f9": ("conformance", "conformance"),
}
"""By term of the score: the name of its weight, and the word that people read."""


def label(work: Work) -> str:
    """Returns how sentences name an allocation: number, where it has one, and namespace/name."""
    return f"{work.number} {work.namespace}/{work.name}" if work.number else f"{work.namespace}/{work.name}"


def expected_sentence(expected: ExpectedStart | None, now: float) -> str:
    """Returns when work is expected to start: at even odds (p50), and nine times of ten (p90), or why that is not known; empty without a
    forecast.
    """
    if expected is None:
        return ""
    parts = []
    if expected.p50:
        parts.append(f"{expected.p50} ({ahead(expected.p50, now)}) as likely as not")
    if expected.p90:
        parts.append(f"9 times of 10 by {expected.p90} ({ahead(expected.p90, now)})")
    told = ", ".join(parts)
    if not told:
        return f"not known: {expected.reason}" if expected.reason else ""
    return f"{told} ({expected.reason})" if expected.reason else told


def reservation_sentence(held: Held | None, now: float) -> str:
    """Returns the latest start that a backfill reservation promises, and why it moved last; empty without a reservation and a move."""
    if held is None:
        return ""
    told = f"starts at the latest {held.start} ({relative(held.start, now)}), given {held.given}" if held.start else ""
    if held.cause:
        to = f"to {held.moved_to}" if held.moved_to else "and taken back"
        moved = f"moved from {held.moved_from} {to}: {held.because}"
        return f"{told}; {moved}" if told else moved
    return told


def position_sentence(place: Position | None) -> str:
    """Returns a position in the queue: `3 of 12 in hpc-batch`; empty without one."""
    return f"{place.position} of {place.of} in {place.vcluster}" if place is not None else ""


def score_sentence(score: Ranking | None) -> str:
    """Returns the score, and the budget's multiplier where that lowers it; empty without a score."""
    if score is None:
        return ""
    return f"{score.total:.3f}" + (f" (budget × {score.multiplier:.2f})" if score.multiplier != 1.0 else "")


def score_lines(score: Ranking | None) -> list[str]:
    """Returns the total and a table of factors: value × weight = points, without factors whose weight is 0; a factor of unknown weight
    shows its value alone.

    Empty without a score.
    """
    if score is None:
        return []
    budget = f", of which the tenant's budget leaves {score.multiplier:.1%}" if score.multiplier != 1.0 else ""
    rows = []
    for term, value in score.terms.items():
        weight_name, word = _FACTORS.get(term, (term, term))
        weight = score.weights.get(weight_name)
        if weight is None:
            rows.append([word, f"{value:.3f}", "", ""])
        elif weight:
            rows.append([word, f"{value:.3f}", f"{weight:.3f}", f"{value * weight:.3f}"])
    return [f"{score.total:.3f}{budget}", *(table(_SCORES, rows) if rows else [])]


def factor_list(score: Ranking) -> list[str]:
    """Returns `class 0.50×0.15` for every factor with a weight above 0; empty where the weights are not known."""
    shown = []
    for term, value in score.terms.items():
        weight_name, word = _FACTORS.get(term, (term, term))
        weight = score.weights.get(weight_name, 0.0)
        if weight:
            shown.append(f"{word} {value:.2f}×{weight:.2f}")
    return shown


def blocker_table(blockers: Sequence[Blocker], now: float, width: int = 0) -> list[str]:
    """Returns the table of the work that an allocation waits for; empty: there is none."""
    rows = [[_who(one), _what(one), str(one.nodes), _ago(one, now), _until(one, now)] for one in blockers]
    return table(_BLOCKERS, rows, width=width) if rows else []


def _who(one: Blocker) -> str:
    """Returns whose a blocker is, in words; a Reservation and nodes that are not available are called so."""
    return {"Reservation": "reservation", "Unavailable": "unavailable"}.get(one.kind) or one.whose


def _what(one: Blocker) -> str:
    """Returns what a blocker is: its name, the allocation with its job and user, or how many allocations."""
    if one.kind in ("Reservation", "Unavailable"):
        return one.name
    what = "waits ahead" if one.kind == "Ahead" else ""
    if one.work is not None:
        job = f" ({one.work.job})" if one.work.job else ""
        return (
            f"{label(one.work)}{job}"
            + (f" of {one.work.user}" if one.whose != "you" and one.work.user else "")
            + (f", {what}" if what else "")
        )
    count = plural(one.allocations, "allocation")
    return f"{count} ahead" if one.kind == "Ahead" else count


def _ago(one: Blocker, now: float) -> str:
    """Returns how long ago a blocker began, in words."""
    return relative(one.since, now)


def _until(one: Blocker, now: float) -> str:
    """Returns until when a blocker holds nodes: the first and the last end of several; empty where it holds none, `unbounded` for a holder
    without an end.
    """
    if one.kind in ("Ahead", "Unavailable"):
        return ""
    if one.first is not None and one.first != one.until:
        last = f", all {relative(one.until, now)}" if one.until else ""
        return f"first {relative(one.first, now)}{last}"
    return relative(one.until, now) or ("unbounded" if one.kind == "Holder" else "")


def change_lines(changes: Sequence[Change]) -> list[str]:
    """Returns one line for each smallest change of the request that would let it start."""
    return [change.text for change in changes]


def placement_sentence(placement: Placement) -> str:
    """Returns a clause with the nodes, their groups and fingerprints."""
    groups = ", ".join(f"{group.name}: {group.nodes}" for group in placement.groups)
    notes = [f"{plural(len(placement.groups), 'group')} ({groups})"]
    if placement.fingerprints > 1:
        notes.append(f"{placement.fingerprints} fingerprints")
    if placement.borrowed:
        notes.append(f"{placement.borrowed} borrowed")
    if placement.backfilled:
        notes.append("ahead of work that waits with a reservation")
    asked = f" (asks for {placement.least}-{placement.most})" if placement.most else ""
    return f"{placement.nodes}: {plural(placement.count, 'node')}{asked} in {', '.join(notes)}"


def preemption_lines(preemption: Preemption | None) -> list[str]:
    """Returns the lines on the work that would have to be preempted, the sum first; empty where there is no victim."""
    if preemption is None or not preemption.victims:
        return []
    numbers = f"at a cost of {preemption.cost:.1f} GPU-hours, for work worth {preemption.value:.1f}"
    first = f"{plural(preemption.nodes_freed, 'node')} {numbers} (decided; this release preempts nothing)"
    return [first, *(f"{label(one.work) if one.work else one.whose}: {plural(one.nodes, 'node')}" for one in preemption.victims)]


def quota_sentence(quota: Quota | None) -> str:
    """Returns the tenant's hard quota before and after the start; empty without one."""
    if quota is None:
        return ""
    return f"tenant {quota.tenant}: nodes {_use(quota.nodes)}, allocations {_use(quota.allocations)}"


def _use(use: Use) -> str:
    """Returns a use before and after, and its limit, in words."""
    return f"{use.used} → {use.after} of {use.limit if use.limit is not None else 'unlimited'}"
