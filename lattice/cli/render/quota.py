"""Renders a quota tree of a file: a line for each group and resource, with a bar of used, runtime, min and max; pure."""

from __future__ import annotations

from typing import Final

from lattice.cli.render.text import Column, memory, table
from lattice.quota.groups import ROOT
from lattice.quota.tree import QuotaTree

LEGEND: Final = "█ used  ▒ runtime not used  ! used above runtime  · up to max, at most the total  | min"
_BAR: Final = 24
_COLUMNS: Final = (
    Column("QUOTA"),
    Column("RESOURCE"),
    Column("", leave=1),
    Column("USED", right=True),
    Column("RUNTIME", right=True),
    Column("MIN", right=True),
    Column("MAX", right=True),
    Column("REQUEST", right=True),
)
_WIDE: Final = (Column("EFFECTIVE MIN", right=True), Column("WEIGHT", right=True), Column("LENDS"))


def rows(tree: QuotaTree, *, wide: bool, width: int) -> list[str]:
    """Returns the lines of the table, first the root with the amount that is divided."""
    total = tree.runtime(ROOT)
    lines = [_total(tree, key, amount, first=at == 0) for at, (key, amount) in enumerate(total.items())]
    for name in tree.names():
        lines += _group(tree, name, total)
    columns = _COLUMNS + _WIDE if wide else _COLUMNS
    return table(columns, [line[: len(columns)] for line in lines], width=width)


def bar(used: int, runtime: int, least: int, most: int, end: int, *, cells: int = _BAR) -> str:
    """Returns one bar of `cells` cells, each an equal part of `end`; empty for `end` 0 or less.

    A cell shows use (█; beyond the runtime !), else runtime (▒), else max (·), else a blank; one of them the min (|), unless that is 0.
    """
    if end <= 0:
        return ""
    drawn = []
    for cell in range(cells):
        middle = (2 * cell + 1) * end  # of 2 × `cells` parts, so that it stays whole
        covered = [middle < 2 * cells * amount for amount in (used, runtime, most)]
        drawn.append("!" if covered[0] and not covered[1] else "█" if covered[0] else "▒" if covered[1] else "·" if covered[2] else " ")
    if least:
        drawn[min(cells - 1, least * cells // end)] = "|"
    return "".join(drawn)


def amount_text(key: str, amount: int) -> str:
    """Returns an amount in the unit that people use: cores for `cpu` (given in thousandths), bytes with a unit for `memory` and
    `ephemeral-storage`, else the number.
    """
    if key == "cpu":
        cores, rest = divmod(amount, 1000)
        return f"{cores}.{rest:03d}".rstrip("0").rstrip(".") if rest else str(cores)
    return memory(amount) or "0" if key in ("memory", "ephemeral-storage") else str(amount)


def _total(tree: QuotaTree, key: str, amount: int, *, first: bool) -> list[str]:
    """Returns the cells of one resource's total; the first one has the title."""
    used = tree.used(ROOT).get(key, 0)
    numbers = [amount_text(key, number) for number in (used, amount)]
    request = amount_text(key, tree.request(ROOT).get(key, 0))
    return ["(total)" if first else " ", key, bar(used, amount, 0, amount, amount), *numbers, "", "", request, "", "", ""]


def _group(tree: QuotaTree, name: str, total: dict[str, int]) -> list[list[str]]:
    """Returns the cells of one group, a row for each resource of its max; the title is in the first."""
    group, runtime, effective = tree.group(name), tree.runtime(name), tree.effective_min(name)
    used, request = tree.used(name), tree.request(name)
    weight = group.weight(literal=tree.options.raw_weight)
    lines = []
    for at, (key, most) in enumerate(group.max.items()):
        held, least = used.get(key, 0), group.min.get(key, 0)
        end = max(min(most, total.get(key, most)), held, runtime[key], least)
        numbers = [amount_text(key, number) for number in (held, runtime[key], least, most, request.get(key, 0), effective[key])]
        title = "  " * (tree.depth(name) + 1) + name if at == 0 else " "
        shown = [title, key, bar(held, runtime[key], least, most, end), *numbers, amount_text(key, weight[key])]
        lines.append([*shown, "yes" if group.lends else "no"])
    return lines
