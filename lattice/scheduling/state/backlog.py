"""Counts waiting work by user, tenant and vcluster: beyond a limit on waiting work, only the work submitted first may start.

The webhook refuses submissions beyond the limit; `Backlog` keeps the limit when the webhook was away, or when a limit was lowered
since.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple


class Place(NamedTuple):
    """The place of one waiting allocation in the order of submission: creation time (RFC 3339, whole seconds), NAMESPACE/NAME, uid."""

    created: str
    key: str
    uid: str


class Scope(NamedTuple):
    """The waiting work that one limit counts together: of a vcluster, of a tenant or of both; "" stands for any.

    With `user` only the work of that user counts.
    """

    vcluster: str = ""
    tenant: str = ""
    user: str = ""

    @property
    def limit_name(self) -> str:
        """Returns the name of the field that sets the limit of the scope, as people write it in a spec."""
        if not self.vcluster:
            return "quota.perUser.maxPending" if self.user else "quota.maxPending"
        whose = "PerUser" if self.user else "PerTenant" if self.tenant else ""
        return f'limits.maxPending{whose} of vCluster "{self.vcluster}"'

    @property
    def owner(self) -> str:
        """Returns words for a sentence that say whose work the scope counts, such as `user "ann" of tenant "physics"`."""
        if self.user:
            return f'user "{self.user}"' + ("" if self.vcluster else f' of tenant "{self.tenant}"')
        return f'tenant "{self.tenant}"' if self.tenant else "all its work"


def scopes_of(tenant: str, user: str, vcluster: str) -> tuple[Scope, ...]:
    """Returns the five scopes that count an allocation of this tenant, user and vcluster."""
    mine = Scope(tenant=tenant, user=user), Scope(tenant=tenant)
    return *mine, Scope(vcluster, user=user), Scope(vcluster, tenant=tenant), Scope(vcluster)


class Backlog:
    """The waiting allocations by scope; `limit` gives how many of a scope may start, first submitted first (None: all).

    The scheduler enters an allocation when it begins to wait and removes it afterwards. Each operation costs log n and a shift.
    """

    def __init__(self, limit: Callable[[Scope], int | None]) -> None:
        self._limit = limit
        self._entered: dict[str, tuple[Place, tuple[Scope, ...]]] = {}
        self._waiting: dict[Scope, list[Place]] = {}

    def enter(self, place: Place, scopes: tuple[Scope, ...]) -> list[str]:
        """Adds a waiting allocation to these scopes; returns the uids of those that it pushes beyond a limit, one a scope, never its own.

        One that is entered already is ignored: empty.
        """
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
        """Removes an allocation that waits no more; returns the uids of those that come within a limit by it, one a scope; an unknown uid
        is ignored: empty.
        """
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
        """Returns the first scope in whose order this allocation lies beyond the limit, and the limit; None: it may start, or is
        not entered.
        """
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
        """Raises AssertionError where the lists by scope differ from the entered allocations."""
        sums: dict[Scope, list[Place]] = {}
        for place, scopes in self._entered.values():
            for scope in scopes:
                sums.setdefault(scope, []).append(place)
        assert {scope: sorted(places) for scope, places in sums.items()} == self._waiting, "the backlog is out of step"  # noqa: S101


def sentence(scope: Scope, limit: int) -> str:
    """Returns the sentence for an allocation that lies beyond the limit of a scope."""
    over = f"waiting for quota headroom: {scope.owner} has more allocations waiting than {scope.limit_name} allows (limit: {limit})"
    if limit == 0:
        return f"{over}; it is paused: nothing that waits starts until the limit is raised"
    first = "the one that was" if limit == 1 else f"the {limit} that were"
    return f"{over}: only {first} submitted first may start, and this one once it is among them"
