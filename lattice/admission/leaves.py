"""Checks the leaf of the quota tree to which an Allocation belongs: it exists, may be used, and takes the request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lattice.admission.facts import Facts, QuotaFacts
from lattice.admission.submission import Submission
from lattice.admission.verdicts import Finding, Refused
from lattice.quota.amounts import quantity
from lattice.quota.declared import DEFAULT, NAME_LABEL, PREEMPTIBLE_LABEL, Declared

FIELD: Final = "spec.quota"
LABEL_FIELD: Final = f"metadata.labels[{NAME_LABEL}]"
SHOWN: Final = 10


def named_leaf(asked: Submission) -> tuple[str, str]:
    """Returns the leaf that an Allocation names (`spec.quota`, else its label) and the field that names it; an empty name, with the label's
    field, where it names none.
    """
    quota = asked.raw.get("quota")
    if isinstance(quota, str) and quota:
        return quota, FIELD
    return asked.labels.get(NAME_LABEL, ""), LABEL_FIELD


def leaf_of(asked: Submission, quotas: QuotaFacts) -> str:
    """Returns the leaf to which an Allocation belongs: the one it names if it is a leaf, else by the bindings."""
    quota = asked.raw.get("quota")
    label = asked.labels.get(NAME_LABEL, "")
    spec = asked.spec
    return quotas.bindings.leaf(str(quota or ""), label, spec.tenant, spec.vcluster, asked.namespace)


def check_leaf(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the leaf which an Allocation names exists, is no parent (R14), and may be used by the requester.

    Nothing is refused where the trees, or the right, are unknown, or for the leaf that the Allocation would have without naming one.
    """
    name, field = named_leaf(asked)
    quotas = facts.quotas
    if not name or quotas is None or name == DEFAULT == leaf_of(asked, quotas):
        return
    own = quotas.bindings.leaf("", "", asked.spec.tenant, asked.spec.vcluster, asked.namespace)
    hint = _hint(asked, quotas, own)
    leaf = quotas.bindings.named(name)
    if leaf is None:
        group = quotas.groups.get(name.rpartition("/")[2])
        if group is not None and group.is_parent:
            below = sorted(other.name for other in quotas.groups.values() if other.parent == group.name)
            sentence = f'quota "{name}" is a parent, and work belongs to a leaf'
            yield Refused("QuotaIsParent", sentence, field, f"below it are {', '.join(below[:SHOWN]) or 'no groups yet'}; {hint}")
        else:
            yield Refused("QuotaUnknown", f'quota "{name}" does not exist', field, hint)
    elif leaf != own and facts.requester.user and quotas.may_use is False:
        sentence = f'{facts.requester.user} may not use quota "{leaf}": the verb use on elasticquotas.lattice.dev is missing'
        yield Refused("QuotaNotAllowed", sentence, field, f"ask an admin for the right; {hint}")


def check_preemptible_label(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal where Koordinator's label says `false` and `spec.lifecycle.preemptible` is not Never; any other label is ignored."""
    del facts
    if asked.labels.get(PREEMPTIBLE_LABEL) == "false" and asked.spec.lifecycle.preemptible != "Never":
        sentence = f"the label {PREEMPTIBLE_LABEL} is false, and spec.lifecycle.preemptible is {asked.spec.lifecycle.preemptible}"
        yield Refused("ConstraintsContradict", sentence, "spec.lifecycle.preemptible", "remove one of the two, or write Never")


def check_ceiling(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the request is within the admission ceiling (R16) and the max of the leaf and of every group above it.

    Nothing is refused where the trees, or the amounts that the Allocation asks for, are unknown.
    """
    quotas = facts.quotas
    if quotas is None or not quotas.charge:
        return
    group = quotas.groups.get(leaf_of(asked, quotas))
    seen: set[str] = set()
    while group is not None and group.name not in seen:
        seen.add(group.name)
        yield from _over(group, quotas)
        group = quotas.groups.get(group.parent)


def _over(group: Declared, quotas: QuotaFacts) -> Iterator[Finding]:
    """Yields a refusal for each resource of which a submission asks for more than a group's max, or with what is submitted there already
    for more than its admission.

    An absent max or admission limits nothing.
    """
    waiting = (quotas.requested or {}).get(group.name, {})
    for key, amount in sorted((quotas.charge or {}).items()):
        if amount > group.max.get(key, amount):
            numbers = f"(requested: {quantity(key, amount)}, max: {quantity(key, group.max[key])})"
            yield Refused(
                "AboveQuotaMax", f'quota "{group.name}" never has so much {key} {numbers}', FIELD, "ask for less, or use another leaf"
            )
        limit = None if group.admission is None else group.admission.get(key)
        if limit is None or (there := waiting.get(key, 0)) + amount <= limit:
            continue
        if limit == 0:
            sentence = f'quota "{group.name}" takes no submissions: its admission of {key} is 0'
            yield Refused("QuotaPaused", sentence, FIELD, "wait until it is open again, or use another leaf")
        else:
            numbers = f"(submitted: {quantity(key, there)}, requested: {quantity(key, amount)}, limit: {quantity(key, limit)})"
            sentence = f'quota "{group.name}" would exceed its admission of {key} {numbers}'
            yield Refused("QuotaExceeded", sentence, FIELD, "wait until submitted work has ended, or use another leaf")


def _hint(asked: Submission, quotas: QuotaFacts, own: str) -> str:
    """Returns the end of a hint: the leaves of the tenant, and the leaf of work that names none."""
    mine = sorted({leaf for binding, leaf in quotas.bindings.by_tenant.items() if binding.tenant == asked.spec.tenant})
    there = f"leaves of your tenant are {', '.join(mine[:SHOWN])}; " if mine else ""
    return f'{there}leave spec.quota out to use "{own}"'
