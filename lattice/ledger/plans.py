"""Formats 1 and 2 of a node group's plan: converts ledger rows to orders for agents, and text back to orders."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lattice.errors import Corrupt
from lattice.formats import check_format
from lattice.units import decode_uid, encode_uid, expand_nodes, fold_nodes

FORMAT = 2
FIRST_FORMAT = 1
NODES_PER_PLAN = 64

RUN = "run"
STOP = "stop"


class PlanRow(msgspec.Struct, frozen=True, gc=False):
    """One order to agents: run this attempt, or stop it for the cause; `nodes` in rank order.

    `walltime`: the admitted seconds, which agents obey (from format 2 on); None: no limit.
    """

    order: str
    cause: str
    uid: str
    attempt: int
    generation: int
    number: int
    reporter: str
    address: str
    namespace: str
    name: str
    head: str
    nodes: tuple[str, ...]
    walltime: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Returns (uid, attempt), which identifies the order in a plan."""
        return (self.uid, self.attempt)


def plan_name(index: int) -> str:
    """Returns the name of the plan that carries the orders for the node with this index."""
    return f"group-{index // NODES_PER_PLAN:04d}"


def format_plan(rows: Iterable[PlanRow], number: int = FORMAT) -> str:
    """Returns the text of a plan, its rows by key, so that equal orders give equal bytes; `number`: the format."""
    lines = [str(number)]
    for row in sorted(rows, key=lambda row: row.key):
        order = RUN if row.order == RUN else f"{STOP}:{row.cause}"
        reporter, path = f"{row.reporter or '-'}={row.address or '-'}", f"{row.namespace or '-'}/{row.name or '-'}"
        lines.append(
            f"{order} {encode_uid(row.uid)} {row.attempt} {row.generation} {row.number} {reporter} {path}"
            f" {row.head or '-'} {fold_nodes(row.nodes)}{_walltime(row, number)}"
        )
    return "\n".join(lines)


def _walltime(row: PlanRow, number: int) -> str:
    """Returns the walltime's column of a row with a space before it, ` -` where none is known; empty in format 1, which has no such
    column.
    """
    if number == FIRST_FORMAT:
        return ""
    return " -" if row.walltime is None else f" {row.walltime}"


def parse_plan(text: str) -> list[PlanRow]:
    """Returns the orders of a plan; further columns are ignored. Raises Corrupt for another format, naming both, or for unreadable rows."""
    found, _, body = text.partition("\n")
    number = check_format("plan", found, FORMAT)
    try:
        return [_parse_row(line, number) for line in body.splitlines()]
    except (ValueError, IndexError) as error:
        raise Corrupt(f"plan with an unreadable row: {error}", reason="PlanUnreadable") from error


def _parse_row(line: str, form: int) -> PlanRow:
    """Returns an order from its line in this format (`form`). Raises ValueError where it does not parse."""
    order, uid, attempt, generation, number, reporter, path, head, nodes, *more = line.split(" ")
    walltime = "-" if form == FIRST_FORMAT else more[0]
    word, _, cause = order.partition(":")
    if word not in (RUN, STOP) or (word == STOP) != bool(cause):
        raise ValueError(f"order {order!r} in {line[:80]!r}")
    reporter_name, _, address = reporter.partition("=")
    namespace, _, name = path.partition("/")
    return PlanRow(
        word, cause, decode_uid(uid), int(attempt), int(generation), int(number),
        _text(reporter_name), _text(address), _text(namespace), _text(name), _text(head), tuple(expand_nodes(nodes)),
        None if walltime == "-" else int(walltime),
    )  # fmt: skip


def _text(column: str) -> str:
    """Returns the text of a column, empty for `-`."""
    return "" if column == "-" else column
