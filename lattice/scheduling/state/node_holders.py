"""The holders of nodes, and all that they count in: the node cache, the uses that limits bound, the quota trees."""

from __future__ import annotations

from collections.abc import Iterable

from lattice.errors import Corrupt
from lattice.scheduling.cluster.node_cache import NEVER, NodeCache
from lattice.scheduling.cluster.placement import Counts
from lattice.scheduling.model.work import NodeHolder
from lattice.scheduling.state.quota_usage import QuotaUsage
from lattice.scheduling.state.uses import Uses


class NodeHolders:
    """The holders of nodes by uid, those of claims that the ledger has not confirmed among them, with all sums that they count in.

    A part of the cluster state, which alone calls its methods.
    """

    def __init__(self, node_cache: NodeCache) -> None:
        self.by_uid: dict[str, NodeHolder] = {}
        self.uses = Uses()
        self._node_cache = node_cache
        self._quota_usage: QuotaUsage | None = None
        self._claims: set[str] = set()
        self._lost: dict[str, set[int]] = {}
        """By uid: nodes of a holder that another holder has taken since, so that dropping the first does not free them."""

    def charge_to(self, quota_usage: QuotaUsage | None, *, charged: bool = False) -> None:
        """Charges the holders, and those to come, to these quota trees; None: to none. `charged`: the present ones are charged already."""
        self._quota_usage = quota_usage
        if quota_usage is not None and not charged:
            for holder in self.by_uid.values():
                quota_usage.hold(holder)

    def claims(self) -> frozenset[str]:
        """Returns the uids of the claims that the ledger has not confirmed yet."""
        return frozenset(self._claims)

    def put_holder(self, holder: NodeHolder, *, claimed: bool = False) -> None:
        """Records a holder: an equal record changes nothing, one that `holds_as` the one before confirms its claim unless another holder
        has taken nodes of it, any other replaces it. Nodes that another holder holds go over to it.

        `claimed`: the holder is a claim that the ledger has not confirmed, which always replaces.
        """
        before = self.by_uid.get(holder.uid)
        planned = claimed
        if before is not None:
            if not claimed and holder.uid not in self._claims and before == holder:
                return
            if not claimed and before.holds_as(holder) and holder.uid not in self._lost:
                self._confirm(holder)
                return
            planned = before.nodes == holder.nodes and _until(holder) <= _until(before)
            self.drop_holder(holder.uid)
        if not self._node_cache.taken.keys().isdisjoint(holder.nodes):
            self._lose(holder)
            planned = False
        self._node_cache.take(holder.nodes, _until(holder), planned=planned)
        self._add(holder, claimed=claimed)

    def put_claim(self, holder: NodeHolder, counts: Counts | None) -> None:
        """Records a claim on free nodes; `counts`: how many of each bucket, where these are its lowest free ones; None: any nodes."""
        if counts is None or holder.uid in self.by_uid:
            self.put_holder(holder, claimed=True)
        else:
            self._node_cache.take_free(holder.nodes, NEVER if holder.end is None else holder.end, counts)
            self._add(holder, claimed=True)

    def drop_holder(self, uid: str) -> None:
        """Removes a holder and frees its nodes, except those that another holder has taken since; an unknown uid is ignored."""
        holder = self.by_uid.pop(uid, None)
        if holder is None:
            return
        self.uses.count(holder, -1, claimed=uid in self._claims)
        self._claims.discard(uid)
        if self._quota_usage is not None:
            self._quota_usage.release(uid)
        lost = self._lost.pop(uid, None)
        self._node_cache.give(holder.nodes if lost is None else [node for node in holder.nodes if node not in lost])

    def drop_claims(self, uids: Iterable[str]) -> None:
        """Removes those of these holders that are still claims."""
        for uid in uids:
            if uid in self._claims:
                self.drop_holder(uid)

    def validate(self) -> None:
        """Counts the uses again from the holders; raises Corrupt on a difference."""
        again = Uses()
        for uid, holder in self.by_uid.items():
            again.count(holder, 1, claimed=uid in self._claims)
        if again.filled() != self.uses.filled():
            raise Corrupt("the counters of the cluster state differ from its holders", reason="CountersDiffer")

    def _add(self, holder: NodeHolder, *, claimed: bool) -> None:
        """Adds a holder, whose nodes the node cache holds already, to the holders, the sums of use, and the quota trees.

        `claimed`: it was proposed by a cycle, and its usage is not accounted for yet.
        """
        self.by_uid[holder.uid] = holder
        if claimed:
            self._claims.add(holder.uid)
        self.uses.count(holder, 1, claimed=claimed)
        if self._quota_usage is not None:
            self._quota_usage.hold(holder)

    def _confirm(self, holder: NodeHolder) -> None:
        """Confirms a claim: same nodes, same end; moves its usage from claimed to accounted. A holder that is no claim is replaced."""
        uid = holder.uid
        self.by_uid[uid] = holder
        if uid in self._claims:
            self._claims.discard(uid)
            use = self.uses.claimed[holder.tenant]
            use.nodes -= len(holder.nodes)
            use.running -= 1

    def _lose(self, taker: NodeHolder) -> None:
        """Notes which nodes of other holders a new holder has taken over, so that dropping those holders does not free them."""
        nodes = set(taker.nodes)
        for uid, holder in self.by_uid.items():
            shared = nodes.intersection(holder.nodes)
            if shared:
                self._lost.setdefault(uid, set()).update(shared)


def _until(holder: NodeHolder) -> float:
    """Returns the end of a holder, NEVER where it has none."""
    return NEVER if holder.end is None else holder.end
