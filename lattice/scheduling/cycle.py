"""One scheduling cycle of one vcluster: pending work in order; a place, or a reason with numbers, each.

`decide` takes what it places from the machine as it goes. It reads the scene and no clock, so that equal scenes and
candidates give equal decisions. A blocked candidate may get a reservation (a `Promise`): work behind it starts only if that
delays no promise. Promises last from cycle to cycle until they are kept, improved, or overtaken by newer work of a higher
score; other vclusters see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from lattice.scheduling.gates import WIDE, Room, admission, boundless, hard_quota, own_wishes, room, vcluster_limits
from lattice.scheduling.lanes import Kind, Lane, Lanes
from lattice.scheduling.outcomes import Outcome, Placed, Score, Waiting
from lattice.scheduling.placement import Counts, nodes_of
from lattice.scheduling.policy import Limits
from lattice.scheduling.profile import Promise
from lattice.scheduling.reasons import Explainer
from lattice.scheduling.scene import Scene
from lattice.scheduling.strategies import STRATEGIES
from lattice.scheduling.work import Candidate


def decide(scene: Scene, vcluster: str, candidates: Iterable[Candidate], now: float, *, explain: bool = True) -> Iterator[Outcome]:
    """One outcome for each candidate of a vcluster, in order; claims what it places in `scene` as it goes.

    The caller confirms a place with `scene.put_holder` or gives it back with `scene.drop_holder`. Without `explain` what waits for
    nodes has no reason and no sentence, and nothing has a score; the decisions are the same.
    """
    cycle = _Cycle(scene, vcluster, list(candidates), now, explain=explain)
    kind_of, explained, promises = cycle.lanes.kind, cycle.explainer.waiting, cycle.profile.promises
    for candidate, score in cycle.queue():
        # 1. What keeps it from nodes whatever is free: itself, hard quota, limits of the vcluster. The quota tree follows here.
        waiting = cycle.gate(candidate)
        if waiting is not None:
            yield cycle.gated(waiting, score)
            continue
        kind = kind_of(candidate)
        # 2. A policy of strict order lets nobody pass one that waits for nodes which he could use.
        if cycle.strict and cycle.lanes.contested(kind.lane):
            yield cycle.behind(candidate, kind, score)
            continue
        # 3. A place now that delays no promise.
        promise = cycle.take_back(candidate.uid) if promises else None
        counts = None if kind.failed and promise is None else cycle.now(candidate, kind, retry=promise is not None)
        # 4. Newer work of a higher score overtakes the promises of those behind it.
        if counts is None and promise is None and cycle.inherited and cycle.drop_lower_promises(candidate, kind.lane):
            counts = cycle.now(candidate, kind, retry=True)
        if counts is not None:
            yield cycle.place(candidate, kind.lane, counts, score)
            continue
        # 5. No place: a reservation, if the depth of the policy has one left, and the reason.
        reserved = cycle.reserve(candidate, kind.lane, promise) if cycle.reserves else None
        yield explained(candidate, kind, score, reserved)


class _Cycle:
    """What one cycle knows while it runs."""

    def __init__(self, scene: Scene, vcluster: str, candidates: list[Candidate], now: float, *, explain: bool) -> None:
        self.scene = scene
        self.policy = scene.policy(vcluster)
        self.strategy = STRATEGIES[self.policy.kind]
        self.instant = now
        scene.set_lists(vcluster, frozenset().union(*{candidate.need.lists for candidate in candidates}))
        self._known = sorted(candidates, key=attrgetter("key"))
        self._scores = scene.scoring(vcluster).score(self._known, scene.machine, now)
        self._explain = explain
        waiting = {candidate.uid for candidate in candidates}
        before = scene.promises.get(vcluster, {})
        scene.promises[vcluster] = {uid: promise for uid, promise in before.items() if uid in waiting}
        self.profile = scene.profile(now)
        self.inherited = set(scene.promises[vcluster])
        """Who holds a promise of the last cycle that nobody has taken back."""
        self._kept = scene.promises[vcluster] = {}
        self.lanes = Lanes(scene, self.policy, self.strategy, self.profile, self._known, now)
        self.explainer = Explainer(scene, self.policy, self.lanes, self.profile, now, silent=not explain)
        self._dropped: dict[str, Promise] = {}
        self._rooms: dict[tuple[str, str], Room] = {}
        self._limitless = self.policy.limits == Limits()
        self._bounded: list[tuple[str, str]] = []
        """Those of them that change with what is placed."""
        self._reserved = 0
        self._depth = self.strategy.depth(self.policy)
        self.strict = self.strategy.strict
        """Whether nobody passes one that waits for nodes which he could use."""
        self.reserves = self.strict or self._depth > 0
        """Whether the next blocked one may hold a reservation, or keeps others off its nodes."""

    def queue(self) -> Iterator[tuple[Candidate, Score | None]]:
        """The candidates in order, with their scores if they are asked for."""
        known, scores = self._known, self._scores
        totals: Sequence[float] = getattr(scores, "totals", None) or [score.total for score in scores]
        for place in self.strategy.order(known, totals):
            yield known[place], scores[place] if self._explain else None

    def gate(self, candidate: Candidate) -> Waiting | None:
        """What blocks it whatever is free."""
        scene, now = self.scene, self.instant
        if (
            candidate.held or candidate.blocked is not None or candidate.not_before > now or candidate.back_off_until > now
            or not candidate.vcluster_known or not candidate.vcluster_open
        ):  # fmt: skip
            return own_wishes(scene, candidate, now)
        left = self._rooms.get((candidate.tenant, candidate.user)) or self.room(candidate)
        if left.nodes >= candidate.minimum and left.starts >= 1:
            return admission(scene, candidate, now) if candidate.reservation else None
        return hard_quota(scene, candidate, now) or vcluster_limits(scene, candidate, now)

    def room(self, candidate: Candidate) -> Room:
        """What quota and limits leave to its user."""
        key = (candidate.tenant, candidate.user)
        left = self._rooms.get(key)
        if left is None:
            if self._limitless and boundless(self.scene, candidate.tenant):
                left = WIDE
            else:
                left = room(self.scene, self.policy, *key)
                self._bounded.append(key)
            self._rooms[key] = left
        return left

    def gated(self, waiting: Waiting, score: Score | None) -> Waiting:
        """Its reason with its score; what it was promised is for others."""
        self._forget(waiting.candidate.uid)
        return Waiting(waiting.candidate, waiting.reason, waiting.message, waiting.wake, score)

    def behind(self, candidate: Candidate, kind: Kind, score: Score | None) -> Waiting:
        """It may not pass; what it was promised is for others."""
        self._forget(candidate.uid)
        return self.explainer.behind(candidate, kind, score)

    def now(self, candidate: Candidate, kind: Kind, *, retry: bool) -> Counts | None:
        """Nodes that it may start on now."""
        lane = kind.lane
        counts = lane.start(candidate, kind.duration, self.room(candidate).nodes, retry=retry)
        kind.failed = counts is None and not lane.power_short
        return counts

    def take_back(self, uid: str) -> Promise | None:
        """What it was promised: it is looked at anew."""
        promise = self.profile.remove(uid)
        if promise is not None:
            self.inherited.discard(uid)
        return promise

    def drop_lower_promises(self, candidate: Candidate, lane: Lane) -> bool:
        """Take back what those behind were promised, if nodes are what it waits for; whether that was anything."""
        if not lane.may_reserve(candidate):
            return False
        for uid in self.inherited:
            promise = self.profile.remove(uid)
            if promise is not None:
                self._dropped[uid] = promise
        self.inherited.clear()
        self.lanes.forget_failures()
        return True

    def place(self, candidate: Candidate, lane: Lane, counts: Counts, score: Score | None) -> Placed:
        """Claim the nodes."""
        self._forget(candidate.uid)
        machine = self.scene.machine
        split = bool(machine.masks)
        nodes = nodes_of(counts, lane.taken_from, split=split)
        known, home = machine.nodes, lane.home
        borrowed = tuple(node for node in nodes if known[node].home != home) if lane.borrows else ()
        self.scene.claim(candidate, nodes, self.instant, borrowed, None if split else counts)
        self.lanes.placed += 1
        if self._bounded:
            for key in self._bounded:
                self._rooms.pop(key, None)
            self._bounded.clear()
        return Placed(candidate, nodes, score, backfilled=self._reserved > 0)

    def reserve(self, candidate: Candidate, lane: Lane, before: Promise | None) -> Promise | None:
        """Promise it nodes, if it may hold a reservation: those of the last cycle, or earlier ones."""
        if not lane.may_reserve(candidate):
            return None
        if self.strict:
            self.lanes.contend(lane)
        if self._reserved >= self._depth:
            return None
        promise = lane.promise(candidate, before or self._dropped.get(candidate.uid))
        if promise is None:
            return None
        self._reserved += 1
        self.reserves = self.strict or self._reserved < self._depth
        self.profile.add(promise)
        self._kept[candidate.uid] = promise
        return promise

    def _forget(self, uid: str) -> None:
        if self.profile.remove(uid) is not None:
            self.inherited.discard(uid)
