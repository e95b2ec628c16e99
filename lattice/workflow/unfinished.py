"""Makes the members of a new DAG from what did not complete of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lattice.models.conditions import CANCELLED, COMPLETED
from lattice.views.dag import Member, MemberState
from lattice.workflow.dags import order_members
from lattice.workflow.edges import MET, Predecessor, condition_letter


def unfinished(members: Sequence[Mapping[str, Any]], states: Mapping[str, MemberState]) -> list[dict[str, Any]]:
    """Returns the members (as people wrote them, in their order) that did not complete, with their edges to each other.

    An edge to a member that completed is taken for answered: what it releases waits for it no more, and what it can never release is left
    out, with what can never be released for that.
    """
    typed = [msgspec.convert(member, Member) for member in members]
    left_out: dict[str, str] = {}
    kept: dict[int, dict[str, Any]] = {}
    for index in order_members(typed):
        member = typed[index]
        if states[member.name].phase == COMPLETED:
            left_out[member.name] = COMPLETED
            continue
        edges = _open_edges(member, left_out)
        if edges is None:
            left_out[member.name] = CANCELLED
            continue
        again = {key: value for key, value in members[index].items() if key != "dependsOn"}
        kept[index] = again | ({"dependsOn": edges} if edges else {})
    return [kept[index] for index in sorted(kept)]


def _open_edges(member: Member, left_out: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """Returns the edges of a member to others that run again; None: it can never be released."""
    again: list[dict[str, Any]] = []
    met = unmet = 0
    for edge in member.depends_on:
        state = left_out.get(edge.ref)
        if state is None:
            again.append(msgspec.to_builtins(edge) | {"condition": edge.condition})
        elif condition_letter(edge.condition, Predecessor("", state, 1.0 if state == COMPLETED else 0.0, 1.0)) == MET:
            met += 1
        else:
            unmet += 1
    if member.depends_on_mode == "Any":
        if met:
            return []
        return again if again or not unmet else None
    return None if unmet else again
