"""Counts waiting work by user, tenant and vcluster: beyond a limit on waiting work, only the work submitted first may start.

The webhook refuses submissions beyond the limit; this holds the limit when the webhook was away, or when a limit was lowered since.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple


class Place(NamedTuple):
    """The place of waiting work in the order of submission: creation time (RFC 3339, whole seconds), NAMESPACE/NAME, uid."""

    created: str
    key: str
    uid: str


class Scope(NamedTuple):
    """A set of waiting work that one limit counts together: of a tenant or a vcluster ("": any), all of it or one user's or tenant's."""

    vcluster: str = ""
    tenant: str = ""
    user: str = ""

    @property
    def limit_name(self) -> str:
        """Returns the name of the field that limits the scope, as people write it."""
        if not self.vcluster:
            return "quota.perUser.maxPending" if self.user else "quota.maxPending"
        whose = "PerUser" if self.user else "PerTenant" if self.tenant else ""
        return f'limits.maxPending{whose} of vCluster "{self.vcluster}"'

    @property
    def owner(self) -> str:
        """Returns the words for the owner of the work, for a sentence."""
        if self.user:
            return f'user "{self.user}"' + ("" if self.vcluster else f' of tenant "{self.tenant}"')
        return f'tenant "{self.tenant}"' if self.tenant else "all its work"


def scopes_of(tenant: str, user: str, vcluster: str) -> tuple[Scope, ...]:
    """Returns every scope that counts an allocation of this tenant, user and vcluster."""
    mine = Scope(tenant=tenant, user=user), Scope(tenant=tenant)
    return *mine, Scope(vcluster, user=user), Scope(vcluster, tenant=tenant), Scope(vcluster)


class Backlog:
    """The waiting work by scope; `limit` gives how many of a scope may be candidates (None: all).

    Each operation costs log n and a shift.
    """

    def __init__(self, limit: Callable[[Scope], int | None]) -> None:
        self._limit = limit
        self._entered: dict[str, tuple[Place, tuple[Scope, ...]]] = {}
        self._waiting: dict[Scope, list[Place]] = {}

    def enter(self, place: Place, scopes: tuple[Scope, ...]) -> list[str]:
        """Adds work that waits; returns the uids that fall beyond a limit by it."""
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
        """Removes work that waits no more; returns the uids that come within a limit by it."""
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
        """Returns the first scope whose limit keeps this work from starting, with the limit; None while it may start."""
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
        """Raises AssertionError where the sums by scope differ from the entries."""
        sums: dict[Scope, list[Place]] = {}
        for place, scopes in self._entered.values():
            for scope in scopes:
                sums.setdefault(scope, []).append(place)
        assert {scope: sorted(places) for scope, places in sums.items()} == self._waiting, "the backlog is out of step"  # noqa: S101


def sentence(scope: Scope, limit: int) -> str:
    """Returns the sentence for work that waits beyond a limit."""
    over = f"waiting for quota headroom: {scope.owner} has more allocations waiting than {scope.limit_name} allows (limit: {limit})"
    if limit == 0:
        return f"{over}; it is paused: nothing that waits starts until the limit is raised"
    first = "the one that was" if limit == 1 else f"the {limit} that were"
    return f"{over}: only {first} submitted first may start, and this one once it is among them"
