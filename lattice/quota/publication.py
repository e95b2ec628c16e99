"""Builds the figures of a group that are published: the status of an ElasticQuota, and Koordinator's annotations and status."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lattice.lifecycle.conditions import FALSE, TRUE, encode, same_but_for_times, with_condition, without_conditions
from lattice.models.conditions import READY, STALLED
from lattice.quota.amounts import quantities, quantity, resource_of, shown
from lattice.quota.declared import PREFIX
from lattice.quota.forest import GroupState
from lattice.quota.groups import Resources
from lattice.views import Condition, ElasticQuota, KoordinatorQuota

OVERUSED: Final = "Overused"
"""The condition type that says whether a group uses more than it may."""
SUMMARY_LIMIT: Final = 120
"""Most characters of a table column in the summary."""
PUBLISHED: Final = tuple(PREFIX + name for name in ("runtime", "request", "child-request", "non-preemptible-used"))
"""Koordinator's annotations that the scheduler writes and never reads."""
_AMOUNTS: Final = ("total", "request", "childRequest", "used", "nonPreemptibleUsed", "runtime", "effectiveMin", "borrowed")
Patch = dict[str, Any]


@dataclass(frozen=True)
class News:
    """The figures of one group that the scheduler wants to publish."""

    standing: GroupState | None = None
    """The state of the group; None: it takes no part in any tree."""
    fault: tuple[str, str] | None = None
    """The reason and the sentence where it takes no part, or breaks a rule; None: all is well."""
    total: Resources | None = None
    """The amounts that the tree divides; only for the root of a tree, and each group on the first level of the default tree."""
    over: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By overused resource: used and allowed."""
    over_since: str | None = None
    """Since when the group uses more than it may (RFC 3339); None: it does not."""
    scarce: Container[str] = frozenset()
    """Resources of which the mins at the group's level exceed what there is, so that not all can be guaranteed."""


def status_patch(view: ElasticQuota, news: News, now: str) -> Patch | None:
    """Returns the merge patch for the status of an ElasticQuota; None where the status is up to date. `now`: RFC 3339."""
    status, amounts = view.status, _amounts(news)
    conditions = _conditions(view, news, now)
    before = {name: getattr(status, _snake(name)) for name in amounts}
    summary = _summary(view, news)
    plain = {
        "observedGeneration": view.metadata.generation,
        "tree": news.standing.tree if news.standing is not None else "",
        "overSince": news.over_since,
    }
    same = (
        before == amounts
        and (status.observed_generation, status.tree, status.over_since) == tuple(plain.values())
        and same_but_for_times(conditions, status.conditions)
        and (summary is None) == (status.summary is None)
        and (status.summary is None or summary == {name: getattr(status.summary, name) for name in ("min", "max", "runtime", "used")})
    )
    if same:
        return None
    changed = {name: _replacing(before[name], after) for name, after in amounts.items()}
    return {"status": {**plain, **changed, "conditions": encode(conditions), "summary": summary}}


def koordinator_patch(view: KoordinatorQuota, news: News) -> Patch:
    """Returns the patch of Koordinator's annotations and `status.used`, with the resource names of the object's own max.

    Empty where the group takes no part in any tree.
    """
    standing = news.standing
    if standing is None:
        return {}
    names = {name: resource_of(name) for name in view.spec.max}

    def listed(amounts: Resources) -> dict[str, str]:
        """Returns the amounts of Koordinator's resources as quantities in text; 0 for those that are missing."""
        return {name: quantity(resource, amounts.get(resource, 0)) for name, resource in sorted(names.items())}

    amounts = (standing.runtime, standing.request, standing.child_request, standing.non_preemptible_used)
    notes = {name: json.dumps(listed(each), separators=(",", ":")) for name, each in zip(PUBLISHED, amounts, strict=True)}
    return {"metadata": {"annotations": notes}, "status": {"used": listed(standing.used)}}


def is_published(view: KoordinatorQuota, patch: Patch) -> bool:
    """Tells whether an object already has the values that a patch would write."""
    if not patch:
        return True
    notes = patch["metadata"]["annotations"]
    return all(view.metadata.annotations.get(name) == text for name, text in notes.items()) and (
        {name: str(amount) for name, amount in view.status.used.items()} == patch["status"]["used"]
    )


def _amounts(news: News) -> dict[str, dict[str, int | str] | None]:
    """Returns the amounts of a status by field name; None for a field without amounts."""
    standing = news.standing
    given: dict[str, Resources] = {name: {} for name in _AMOUNTS}
    if standing is not None:
        given |= {
            "total": news.total or {},
            "request": standing.request,
            "childRequest": standing.child_request,
            "used": standing.used,
            "nonPreemptibleUsed": standing.non_preemptible_used,
            "runtime": standing.runtime,
            "effectiveMin": standing.effective_min,
            "borrowed": standing.borrowed,
        }
    return {name: quantities(amounts) if amounts else None for name, amounts in given.items()}


def _conditions(view: ElasticQuota, news: News, now: str) -> tuple[Condition, ...]:
    """Returns the conditions of an ElasticQuota: Ready, Stalled where it has a fault, and Overused, which is absent without figures.

    A condition that does not change keeps its time.
    """
    generation, conditions = view.metadata.generation, without_conditions(view.status.conditions, (STALLED,))
    reason, message = news.fault or ("InForce", _in_force(news))
    sound = news.fault is None
    conditions = with_condition(conditions, READY, TRUE if sound else FALSE, reason, message, generation=generation, now=now)
    if not sound:
        kept = next((entry for entry in view.status.conditions if entry.type == STALLED), None)
        seed = (*conditions, kept) if kept is not None else conditions
        conditions = with_condition(seed, STALLED, TRUE, reason, message, generation=generation, now=now)
    if news.standing is None:
        return without_conditions(conditions, (OVERUSED,))
    over = "; ".join(
        f"{resource}: {quantity(resource, used)} used, {quantity(resource, allowed)} allowed"
        for resource, (used, allowed) in sorted(news.over.items())
    )
    verdict = (TRUE, "AboveRuntime", over) if over else (FALSE, "WithinRuntime", "it uses no more than it may")
    return with_condition(conditions, OVERUSED, *verdict, generation=generation, now=now)


def _in_force(news: News) -> str:
    """Returns a sentence on how much of a group's min is in effect, and why less is; empty without figures."""
    standing = news.standing
    if standing is None:
        return ""
    short = {key: amount for key, amount in standing.effective_min.items() if amount < standing.min.get(key, 0)}
    if not short:
        return "its min is guaranteed in full"
    scarce = {key: amount for key, amount in short.items() if key in news.scarce}
    if not scarce:
        return "its min is guaranteed in full; while nothing asks for it, less is in effect"
    least = shown({key: standing.min[key] for key in scarce})
    return f"of its min of {least}, {shown(scarce)} is in effect now: the mins of its level are more than the level may use"


def _summary(view: ElasticQuota, news: News) -> dict[str, str] | None:
    """Returns min, max, runtime and use of a group as short texts for the columns of kubectl; None without figures."""
    standing = news.standing
    if standing is None:
        return None
    parts = {"min": standing.min, "max": standing.max, "runtime": standing.runtime, "used": standing.used}
    return {name: _short(shown({key: amounts.get(key, 0) for key in standing.max if amounts.get(key)})) for name, amounts in parts.items()}


def _short(text: str) -> str:
    """Returns a text cut to at most 120 characters, with … as the last one where it was cut."""
    return text if len(text) <= SUMMARY_LIMIT else f"{text[: SUMMARY_LIMIT - 1]}…"


def _replacing(before: Mapping[str, int | str] | None, after: Mapping[str, int | str] | None) -> Mapping[str, int | str | None] | None:
    """Returns the merge patch that turns one map into another; removed keys become null. None: the map itself goes."""
    if after is None:
        return None
    return {**dict.fromkeys((before or {}).keys() - after.keys()), **after}


def _snake(name: str) -> str:
    """Returns a name in camelCase as snake_case."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
