"""Counts of the nodes and allocations in use, which gates compare with limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar

from lattice.scheduling.model.work import NodeHolder

_K = TypeVar("_K")


@dataclass(slots=True)
class Use:
    """Counts of the nodes held and of the allocations that hold them (`running`), of one vcluster, user or tenant."""

    nodes: int = 0
    running: int = 0


NOTHING: Final = Use()


@dataclass
class Uses:
    """Counts of the nodes and allocations in use: by vcluster, by (vcluster, user), by (vcluster, tenant) and by (tenant, user).

    The gates compare them with limits. `borrowed`: by vcluster, the nodes that its work borrows.
    """

    vclusters: dict[str, Use] = field(default_factory=dict)
    users: dict[tuple[str, str], Use] = field(default_factory=dict)
    tenants: dict[tuple[str, str], Use] = field(default_factory=dict)
    borrowed: dict[str, int] = field(default_factory=dict)
    claimed: dict[str, Use] = field(default_factory=dict)
    """By tenant: work placed by cycles that the ledger's accounts do not count yet."""
    people: dict[tuple[str, str], Use] = field(default_factory=dict)
    """By (tenant, user), over all vclusters, claims included."""

    _of: dict[tuple[str, str, str], tuple[Use, Use, Use, Use, Use]] = field(default_factory=dict)
    """By (vcluster, tenant, user): the five counters that such a holder changes."""

    def count(self, holder: NodeHolder, sign: int, *, claimed: bool) -> None:
        """Adds the nodes and the allocation of a holder to every counter that it belongs to (`sign` +1), or subtracts them (−1).

        `claimed`: the ledger has not confirmed the holder, so its tenant's `claimed` counts it too.
        """
        nodes = sign * len(holder.nodes)
        vcluster, tenant, user = who = holder.vcluster, holder.tenant, holder.user
        uses = self._of.get(who)
        if uses is None:
            uses = self._of[who] = (
                _use(self.vclusters, vcluster), _use(self.users, (vcluster, user)), _use(self.tenants, (vcluster, tenant)),
                _use(self.people, (tenant, user)), _use(self.claimed, tenant),
            )  # fmt: skip
        for use in uses if claimed else uses[:4]:
            use.nodes += nodes
            use.running += sign
        if holder.borrowed:
            self.borrowed[vcluster] = self.borrowed.get(vcluster, 0) + sign * len(holder.borrowed)

    def filled(self) -> tuple[object, ...]:
        """Returns all counters that are not zero as dicts, for comparison."""
        parts = (self.vclusters, self.users, self.tenants, self.claimed, self.people)
        return (*({key: (use.nodes, use.running) for key, use in part.items() if use != NOTHING} for part in parts),
                {key: count for key, count in self.borrowed.items() if count})  # fmt: skip


def _use(uses: dict[_K, Use], key: _K) -> Use:
    """Returns the counter of a key, a new one of zeros at the first call."""
    use = uses.get(key)
    if use is None:
        use = uses[key] = Use()
    return use
