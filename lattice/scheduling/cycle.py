"""One scheduling cycle of one vcluster: pending work in order; a place, or a reason with numbers, each.

`decide` takes what it places from the machine as it goes. It reads the scene and no clock, so that equal scenes and
candidates give equal decisions. A blocked candidate may get a reservation (a `Promise`): work behind it starts only if that
delays no promise. Promises last from cycle to cycle until they are kept, improved, or overtaken by newer work of a higher
score; other vclusters see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lattice.scheduling.gates import Room, admission, hard_quota, own_wishes, room, vcluster_limits
from lattice.scheduling.lanes import Lane, Lanes
from lattice.scheduling.outcomes import Outcome, Placed, Score, Waiting
from lattice.scheduling.placement import Counts, nodes_of
from lattice.scheduling.profile import Promise
from lattice.scheduling.reasons import Explainer
from lattice.scheduling.scene import Scene
from lattice.scheduling.strategies import STRATEGIES, Ranked
from lattice.scheduling.work import Candidate


def decide(scene: Scene, vcluster: str, candidates: Iterable[Candidate], now: float, *, explain: bool = True) -> Iterator[Outcome]:
    """One outcome for each candidate of a vcluster, in order; claims what it places in `scene` as it goes.

    The caller confirms a place with `scene.put_holder` or gives it back with `scene.drop_holder`. Without `explain` what waits for
    nodes has no reason and no sentence; the decisions are the same.
    """
    cycle = _Cycle(scene, vcluster, list(candidates), now, explain=explain)
    for candidate, score in cycle.queue:
        # 1. What keeps it from nodes whatever is free: itself, hard quota, limits of the vcluster. The quota tree follows here.
        waiting = cycle.gate(candidate)
        if waiting is not None:
            yield cycle.gated(waiting, score)
            continue
        lane = cycle.lanes.of(candidate)
        # 2. A policy of strict order lets nobody pass one that waits for nodes which he could use.
        if cycle.overtakes(lane):
            yield cycle.behind(candidate, lane, score)
            continue
        # 3. A place now that delays no promise.
        promise = cycle.profile.remove(candidate.uid)
        counts = cycle.now(candidate, lane, retry=promise is not None)
        # 4. Newer work of a higher score overtakes the promises of those behind it.
        if counts is None and promise is None and cycle.drop_lower_promises(candidate, lane):
            counts = cycle.now(candidate, lane, retry=True)
        if counts is not None:
            yield cycle.place(candidate, lane, counts, score)
            continue
        # 5. No place: a reservation, if the depth of the policy has one left, and the reason.
        reserved = cycle.reserve(candidate, lane, promise)
        yield cycle.explainer.waiting(candidate, lane, score, reserved)


class _Cycle:
    """What one cycle knows while it runs."""

    def __init__(self, scene: Scene, vcluster: str, candidates: list[Candidate], now: float, *, explain: bool) -> None:
        self.scene = scene
        self.policy = scene.policy(vcluster)
        self.strategy = STRATEGIES[self.policy.kind]
        self.instant = now
        scene.set_lists(vcluster, frozenset().union(*{candidate.need.lists for candidate in candidates}))
        self.queue = self._ranked(candidates)
        waiting = {candidate.uid for candidate in candidates}
        before = scene.promises.get(vcluster, {})
        scene.promises[vcluster] = {uid: promise for uid, promise in before.items() if uid in waiting}
        self.profile = scene.profile(now)
        self._inherited = set(scene.promises[vcluster])
        self._kept = scene.promises[vcluster] = {}
        self.lanes = Lanes(scene, self.policy, self.strategy, self.profile, [candidate for candidate, _ in self.queue], now)
        self.explainer = Explainer(scene, self.policy, self.lanes, self.profile, now, silent=not explain)
        self._dropped: dict[str, Promise] = {}
        self._rooms: dict[tuple[str, str], Room] = {}
        self._reserved = 0
        self._depth = self.strategy.depth(self.policy)

    def gate(self, candidate: Candidate) -> Waiting | None:
        """What blocks it whatever is free."""
        scene, now = self.scene, self.instant
        waiting = own_wishes(scene, candidate, now)
        if waiting is not None:
            return waiting
        left = self.room(candidate)
        if left.nodes >= candidate.minimum and left.starts >= 1:
            return admission(scene, candidate, now) if candidate.reservation else None
        return hard_quota(scene, candidate, now) or vcluster_limits(scene, candidate, now)

    def room(self, candidate: Candidate) -> Room:
        """What quota and limits leave to its user."""
        key = (candidate.tenant, candidate.user)
        left = self._rooms.get(key)
        if left is None:
            left = self._rooms[key] = room(self.scene, self.policy, *key)
        return left

    def gated(self, waiting: Waiting, score: Score) -> Waiting:
        """Its reason with its score; what it was promised is for others."""
        self._forget(waiting.candidate.uid)
        return Waiting(waiting.candidate, waiting.reason, waiting.message, waiting.wake, score)

    def overtakes(self, lane: Lane) -> bool:
        """Whether somebody before it waits for nodes that it could use, where the policy is strict."""
        return self.strategy.strict and self.lanes.contested(lane)

    def behind(self, candidate: Candidate, lane: Lane, score: Score) -> Waiting:
        """It may not pass; what it was promised is for others."""
        self._forget(candidate.uid)
        return self.explainer.behind(candidate, lane, score)

    def now(self, candidate: Candidate, lane: Lane, *, retry: bool) -> Counts | None:
        """Nodes that it may start on now."""
        return lane.start(candidate, self.room(candidate).nodes, retry=retry)

    def drop_lower_promises(self, candidate: Candidate, lane: Lane) -> bool:
        """Take back what those behind were promised, if nodes are what it waits for; whether that was anything."""
        if not self._inherited or not lane.may_reserve(candidate):
            return False
        for uid in self._inherited:
            promise = self.profile.remove(uid)
            if promise is not None:
                self._dropped[uid] = promise
        self._inherited.clear()
        self.lanes.forget_failures()
        return True

    def place(self, candidate: Candidate, lane: Lane, counts: Counts, score: Score) -> Placed:
        """Claim the nodes."""
        self._forget(candidate.uid)
        nodes = nodes_of(counts, lane.taken_from)
        known, home = self.scene.machine.nodes, lane.home
        borrowed = tuple(node for node in nodes if known[node].home != home) if lane.borrows else ()
        self.scene.claim(candidate, nodes, self.instant, borrowed)
        self.lanes.placed += 1
        self._rooms.clear()
        return Placed(candidate, nodes, score, backfilled=self._reserved > 0)

    def reserve(self, candidate: Candidate, lane: Lane, before: Promise | None) -> Promise | None:
        """Promise it nodes, if it may hold a reservation: those of the last cycle, or earlier ones."""
        self._inherited.discard(candidate.uid)
        if not (self.strategy.strict or self._reserved < self._depth) or not lane.may_reserve(candidate):
            return None
        if self.strategy.strict:
            self.lanes.contend(lane)
        if self._reserved >= self._depth:
            return None
        promise = lane.promise(candidate, before or self._dropped.get(candidate.uid))
        if promise is None:
            return None
        self._reserved += 1
        self.profile.add(promise)
        self._kept[candidate.uid] = promise
        return promise

    def _forget(self, uid: str) -> None:
        self._inherited.discard(uid)
        self.profile.remove(uid)

    def _ranked(self, candidates: Sequence[Candidate]) -> list[Ranked]:
        known = sorted(candidates, key=lambda candidate: candidate.key)
        scores = self.scene.scoring(self.policy.name).score(known, self.scene.machine, self.instant)
        return sorted(zip(known, scores, strict=True), key=self.strategy.key)
