"""Renders the quota trees of the cluster: a line for each group and resource with a bar, and what the reader may still start; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from lattice.cli.render.quota import amount_text, bar
from lattice.cli.render.text import Column, Painted, age, plural, table
from lattice.scheduling.queries.quota_answers import YOURS, QuotaGroup, Quotas, QuotaTreeShown, Share, Total
from lattice.units import parse_time

LEGEND: Final = "█ used  ▒ may be used now, and is not  ! used above that  · up to max  | min  * yours"
_LONG, _SHORT = 24, 12
"""Cells of a bar, and of a bar on a narrow terminal."""
_COLUMNS: Final = (
    Column("QUOTA", shrink_to=12),
    Column("RESOURCE"),
    Column("", leave=5),
    Column("USED", right=True),
    Column("RUNTIME", right=True),
    Column("MIN", right=True),
    Column("MAX", right=True, leave=3),
    Column("BORROWED", right=True, leave=4),
    Column("REQUEST", right=True, leave=2),
    Column("NOTE", leave=1),
    Column("EFFECTIVE MIN", right=True),
    Column("LENDS"),
)
_PLAIN: Final = 10
"""How many of the columns are always shown; the others are for `-o wide`."""
_PAINTED: Final = re.compile("█+|▒+|!+|·+")
_COLORS: Final = {"█": "32", "▒": "33", "!": "31", "·": "2"}


def tree_lines(found: Quotas, *, width: int, wide: bool, color: bool) -> list[str]:
    """Returns every tree with its table, then what the reader may start; `width` 0 is unlimited."""
    told = [f"Left out: {one.object}: {one.message} [{one.reason}]" for one in found.left_out]
    if not found.trees:
        return [found.message, *told]
    lines: list[str] = []
    for tree in found.trees:
        if lines:
            lines.append("")
        if len(found.trees) > 1 or tree.name:
            lines.append(f"Tree {tree.name or 'of all other nodes'}")
        lines += _table(tree, found.at, width=0 if wide else width, wide=wide, color=color)
    groups = [group for tree in found.trees for group in tree.groups]
    told += [f"{group.name}: {group.message} [{group.reason}]" for group in groups if group.message]
    told += [sentence for group in groups for sentence in startable_lines(group)]
    return [*lines, "", *told] if told else lines


def startable_lines(group: QuotaGroup) -> Iterator[str]:
    """Yields what the reader may still start in a leaf of his own, by resource; nothing for other groups."""
    if group.whose != YOURS:
        return
    if not group.startable:
        yield f"{group.name}: no quota tree bounds what you start here"
    for one in group.startable:
        amount = f"{amount_text(one.resource, one.amount)} {one.resource}"
        level = "its own limit" if one.level == group.name else f"{one.level} above it"
        fixed = f"; {amount_text(one.resource, one.within_min)} of work that may not be preempted" if one.within_min < one.amount else ""
        yield f"{group.name}: {amount} may start now ({level} leaves no more){fixed}"


def _table(tree: QuotaTreeShown, at: str, *, width: int, wide: bool, color: bool) -> list[str]:
    """Returns a quota tree as lines, with shorter bars where long ones do not fit the width; 0: any width."""
    columns = _COLUMNS if wide else _COLUMNS[:_PLAIN]
    for cells in (_LONG, _SHORT):
        rows = [_total(one, cells, first=place == 0) for place, one in enumerate(tree.totals)]
        for group in tree.groups:
            rows += _group(group, tree, cells, at)
        lines = table(columns, [row[: len(columns)] for row in rows], width=width)
        if not width or len(table(columns, [row[: len(columns)] for row in rows])[0]) <= width:
            break
    return [_colored(line) for line in lines] if color else lines


def _total(one: Total, cells: int, *, first: bool) -> list[str]:
    """Returns the cells of one resource's total; the first one has the title."""
    key = one.resource
    drawn = bar(one.used, one.divisible, 0, one.divisible, one.divisible, cells=cells)
    texts = [amount_text(key, number) for number in (one.used, one.divisible)]
    return ["(total)" if first else " ", key, drawn, *texts, "", "", "", amount_text(key, one.request), "", "", ""]


def _group(group: QuotaGroup, tree: QuotaTreeShown, cells: int, at: str) -> Iterator[list[str]]:
    """Yields the cells of one group, a row for each resource; title and note are in the first. A group without shares has one row."""
    title, divisible = "  " * (group.depth + 1) + _title(group), {one.resource: one.divisible for one in tree.totals}
    for place, share in enumerate(group.shares):
        note = _note(group, at) if place == 0 else ""
        lends = "yes" if group.lends else "no"
        key, numbers = share.resource, _numbers(share)
        drawn = _bar(share, divisible.get(share.resource, 0), cells)
        yield [title if place == 0 else " ", key, drawn, *numbers, note, amount_text(key, share.effective_min), lends if group.name else ""]
    if not group.shares:
        yield [title, *[""] * 8, _note(group, at), "", ""]


def _title(group: QuotaGroup) -> str:
    """Returns a group's name, marked where it is the reader's; for groups taken together, how many they are."""
    if not group.name:
        return f"({plural(group.count, 'other group')})"
    return f"{group.name} *" if group.whose == YOURS else group.name


def _numbers(share: Share) -> list[str]:
    """Returns the figures of a share as texts; empty for those that are absent."""
    key = share.resource
    shown = (share.used, share.runtime, share.min, share.max, share.borrowed or None, share.request)
    return [amount_text(key, number) if number is not None else "" for number in shown]


def _bar(share: Share, divisible: int, cells: int) -> str:
    """Returns the bar of a share, drawn up to what can matter of the divisible amount; empty where its runtime is not known."""
    if share.runtime is None:
        return ""
    most = share.runtime if share.max is None else share.max
    end = max(min(most, divisible), share.used, share.runtime, share.min)
    return bar(share.used, share.runtime, share.min, most, end, cells=cells)


def _note(group: QuotaGroup, at: str) -> str:
    """Returns for how long a group has been over what it may use, and its reason; empty where neither is given."""
    over = f"over for {age(group.over_since, parse_time(at))}" if group.over_since else ""
    return ", ".join(part for part in (over, group.reason) if part)


def _colored(line: str) -> str:
    """Returns a line with its bars in colour."""
    return Painted(_PAINTED.sub(lambda run: f"\x1b[{_COLORS[run.group()[0]]}m{run.group()}\x1b[0m", line))
