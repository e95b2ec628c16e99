"""The gate of budgets: work waits while a budget of its tenant, project or user is used up (book, "Exhausted Budget Behavior")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from lattice.accounting.budgets import EXTERNAL, OF_PROJECT, OF_TENANT, OF_USER, Balance, Scope
from lattice.accounting.meter import Meter
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.work import Candidate
from lattice.units import format_time

BUDGET_EXHAUSTED: Final = "BudgetExhausted"


class Exhausted(NamedTuple):
    """A budget that is used up, with the sentence for work that waits for it.

    `until`: when hours are free again if no more are used, seconds since the epoch; None: unknown.
    """

    message: str
    until: float | None = None


def exhausted(meter: Meter, now: float) -> dict[Scope, Exhausted]:
    """Returns the budgets that are used up and make work wait, by scope; budgets that are used up without effect are left out."""
    found = {}
    for tenant in meter.queueing():
        for balance in meter.balances(tenant, now):
            if balance.exhausted:
                until = meter.lets_go(balance, now)
                found[balance.scope] = Exhausted(sentence(balance, meter.period_words(tenant), until), until)
    return found


def sentence(balance: Balance, period: str, until: float | None) -> str:
    """Returns the sentence for a budget that is used up: by how much, until when, and whom to ask.

    `period`: words for its period. `until`: when hours are free again, seconds since the epoch; None: unknown, and not in the sentence.
    """
    by = f" (told by {balance.told_by})" if balance.source == EXTERNAL else ""
    let_go = f"; that ends at {format_time(until)} if nothing more is used" if until is not None else ""
    return f"{balance.scope.words} has used {balance.numbers} {period}{by}{let_go}; ask an admin of the tenant for more"


def budget(spent: Mapping[Scope, Exhausted], candidate: Candidate) -> Waiting | None:
    """Returns Waiting with the first budget in `spent` that is of the candidate's tenant, project or user, in this order; None: no used-up
    budget applies.
    """
    tenant = candidate.tenant
    for scope in (
        Scope(OF_TENANT, tenant), Scope(OF_PROJECT, tenant, candidate.project), Scope(OF_USER, tenant, candidate.user),
    ):  # fmt: skip
        found = spent.get(scope)
        if found is not None:
            return Waiting(candidate, BUDGET_EXHAUSTED, f"waiting for budget: {found.message}", found.until)
    return None
