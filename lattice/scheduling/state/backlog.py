"""Waiting work in the order of its submission: of each user, tenant and vcluster only as many may start as may wait.

The webhook refuses what is more; this holds it when the webhook was away, or when a limit was lowered since.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple


class Place(NamedTuple):
    """Where one stands: since when it exists (RFC 3339, whole seconds), NAMESPACE/NAME, uid."""

    created: str
    key: str
    uid: str


class Scope(NamedTuple):
    """Whose waiting work is counted together: of a tenant or a vcluster ("": any), all or one user's or tenant's."""

    vcluster: str = ""
    tenant: str = ""
    user: str = ""

    @property
    def limit_name(self) -> str:
        """The field that limits it, as people know it."""
        if not self.vcluster:
            return "quota.perUser.maxPending" if self.user else "quota.maxPending"
        whose = "PerUser" if self.user else "PerTenant" if self.tenant else ""
        return f'limits.maxPending{whose} of vCluster "{self.vcluster}"'

    @property
    def owner(self) -> str:
        """Whose it is, for a sentence."""
        if self.user:
            return f'user "{self.user}"' + ("" if self.vcluster else f' of tenant "{self.tenant}"')
        return f'tenant "{self.tenant}"' if self.tenant else "all its work"


def scopes_of(tenant: str, user: str, vcluster: str) -> tuple[Scope, ...]:
    """Every scope that an allocation counts in."""
    mine = Scope(tenant=tenant, user=user), Scope(tenant=tenant)
    return *mine, Scope(vcluster, user=user), Scope(vcluster, tenant=tenant), Scope(vcluster)


class Backlog:
    """What waits, by scope; `limit` says how many of a scope may be candidates (None: all). An operation costs log n and a shift."""

    def __init__(self, limit: Callable[[Scope], int | None]) -> None:
        self._limit = limit
        self._entered: dict[str, tuple[Place, tuple[Scope, ...]]] = {}
        self._waiting: dict[Scope, list[Place]] = {}

    def enter(self, place: Place, scopes: tuple[Scope, ...]) -> list[str]:
        """It waits; answers whom it pushed beyond a limit."""
        uid = place.uid
        if uid in self._entered:
            return []
        self._entered[uid] = place, scopes
        pushed = []
        for scope in scopes:
            waiting, limit = self._waiting.setdefault(scope, []), self._limit(scope)
            insort(waiting, place)
            if limit is not None and limit < len(waiting) and place < waiting[limit]:
                pushed.append(waiting[limit].uid)
        return pushed

    def leave(self, uid: str) -> list[str]:
        """It waits no more; answers whom that brings within a limit."""
        known = self._entered.pop(uid, None)
        if known is None:
            return []
        place, scopes = known
        brought = []
        for scope in scopes:
            waiting, limit = self._waiting[scope], self._limit(scope)
            at = bisect_left(waiting, place)
            del waiting[at]
            if not waiting:
                del self._waiting[scope]
            if limit is not None and at < limit <= len(waiting):
                brought.append(waiting[limit - 1].uid)
        return brought

    def beyond(self, uid: str) -> tuple[Scope, int] | None:
        """The first scope whose limit leaves it out, with that limit; None while it may start."""
        known = self._entered.get(uid)
        if known is None:
            return None
        place, scopes = known
        for scope in scopes:
            limit = self._limit(scope)
            if limit is not None and bisect_left(self._waiting[scope], place) >= limit:
                return scope, limit
        return None

    def validate(self) -> None:
        """Raise AssertionError where the scopes are not what the entries make them."""
        sums: dict[Scope, list[Place]] = {}
        for place, scopes in self._entered.values():
            for scope in scopes:
                sums.setdefault(scope, []).append(place)
        assert {scope: sorted(places) for scope, places in sums.items()} == self._waiting, "the backlog is out of step"  # noqa: S101


def sentence(scope: Scope, limit: int) -> str:
    """Why what is beyond a limit waits."""
    over = f"waiting for quota headroom: {scope.owner} has more allocations waiting than {scope.limit_name} allows (limit: {limit})"
    if limit == 0:
        return f"{over}; it is paused: nothing that waits starts until the limit is raised"
    first = "the one that was" if limit == 1 else f"the {limit} that were"
    return f"{over}: only {first} submitted first may start, and this one once it is among them"
