"""One scheduling cycle of one vcluster: pending work in order; a place, or a reason with numbers, each.

`decide` takes what it places from the machine as it goes. It reads the cluster state and no clock, so that equal cluster states and
candidates give equal decisions. A blocked candidate may get a reservation (a `BackfillReservation`): work behind it starts only if that
delays no promise. Promises last from cycle to cycle: who holds one is planned first, and only work of a higher class and score,
or what happens outside of cycles, moves it later (`reserved`); other vclusters see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Final

from lattice.quota.gates import Blocked
from lattice.scheduling.cluster.availability import BackfillReservation
from lattice.scheduling.cluster.placement import Counts, nodes_of
from lattice.scheduling.cycle.equivalence import EquivalenceClass, EquivalenceClasses, RequestShape
from lattice.scheduling.cycle.gates import (
    UNLIMITED,
    Headroom,
    admission,
    beyond_share,
    boundless,
    hard_quota,
    headroom,
    own_wishes,
    vcluster_limits,
)
from lattice.scheduling.cycle.reasons import Explainer
from lattice.scheduling.model.outcomes import Outcome, Placed, Score, Waiting
from lattice.scheduling.model.policy import Limits
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.budget_gate import budget
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.quota_usage import Share
from lattice.scheduling.state.reservation_order import HIGHER_CLASS, OVERRUN, OWNER, POWER, UNEXPLAINED, Move, cause_of, holders_first


def decide(state: ClusterState, vcluster: str, candidates: Iterable[Candidate], now: float, *, explain: bool = True) -> Iterator[Outcome]:
    """One outcome for each candidate of a vcluster, in order; claims what it places in `state` as it goes.

    The caller confirms a place with `state.put_holder` or gives it back with `state.drop_holder`. Without `explain` what waits for
    nodes has no reason and no sentence, and nothing has a score; the decisions are the same.
    """
    cycle = _Cycle(state, vcluster, list(candidates), now, explain=explain)
    headrooms, eq_classes, shapes, profile = cycle.headrooms, cycle.eq_classes, cycle.eq_classes.shapes, cycle.profile
    explained, explanation_of, promises = cycle.explainer.waiting, cycle.explainer.explanation_of, profile.promises
    quota_usage, gated, nothing_else = cycle.quota_usage is not None, cycle.gated_all, cycle.only_nodes()
    unplanned, inherited, strict = cycle.unplanned, cycle.inherited, cycle.strict
    moved, stamp, quiet = True, -1, nothing_else
    for candidate, number, person, opens, score in cycle.queue():
        shape = shapes[number]
        if moved:
            # Nobody left can gain, or move, a reservation: those that hold one were planned before.
            quiet = nothing_else or not (gated or cycle.reserves or unplanned)
            moved, stamp = False, eq_classes.placed + profile.version
        # 0. Most of a long queue: nothing but nodes may keep it, one of its kind has found none, and it has no reservation to gain.
        if shape is not None and shape.failed and quiet and (nothing_else or (opens <= now and headrooms[person] is UNLIMITED)):
            cached = shape.cached if shape.reason_epoch == stamp else None
            reason, message = cached or explanation_of(candidate, shape)
            yield Waiting(candidate, reason, message, None, score)
            continue
        moved = True
        if unplanned:
            unplanned.discard(candidate.uid)
        free_to_go = nothing_else or (opens <= now and headrooms[person] is UNLIMITED and not gated)
        # 1. What keeps it from nodes whatever is free: itself, hard quota, the quota tree, limits of the vcluster.
        if not free_to_go:
            waiting = cycle.gate(candidate, person)
            if waiting is not None:
                yield cycle.gated(waiting, score)
                continue
        if shape is None or quota_usage:
            shape = cycle.shape(candidate, number)
        # 2. A policy of strict order lets nobody pass one that waits for nodes which he could use.
        if strict and eq_classes.contested(shape.eq_class) and candidate.uid not in cycle.holding:
            yield cycle.behind(candidate, shape, score)
            continue
        # 3. A place now that delays no promise; nothing is tried for one whose promise stands, and cannot be bettered.
        promise = promises.get(candidate.uid) if promises else None
        overtakes = bool(inherited) and cycle.overtakes(candidate, shape, promise)
        if promise is not None:
            if not overtakes and cycle.stands(candidate, shape, promise):
                yield explained(candidate, shape, score, cycle.keep(shape, promise))
                continue
            cycle.take_back(candidate.uid)
        counts = None if shape.failed and promise is None else cycle.now(candidate, shape, person, retry=promise is not None)
        # 4. Work of a higher class overtakes the promises of those behind it: newer work, and what could start now but for them.
        if counts is None and overtakes and cycle.drop_lower_promises(candidate, shape.eq_class):
            counts = cycle.now(candidate, shape, person, retry=True)
            if counts is None and promise is not None:
                cycle.give_back_promises()
        if counts is not None:
            waiting = cycle.over_share(candidate, counts) if quota_usage else None
            yield cycle.place(candidate, shape.eq_class, counts, score) if waiting is None else cycle.gated(waiting, score)
            continue
        # 5. No place: a reservation, if the depth of the policy has one left, and the reason.
        reserved = cycle.reserve(candidate, shape.eq_class, promise) if cycle.may_gain(candidate) else None
        yield explained(candidate, shape, score, reserved)
    cycle.settle()


class _Cycle:
    """What one cycle knows while it runs."""

    # Above 30 attributes an instance without slots has a dictionary of its own, and each look at one takes longer.
    __slots__ = (
        "_before",
        "_bounded",
        "_causes",
        "_changed",
        "_depth",
        "_dropped",
        "_explain",
        "_firm",
        "_heirs",
        "_kept",
        "_levels",
        "_lifted",
        "_limitless",
        "_scores",
        "_started",
        "eq_classes",
        "explainer",
        "gated_all",
        "headrooms",
        "holding",
        "inherited",
        "instant",
        "pending_queue",
        "policy",
        "profile",
        "quota_usage",
        "reserves",
        "share",
        "state",
        "strategy",
        "strict",
        "unplanned",
    )  # fmt: skip

    def __init__(self, state: ClusterState, vcluster: str, candidates: list[Candidate], now: float, *, explain: bool) -> None:
        self.state = state
        self.policy = state.policy(vcluster)
        self.strategy = strategy_of(self.policy)
        self.instant = now
        state.free_counts.trim()
        pending_queue = self.pending_queue = state.pending_queue(vcluster)
        pending_queue.take(candidates)
        state.set_lists(vcluster, pending_queue.lists)
        self.quota_usage = state.quota_usage
        if self.quota_usage is not None:
            self.quota_usage.ask(candidates, now)
        self.share = _ALL
        """What the quota tree leaves to the candidate that is looked at."""
        self._explain = explain
        self._scores = state.scoring(vcluster).score(pending_queue.candidates, state.node_cache, now)
        before = state.promises.get(vcluster)
        kept, reservation_epoch = state.last_reservations.pop(vcluster, (None, None))
        waiting = {candidate.uid for candidate in candidates} if before or vcluster in state.heirs else set[str]()
        if before:
            state.restore_promises(vcluster, {uid: promise for uid, promise in before.items() if uid in waiting})
        self.profile = state.profile(now)
        self._before = state.promises.get(vcluster, {})
        """Who was promised what by the last cycle."""
        self._kept = state.begin_promises(vcluster, waiting)
        self._heirs = state.heirs[vcluster]
        """When work without a promise was given one that is to be made anew."""
        self.holding = {**self._heirs, **{uid: promise.given for uid, promise in self._before.items()}}
        """When each reservation was given, of all that are planned first."""
        self.unplanned = set(self.holding)
        """Those of them that were not looked at yet."""
        self.inherited: dict[str, int] = {}
        """The classes of those who hold a promise of the last cycle that nobody has taken back, and were not looked at yet."""
        self.eq_classes = EquivalenceClasses(state, self.policy, self.strategy, self.profile, pending_queue, now)
        self.explainer = Explainer(state, self.policy, self.eq_classes, self.profile, now, silent=not explain)
        self._dropped: dict[str, BackfillReservation] = {}
        """Promises that were taken back before their holders were looked at."""
        self._lifted: list[str] = []
        """Those of them that the candidate that is looked at took back."""
        self._causes: dict[str, tuple[str, str]] = {}
        """Why promises were taken back, and for whom."""
        self._depth = self.strategy.depth(self.policy)
        self._limitless = self.policy.limits == Limits()
        self.headrooms = self._headrooms()
        """What quota and limits leave to each person; None: to be found out."""
        self._bounded: list[int] = []
        """Those persons of whose room what is placed takes something."""
        self._levels: dict[str, int] = {}
        """The classes of those who hold a reservation."""
        self._started: set[str] = set()
        epoch = state.reservation_epoch(self.policy)
        self._changed = "" if reservation_epoch is None else epoch.changed(reservation_epoch)
        """By what reservations may have moved since the last cycle."""
        self._firm = (
            kept is not None and kept is before and reservation_epoch is not None and not self._changed
            and state.power.limit is None and not self.strategy.strict and not self.profile.late
        )  # fmt: skip
        """Whether every promise of the last cycle holds as it did."""
        self.strict = self.strategy.strict
        """Whether nobody passes one that waits for nodes which he could use."""
        self.gated_all = self.strict or self.quota_usage is not None or bool(state.exhausted)
        """Whether everybody has to pass every gate."""
        self.reserves = self._depth > 0
        """Whether the next blocked one that holds none may be given a reservation: of those before it fewer hold one than the depth."""

    def queue(self) -> Iterator[tuple[Candidate, int, int, float, Score | None]]:
        """The candidates in order: each with the numbers of its kind and its person, `opens`, and its score if it is asked for."""
        pending_queue, scores = self.pending_queue, self._scores
        order: Sequence[int] = range(len(scores))
        if len(scores) > 1:
            order = self.strategy.order(getattr(scores, "totals", None) or [score.total for score in scores])
        if self.holding:
            order = self._planned_first(order)
        columns = (map(column.__getitem__, order) for column in (pending_queue.kinds, pending_queue.people))
        shown: Iterable[Score | None] = repeat(None)
        if self._explain:
            ordered = getattr(scores, "ordered", None)
            shown = map(scores.__getitem__, order) if ordered is None else ordered(order)
        return zip(
            map(pending_queue.candidates.__getitem__, order), *columns, map(pending_queue.opens.__getitem__, order), shown, strict=False
        )

    def _planned_first(self, order: Sequence[int]) -> Sequence[int]:
        """The order with those first who hold a reservation, whose promises are taken up; see `reserved`."""
        candidates, promises = self.pending_queue.candidates, self.profile.promises
        for one in candidates:
            if one.uid in self.holding and one.uid in promises:
                self.inherited[one.uid] = self._levels[one.uid] = one.preemption_class
        if not self._firm and self.profile.overbooked():
            for uid in self.inherited:
                self._lift(uid)
            self.inherited.clear()
        classes = [one.preemption_class for one in candidates]
        return holders_first([one.uid for one in candidates], order, self.holding, classes, strict=self.strict)

    def only_nodes(self) -> bool:
        """Whether nothing but nodes keeps anybody waiting, from the beginning of the cycle to its end."""
        if self.gated_all or self._depth > 0 or self.profile.promises:
            return False
        return all(left is UNLIMITED for left in self.headrooms) and max(self.pending_queue.opens, default=0.0) <= self.instant

    def _headrooms(self) -> list[Headroom | None]:
        """What quota and limits leave to each person, as far as nothing limits him; found out later where few are looked at."""
        pending_queue = self.pending_queue
        if not self._limitless or self._depth:
            return [None] * len(pending_queue.persons)
        wide = {tenant for tenant in pending_queue.tenants if boundless(self.state, tenant)}
        if len(wide) == len(pending_queue.tenants):
            return [UNLIMITED] * len(pending_queue.persons)
        return [UNLIMITED if tenant in wide else None for tenant, _ in pending_queue.persons]

    def gate(self, candidate: Candidate, person: int) -> Waiting | None:
        """What blocks it whatever is free."""
        state, now = self.state, self.instant
        waiting = own_wishes(state, candidate, now)
        if waiting is not None:
            return waiting
        left = self.headrooms[person] or self._headroom(person)
        spent = budget(state.exhausted, candidate) if state.exhausted else None
        if left.nodes >= candidate.minimum and left.starts >= 1:
            waiting = spent or (self._shares(candidate) if self.quota_usage is not None else None)
        else:
            waiting = hard_quota(state, candidate, now) or spent or self._shares(candidate) or vcluster_limits(state, candidate, now)
        return waiting or (admission(state, candidate, now) if candidate.reservation else None)

    def _headroom(self, person: int) -> Headroom:
        """What quota and limits leave to a person."""
        tenant, user = self.pending_queue.persons[person]
        if self._limitless and boundless(self.state, tenant):
            left = UNLIMITED
        else:
            left = headroom(self.state, self.policy, tenant, user)
            self._bounded.append(person)
        self.headrooms[person] = left
        return left

    def gated(self, waiting: Waiting, score: Score | None) -> Waiting:
        """Its reason with its score; what it was promised is for others."""
        self._forget(waiting.candidate.uid, cause_of(waiting.reason))
        return Waiting(waiting.candidate, waiting.reason, waiting.message, waiting.wake, score)

    def behind(self, candidate: Candidate, shape: RequestShape, score: Score | None) -> Waiting:
        """It may not pass."""
        return self.explainer.behind(candidate, shape, score)

    def shape(self, candidate: Candidate, number: int) -> RequestShape:
        """Its kind, on the nodes that the quota tree leaves to it."""
        return self.eq_classes.shape(number, candidate, self.share.classes)

    def now(self, candidate: Candidate, shape: RequestShape, person: int, *, retry: bool) -> Counts | None:
        """Nodes that it may start on now, within what quota leaves."""
        eq_class = shape.eq_class
        left = self.headrooms[person] or self._headroom(person)
        counts = eq_class.start(candidate, shape.duration, min(left.nodes, self.share.nodes), retry=retry)
        shape.failed = counts is None and not eq_class.power_short
        return counts

    def over_share(self, candidate: Candidate, counts: Counts) -> Waiting | None:
        """Why the quota tree does not admit just these nodes; None where it does."""
        blocked = self.quota_usage.refuses(candidate, counts) if self.quota_usage is not None else None
        return beyond_share(candidate, blocked) if blocked is not None else None

    def stands(self, candidate: Candidate, shape: RequestShape, promise: BackfillReservation) -> bool:
        """Whether the promise that it holds is what a search would find again: no nodes now, and none earlier, even by the totals."""
        if not self._firm or candidate.reservation or shape.eq_class.borrows:
            return False
        if promise.start <= self.instant or promise.end < promise.start + shape.duration or promise.nodes != candidate.minimum:
            return False
        return not self.profile.may_improve(promise, shape.eq_class.pool.members, shape.duration)

    def overtakes(self, candidate: Candidate, shape: RequestShape, promise: BackfillReservation | None) -> bool:
        """Whether it may take back what work of a lower class behind it was promised: newer work, and what could start now but for that."""
        level = candidate.preemption_class
        if self.strict or all(level <= other for other in self.inherited.values()):
            return False
        return promise is None or self._held_up(candidate, shape, promise)

    def _held_up(self, candidate: Candidate, shape: RequestShape, promise: BackfillReservation) -> bool:
        """Whether enough nodes are free for it now, and lower work was promised some before it would be gone, and before its own."""
        if shape.eq_class.pool.whole.total < candidate.minimum:
            return False
        before, promises = min(promise.start, self.instant + shape.duration), self.profile.promises
        return any(promises[uid].start < before for uid, level in self.inherited.items() if level < candidate.preemption_class)

    def keep(self, shape: RequestShape, promise: BackfillReservation) -> BackfillReservation:
        """It waits, and its promise stands."""
        shape.failed = True
        self.inherited.pop(promise.uid, None)
        self._reserve(promise, self._levels[promise.uid])
        return promise

    def settle(self) -> None:
        """The cycle has come to its end: what it promised holds for as long as nothing happens that no cycle knows of."""
        moves = [self._move(before) for before in self._before.values() if self._kept.get(before.uid) is not before]
        self.state.settle_cycle(self.policy.name, self._kept, [move for move in moves if move is not None])

    def _move(self, before: BackfillReservation) -> Move | None:
        """What became of a promise that was not kept as it was; None where it starts no later."""
        uid, kept = before.uid, self._kept.get(before.uid)
        if uid in self._started or (kept is not None and kept.start <= before.start):
            return None
        cause, by = self._causes.get(uid, ("", ""))
        if not cause:
            cause = self._changed or (OVERRUN if self.profile.late or before.start <= self.instant else UNEXPLAINED)
        return Move(uid, self.instant, before.start, None if kept is None else kept.start, cause, by)

    def take_back(self, uid: str) -> None:
        """What it was promised is looked at anew."""
        self.profile.remove(uid)
        self.inherited.pop(uid, None)

    def drop_lower_promises(self, candidate: Candidate, eq_class: EquivalenceClass) -> bool:
        """Take back what those of a lower class behind were promised, if nodes are what it waits for; whether that was anything."""
        if not eq_class.may_reserve(candidate):
            return False
        self._lifted = [uid for uid, level in self.inherited.items() if level < candidate.preemption_class]
        for uid in self._lifted:
            del self.inherited[uid]
            self._lift(uid)
            self._causes[uid] = HIGHER_CLASS, candidate.uid
        self.eq_classes.forget_failures()
        return True

    def give_back_promises(self) -> None:
        """It could not start without them either: what those behind were promised stands again."""
        for uid in self._lifted:
            promise = self._dropped.pop(uid)
            self.profile.add(promise)
            self.inherited[uid] = self._levels[uid]
            del self._causes[uid]
        self._lifted = []

    def _lift(self, uid: str) -> None:
        """Take a promise back until its holder is looked at."""
        promise = self.profile.remove(uid)
        if promise is not None:
            self._dropped[uid] = promise

    def place(self, candidate: Candidate, eq_class: EquivalenceClass, counts: Counts, score: Score | None) -> Placed:
        """Claim the nodes."""
        if self.holding:
            self._forget(candidate.uid)
            self._lifted = []
            self._started.add(candidate.uid)
        node_cache = self.state.node_cache
        split = bool(node_cache.masks)
        nodes = nodes_of(counts, eq_class.taken_from, split=split)
        known, home = node_cache.nodes, eq_class.home
        borrowed = tuple(node for node in nodes if known[node].home != home) if eq_class.borrows else ()
        self.state.claim(candidate, nodes, self.instant, borrowed, None if split else counts)
        self.eq_classes.placed += 1
        if self._bounded:
            for person in self._bounded:
                self.headrooms[person] = None
            self._bounded.clear()
        return Placed(candidate, nodes, score, backfilled=bool(self._kept))

    def may_gain(self, candidate: Candidate) -> bool:
        """Whether it may be given a reservation, holds one, keeps others off its nodes, or has taken back what others were promised."""
        return self.reserves or self.strict or bool(self._lifted) or candidate.uid in self.holding

    def reserve(self, candidate: Candidate, eq_class: EquivalenceClass, before: BackfillReservation | None) -> BackfillReservation | None:
        """Promise it nodes, if it may hold a reservation: those of the last cycle, or earlier ones."""
        promise = self._sought(candidate, eq_class, before) if eq_class.may_reserve(candidate) else None
        if promise is None:
            self.give_back_promises()
            self._keep_place(candidate.uid, power=bool(eq_class.power_short))
            return None
        self._lifted = []
        self.profile.add(promise)
        if promise is before:
            self.profile.sought(promise, eq_class.pool.members, self.state.occupancy(candidate))
        self._reserve(promise, candidate.preemption_class)
        return promise

    def _sought(self, candidate: Candidate, eq_class: EquivalenceClass, before: BackfillReservation | None) -> BackfillReservation | None:
        """The promise that it gets, where it may hold one."""
        if self.strict:
            self.eq_classes.contend(eq_class)
        given = self.holding.get(candidate.uid)
        if given is None and not self.reserves:
            return None
        before = before or self._dropped.get(candidate.uid)
        if before is not None and (before.end < before.start + self.state.occupancy(candidate) or before.nodes != candidate.minimum):
            self._causes[candidate.uid] = OWNER, ""
            before = None
        promise = eq_class.promise(candidate, before)
        if promise is not None and promise is not before:
            promise = replace(promise, given=self.instant if given is None else given)
        return promise

    def _reserve(self, promise: BackfillReservation, level: int) -> None:
        self._heirs.pop(promise.uid, None)
        self._kept[promise.uid] = promise
        self._levels[promise.uid] = level
        self.reserves = len(self._kept) < self._depth

    def _keep_place(self, uid: str, *, power: bool) -> None:
        """It cannot be promised nodes at the moment: it is planned first all the same when it can."""
        given = self.holding.get(uid)
        if given is None:
            return
        self._heirs[uid] = given
        self._levels.pop(uid, None)
        if power:
            self._causes[uid] = POWER, ""

    def _shares(self, candidate: Candidate) -> Waiting | None:
        """Look at what the quota tree leaves to it; why it waits where that is too little."""
        share = self.quota_usage.share(candidate) if self.quota_usage is not None else _ALL
        if isinstance(share, Blocked):
            return beyond_share(candidate, share)
        self.share = share
        return None

    def _forget(self, uid: str, cause: str = "") -> None:
        """What it holds of reservations is for others."""
        if uid not in self.holding:
            return
        del self.holding[uid]
        self._heirs.pop(uid, None)
        self.inherited.pop(uid, None)
        if cause:
            self._causes[uid] = cause, ""
        self.profile.remove(uid)
        self._levels.pop(uid, None)


_ALL: Final = Share()
