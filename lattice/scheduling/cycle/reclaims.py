"""The borrowers that would have to give nodes back so that a candidate of the lending vcluster starts."""

from __future__ import annotations

from collections.abc import Sequence

from lattice.scheduling.cycle.equivalence import EquivalenceClass
from lattice.scheduling.cycle.wording import count_nodes
from lattice.scheduling.model.outcomes import Reclaim
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import format_duration


def reclaims_for(state: ClusterState, vcluster: str, candidate: Candidate, eq_class: EquivalenceClass) -> tuple[Reclaim, ...]:
    """Returns the borrowers to ask for their nodes so that a candidate of this vcluster could start; reclaims nothing.

    Lowest borrowing priority first, then the latest begun, none needlessly. Empty where enough nodes are free, or where all borrowers
    together would not give enough.
    """
    missing = candidate.minimum - eq_class.pool.whole.total
    offers: list[tuple[int, float, str, Reclaim]] = []
    for uid, holder in state.holders.items():
        if holder.borrowed and holder.vcluster != vcluster and not holder.releasing:
            nodes = tuple(node for node in holder.borrowed if _is_usable(state, node, eq_class))
            if nodes:
                lent = state.policy(holder.vcluster).borrowing
                reclaim = Reclaim(uid, holder.vcluster, nodes, lent.return_grace)
                offers.append((lent.priority, -holder.since, uid, reclaim))
    chosen: list[Reclaim] = []
    for _, _, _, reclaim in sorted(offers, key=lambda offer: offer[:3]):
        if missing <= 0:
            break
        chosen.append(reclaim)
        missing -= len(reclaim.nodes)
    for reclaim in reversed(chosen[:-1]):  # what the later ones make needless
        if missing + len(reclaim.nodes) <= 0:
            chosen.remove(reclaim)
            missing += len(reclaim.nodes)
    return tuple(chosen) if missing <= 0 else ()


def lent(reclaims: Sequence[Reclaim]) -> str:
    """Returns a clause on how many nodes are lent to which vclusters, and in which time they would have to be given back.

    `reclaims` must not be empty. Nothing is reclaimed by it.
    """
    counts: dict[str, int] = {}
    for one in reclaims:
        counts[one.vcluster] = counts.get(one.vcluster, 0) + len(one.nodes)
    borrowers = ", ".join(f'{count_nodes(count)} to vCluster "{name}"' for name, count in sorted(counts.items()))
    longest = max(one.grace for one in reclaims)
    grace = f"within {format_duration(longest)}" if longest else "at once"
    return f"lent are {borrowers}: to be given back {grace} (decided; this release reclaims nothing)"


def _is_usable(state: ClusterState, node: int, eq_class: EquivalenceClass) -> bool:
    """Tells whether a node (index) is usable and in the pool of an equivalence class."""
    facts = state.node_cache.nodes.get(node)
    return facts is not None and facts.usable and state.node_cache.table.of_node[node] in eq_class.pool.members
