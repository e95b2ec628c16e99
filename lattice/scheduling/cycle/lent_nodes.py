"""The nodes of other vclusters that candidates of one equivalence class may borrow."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.scheduling.cluster.availability import AvailabilityProfile
from lattice.scheduling.cluster.free_counts import FreeCounts
from lattice.scheduling.cluster.node_cache import Bucket
from lattice.scheduling.cluster.node_choice import NodeChoice
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import lenders_for
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.headroom import NO_LIMIT


class Lending:
    """The rules by which one vcluster borrows in one cycle, and the state that it borrows from; all its equivalence classes share it."""

    def __init__(self, state: ClusterState, policy: Policy, profile: AvailabilityProfile, now: float) -> None:
        self.state, self.policy, self.profile, self.now = state, policy, profile, now
        self._lenders: dict[float | None, frozenset[str]] = {}

    def borrowing_left(self) -> int:
        """Returns how many more nodes the vcluster may borrow; `NO_LIMIT` without a limit, negative where it has borrowed more."""
        most = self.policy.borrowing.max_borrowed
        return NO_LIMIT if most is None else most - self.state.uses.borrowed.get(self.policy.name, 0)

    def lenders(self, walltime: float | None) -> frozenset[str]:
        """Returns the names of the vclusters that lend to work of this walltime (seconds; None: unbounded); empty where the vcluster
        borrows nothing.
        """
        found = self._lenders.get(walltime)
        if found is None:
            found = self._lenders[walltime] = frozenset(lenders_for(self.state.policies, self.policy.name, walltime))
        return found


class LentNodes:
    """Finds what other vclusters lend to one equivalence class in one cycle; `borrows`: its work may run there."""

    __slots__ = ("_borrows", "_choice", "_idle_of", "_lending", "_lent", "_reach", "_reservation")

    def __init__(self, lending: Lending, choice: NodeChoice, reservation: str, *, borrows: bool) -> None:
        self._lending, self._choice, self._reservation, self._borrows = lending, choice, reservation, borrows
        self._lent: dict[frozenset[str], list[Bucket]] = {}
        """The buckets of lending vclusters that admit the need, by the set of these vclusters."""
        self._idle_of: tuple[list[Bucket], int, int] = ([], -1, 0)
        self._reach: dict[frozenset[str], tuple[list[Bucket], int, int]] = {}

    def lenders(self, candidate: Candidate) -> list[Bucket]:
        """Returns the buckets, free nodes or not, of other vclusters whose nodes a candidate may borrow for its whole walltime.

        Whether the candidate is preemptible, as it must be to borrow, is not checked.
        """
        homes = self._lending.lenders(candidate.walltime)
        found = self._lent.get(homes)
        if found is None:
            key = self._choice.key
            found = self._lent[homes] = [
                bucket
                for bucket in self._lending.state.node_cache.table.admitted(key.need)
                if bucket.key.home in homes
                and (bucket.key.fingerprint or not key.known)
                and (key.classes is None or bucket.key.hardware in key.classes)
            ]
        return found

    def within_reach(self, candidate: Candidate) -> tuple[list[Bucket], int, int]:
        """Returns the buckets that a candidate may ever use, its own and those of lenders; how many of their nodes fit; and how many may
        work.

        Nodes of lenders count at most as many as the vcluster may borrow in all, and none where the class does not borrow.
        """
        homes = self._lending.lenders(candidate.walltime) if self._borrows else frozenset()
        found = self._reach.get(homes)
        if found is None:
            lent, most = self.lenders(candidate) if homes else [], self._lending.policy.borrowing.max_borrowed
            others, ready = sum(len(bucket.members) for bucket in lent), sum(bucket.usable for bucket in lent)
            if most is not None:
                others, ready = min(others, most), min(ready, most)
            eligible, usable = self._choice.pool.sizes
            found = self._reach[homes] = [*self._choice.pool.buckets, *lent], eligible + others, usable + ready
        return found

    def pools(self, candidate: Candidate, duration: float) -> Iterator[FreeCounts]:
        """Yields pools of nodes at home and of lenders: first with as many lent nodes as lack at home, then with all that may be borrowed.

        Yields nothing where both together have fewer free nodes than the candidate's minimum.
        """
        lending = self._lending
        left = lending.borrowing_left()
        others = self.lenders(candidate) if left > 0 else []
        if self._choice.pool.whole.total + min(left, self._idle(others)) < candidate.minimum:
            return
        pool = FreeCounts(lending.state.node_cache, [*self._choice.pool.buckets, *others])
        free = lending.profile.capacities(pool.members, lending.now, lending.now + duration, self._reservation)
        lacking = candidate.minimum - sum(free[bucket] for bucket in self._choice.pool.members)
        for most in (lacking, left) if 0 < lacking < left else (left,):
            caps, still = dict(free), most
            for bucket in others:
                caps[bucket] = min(caps[bucket], still)
                still -= caps[bucket]
            yield pool.capped(caps)

    def _idle(self, buckets: list[Bucket]) -> int:
        """Returns how many nodes of these buckets are free; remembers the last answer."""
        changes = self._lending.state.node_cache.changes
        asked, at, idle = self._idle_of
        if asked is not buckets or at != changes:
            idle = sum([len(bucket.free) for bucket in buckets])
            self._idle_of = buckets, changes, idle
        return idle
