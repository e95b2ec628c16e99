"""Computes the state of budgets for a tenant's status, and which marks (80 and 100 percent) were crossed; each is noticed once."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Final

from lattice.accounting.budgets import EXTERNAL, OF_TENANT, Allowance, Balance
from lattice.units import format_time
from lattice.views.cluster import BudgetState

MARKS: Final = (80, 100)
"""Percent of a budget at which an Event tells the tenant's admins."""
RETREAT: Final = 0.05
"""A mark is noticed again in the same period only after use fell below it by this part of the budget."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A mark that the use of a budget has crossed, to be told in an Event.

    `crossing` numbers the crossings of a budget, so that each is told once.
    """

    key: str
    mark: int
    crossing: int
    message: str


def key_of(balance: Balance) -> str:
    """Returns the key of a budget in the status: `Tenant`, or `Project/NAME`."""
    return balance.scope.kind + (f"/{balance.scope.name}" if balance.scope.name else "")


def judge(balance: Balance, before: BudgetState | None, period: str) -> tuple[dict[str, Any], Notice | None]:
    """Returns the entry of a budget in `status.usage.budgets`, and a Notice of the highest mark that was crossed since `before`; None: none
    was, or it was noticed in this period already. A mark counts again after use fell 5 percent of the budget below it.

    `before`: the entry in the status; None: there is none. `period`: words for the sentence.
    """
    start = format_time(balance.begin) if balance.end is not None else None
    told, crossings = (before.told, before.crossings) if before is not None else (0, 0)
    if before is not None and before.period_start != start:
        told = 0  # another period
    fraction = balance.fraction
    while told and fraction < told / 100 - RETREAT:
        told = max((mark for mark in MARKS if mark < told), default=0)
    reached = max((mark for mark in MARKS if fraction >= mark / 100), default=0)
    notice = None
    if reached > told:
        told, crossings = reached, crossings + 1
        notice = Notice(key_of(balance), reached, crossings, _sentence(balance, reached, period))
    return _entry(balance, start, told, crossings), notice


def hours(amount: float) -> str:
    """Returns hours as text for the status: at most two decimals, rounded down."""
    text = str(Decimal(repr(amount)).quantize(Decimal("0.01"), rounding=ROUND_FLOOR))
    return text.rstrip("0").rstrip(".") if "." in text else text


def usage_of(used: Allowance, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the tenant's `status.usage` with these hours and entries of budgets."""
    return {"gpuHours": hours(used.gpu_hours), "nodeHours": hours(used.node_hours), "budgets": entries}


def _entry(balance: Balance, start: str | None, told: int, crossings: int) -> dict[str, Any]:
    """Returns the state of a budget as an entry of a tenant's status; hours without a limit, and the times of a rolling window, are left
    out.

    `start`: of the period; `told`: the highest mark that was noticed; `crossings`: how many.
    """
    scope, used, limit = balance.scope, balance.used, balance.limit
    fields = {
        "key": key_of(balance),
        "scope": scope.kind,
        "name": scope.name or None,
        "source": balance.source,
        "gpuHours": hours(used.gpu_hours) if limit.gpu_hours else None,
        "gpuHoursLimit": hours(limit.gpu_hours) if limit.gpu_hours else None,
        "nodeHours": hours(used.node_hours) if limit.node_hours else None,
        "nodeHoursLimit": hours(limit.node_hours) if limit.node_hours else None,
        "fraction": f"{int(balance.fraction * 1000)}m",
        "periodStart": start,
        "periodEnd": format_time(balance.end) if balance.end is not None else None,
        "told": told,
        "crossings": crossings,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _sentence(balance: Balance, mark: int, period: str) -> str:
    """Returns the sentence that says that a mark (percent) of a budget has been reached, and in which period."""
    whose = "the tenant" if balance.scope.kind == OF_TENANT else f'project "{balance.scope.name}"'
    by = f" (told by {balance.told_by})" if balance.source == EXTERNAL else ""
    return f"{mark} % of a budget: {whose} has used {balance.numbers} {period}{by}; `lattice usage` shows when it runs out"
