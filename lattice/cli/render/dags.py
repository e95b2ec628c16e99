"""Renders DAGs for people: one line each, everything about one, its graph as text, and as Graphviz reads it; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lattice.cli.render.text import Column, age, fields, relative, table
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import READY
from lattice.views.dag import Dag, Member, MemberState
from lattice.workflow.dags import order_members

_DAGS: Final = (
    Column("DAG", shrink_to=12),
    Column("STATE"),
    Column("MEMBERS", right=True),
    Column("PENDING", right=True, leave=2),
    Column("RUNNING", right=True),
    Column("COMPLETED", right=True),
    Column("FAILED", right=True),
    Column("SKIPPED", right=True, leave=3),
    Column("REASON", shrink_to=8, leave=4),
    Column("USER", shrink_to=6, leave=5),
    Column("AGE", right=True, leave=1),
)
_MEMBERS: Final = (
    Column("MEMBER", shrink_to=12),
    Column("ID", right=True),
    Column("STATE"),
    Column("REASON", shrink_to=8, leave=2),
    Column("ENDED", leave=1),
    Column("WAITS FOR", shrink_to=12),
)
_COLORS: Final = {
    "Completed": "palegreen",
    "Failed": "lightcoral",
    "Running": "lightblue",
    "Staging": "lightblue",
    "Cancelled": "lightgrey",
}


def dag_table(items: Sequence[Dag], now: float, *, width: int, color: bool) -> list[str]:
    """Returns one line a DAG, the newest first."""
    ordered = sorted(items, key=lambda one: (one.metadata.creation_timestamp, one.metadata.name), reverse=True)
    return table(_DAGS, [_row(one, now) for one in ordered], width=width, color=color)


def _row(one: Dag, now: float) -> list[str]:
    """Returns the cells of one DAG."""
    counts, ready = one.status.counts, condition(one.status.conditions, READY)
    numbers = (counts.pending, counts.running, counts.completed, counts.failed, counts.skipped)
    reason = ready.reason if ready is not None and ready.reason != one.status.phase else ""
    return [
        one.metadata.name, one.status.phase or "New", str(counts.total or len(one.spec.members)), *map(str, numbers),
        reason, one.spec.user, age(one.metadata.creation_timestamp, now),
    ]  # fmt: skip


def dag_details(one: Dag, now: float, *, width: int, color: bool) -> list[str]:
    """Returns the lines about one DAG: how it stands, its longest path, and each member."""
    status, counts, ready = one.status, one.status.counts, condition(one.status.conditions, READY)
    numbers = {
        "completed": counts.completed, "running": counts.running, "pending": counts.pending, "failed": counts.failed,
        "cancelled": counts.cancelled, "skipped": counts.skipped,
    }  # fmt: skip
    shown = ", ".join(f"{count} {word}" for word, count in numbers.items() if count)
    path = status.critical_path
    lines = fields(
        [
            ("DAG", one.metadata.name),
            ("State", status.phase or "the operator has not judged it yet"),
            ("Reason", f"{ready.reason}: {ready.message}".rstrip(": ") if ready is not None else ""),
            ("Members", f"{counts.total or len(one.spec.members)}" + (f" ({shown})" if shown else "")),
            ("Longest path", " → ".join(path if len(path) <= 12 else (*path[:6], f"… {len(path) - 11} more …", *path[-5:]))),
            ("Expected end", f"{status.expected_end} ({relative(status.expected_end, now)})" if status.expected_end else ""),
            ("Ended", status.end_time or ""),
            ("User", one.spec.user),
            ("Tenant", one.spec.tenant),
        ],
        width,
    )
    rows = [_member_row(member, state) for member, state in zip(one.spec.members, _states(one).values(), strict=True)]
    return [*lines, "", *table(_MEMBERS, rows, width=width, color=color)]


def _states(one: Dag) -> dict[str, MemberState]:
    """Returns how each member stands, by name, in the order of the members."""
    known = {state.name: state for state in one.status.members}
    return {member.name: known.get(member.name, MemberState(name=member.name)) for member in one.spec.members}


def _member_row(member: Member, state: MemberState) -> list[str]:
    """Returns the cells of one member."""
    edges = ", ".join(f"{edge.ref} {edge.condition}" + (f"+{edge.delay}" if edge.delay else "") for edge in member.depends_on)
    first = "first of " if member.depends_on_mode == "Any" and len(member.depends_on) > 1 else ""
    reason = state.reason if state.reason != state.phase else ""
    return [member.name, str(state.number or ""), state.phase or "Pending", reason, state.end_time or "", first + edges]


def graph_lines(one: Dag) -> list[str]:
    """Returns the graph as text: each member with its state, then what waits for it, the first on its line, the others below.

    A member that waits for several stands in full where it comes first, and in parentheses elsewhere.
    """
    states, followers = _states(one), _followers(one.spec.members)
    roots = [member.name for member in one.spec.members if not member.depends_on]
    lines: list[str] = []
    shown: set[str] = set()
    stack = [(name, "") for name in reversed(roots)]
    while stack:
        name, line = stack.pop()
        while name:
            if name in shown:
                line += f"({name})"
                break
            shown.add(name)
            line += f"{name} [{states[name].phase or 'Pending'}]"
            after = followers.get(name, [])
            stack += [(other, " " * (len(line) + 1) + "↘ ") for other in reversed(after[1:])]
            name, line = (after[0], f"{line} → ") if after else ("", line)
        lines.append(line)
    return lines


def _followers(members: Sequence[Member]) -> Mapping[str, list[str]]:
    """Returns, by name, the members that wait for each, in the order in which they come."""
    found: dict[str, list[str]] = {}
    for index in order_members(members):
        for ref in dict.fromkeys(edge.ref for edge in members[index].depends_on):
            found.setdefault(ref, []).append(members[index].name)
    return found


def dot_lines(one: Dag) -> list[str]:
    """Returns the graph in the language of Graphviz: a box for each member, coloured by its state, an arrow for each edge."""
    lines = [f'digraph "{one.metadata.name}" {{', "  rankdir=LR;", "  node [shape=box, style=filled, fillcolor=white];"]
    for name, state in _states(one).items():
        color = _COLORS.get(state.phase)
        filled = f", fillcolor={color}" if color else ""
        lines.append(f'  "{name}" [label="{name}\\n{state.phase or "Pending"}"{filled}];')
    lines += [f'  "{edge.ref}" -> "{member.name}" [label="{edge.condition}"];' for member in one.spec.members for edge in member.depends_on]
    return [*lines, "}"]
