"""One scheduling cycle of one vcluster: pending work in order; nodes, or a reason with numbers, for each candidate.

`decide` claims what it places as it goes. It reads the cluster state and no clock, so that equal cluster states and candidates give
equal decisions. A blocked candidate may get a reservation (`BackfillReservation`): work behind it starts only if that delays no
reservation. Reservations last from cycle to cycle (`reservations`); other vclusters see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cycle.equivalence import EquivalenceClasses, RequestShape
from lattice.scheduling.cycle.gates import UNRESTRICTED, Admission, GateChain
from lattice.scheduling.cycle.placer import Placer
from lattice.scheduling.cycle.power_fit import Fit, NoFit
from lattice.scheduling.cycle.rearrangement import Rearrangement
from lattice.scheduling.cycle.reasons import Explainer
from lattice.scheduling.cycle.reservations import CycleReservations
from lattice.scheduling.cycle.retries import Retries
from lattice.scheduling.model.outcomes import Outcome, Placed, Score, Waiting
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState

Entry = tuple[Candidate, int, int, float, Score | None]
"""A pending candidate with the numbers of its request shape and its person, `opens` (see `PendingQueue`), and its score (None: not
asked for).
"""


def decide(state: ClusterState, vcluster: str, candidates: Iterable[Candidate], now: float, *, explain: bool = True) -> Iterator[Outcome]:
    """Runs one cycle of a vcluster: yields an outcome of each candidate in order of evaluation, and claims in `state` what it places.

    The caller confirms a place with `state.put_holder` or gives it back with `state.drop_holder`. A cycle that is left before its last
    outcome keeps only the reservations given until then, and records no moves. With `explain=False` no outcome has a score, and those
    that wait for nodes have neither reason nor sentence, and come in no order; the decisions are the same. `now`: epoch seconds.
    """
    # 1. The queue, its scores and the reservations of the last cycle; holders of reservations come first in the order.
    cycle = Cycle(state, vcluster, list(candidates), now, explain=explain)
    # 2. Where nothing is explained: those who found no nodes in the last cycle and could find none now, with their reservations.
    yield from cycle.unschedulable()
    # 3. While anybody left may gain, move or lose a reservation: gates, own reservation, nodes, overtaking, a new reservation.
    pending = cycle.entries()
    while cycle.reservations.contested and (entry := next(pending, None)) is not None:
        yield cycle.evaluate(entry)
    # 4. Nobody left may: gates, nodes, and the reason that the request shape has already.
    yield from cycle.evaluate_capacity(pending)
    # 5. The reservations that the next cycle goes on from, and those that have moved.
    cycle.commit()


class Cycle:
    """One cycle of one vcluster while it runs; `decide` makes it and calls its methods in their order."""

    __slots__ = (
        "_explain", "_explainer", "_gates", "_needless", "_placer", "_queue", "_rearrangement", "_retries", "_scores", "reservations",
    )  # fmt: skip

    def __init__(self, state: ClusterState, vcluster: str, candidates: list[Candidate], now: float, *, explain: bool) -> None:
        policy, queue = state.policy(vcluster), state.pending_queue(vcluster)
        state.free_counts.trim()
        queue.replace(candidates)
        state.set_lists(vcluster, queue.lists)
        if state.quota_usage is not None:
            state.quota_usage.ask(candidates, now)
        self._queue, self._explain = queue, explain
        self._scores = state.scoring(vcluster).score(queue.candidates, state.node_cache, now)
        self.reservations = CycleReservations(state, policy, candidates, now)
        profile = self.reservations.profile
        self._placer = Placer(state, EquivalenceClasses(state, policy, strategy_of(policy), profile, queue, now), now)
        self._gates = GateChain(state, policy, queue, now)
        self._rearrangement = Rearrangement(queue, self.reservations, self._placer, self._gates, state.node_cache)
        self._retries = Retries(state, queue, self.reservations, self._placer.classes, self._gates)
        self._needless: Mapping[str, Candidate] = {}
        """By uid, the candidates that are not evaluated in this cycle."""
        self._explainer = Explainer(state, policy, self._placer.classes, self.reservations, now, silent=not explain)

    def unschedulable(self) -> Iterator[Waiting]:
        """Yields Waiting with an empty reason for each candidate that needs no evaluation, and notes these for the rest of the cycle;
        nothing in a cycle that gives reasons.
        """
        if not self._explain:
            self._needless = self._retries.needless()
        held = self.reservations.profile.reservations
        for uid, candidate in self._needless.items():
            reservation = held.get(uid)
            yield Waiting(candidate, "", "", None, None, None if reservation is None else reservation.start)

    def entries(self) -> Iterator[Entry]:
        """Yields the candidates to evaluate, without those that `unschedulable` has yielded, in their order: by score, or first come;
        holders of reservations first.
        """
        queue, order = self._queue, self._order()
        shown = self._scores.ordered(order) if self._explain else repeat(None)
        columns = queue.candidates, queue.shapes, queue.people, queue.opens
        reordered: Callable[[Any], Any] = itemgetter(*order) if len(order) > 1 else lambda column: [column[place] for place in order]
        return zip(*map(reordered, columns), shown, strict=False)

    def _order(self) -> Sequence[int]:
        """Returns the places of the candidates to evaluate, in order; scores are computed only where they are shown, or decide."""
        candidates, by_total, strategy = self._queue.candidates, self._queue.by_total, self._placer.classes.strategy
        if self._needless:
            coming = {place for place, one in enumerate(candidates) if one.uid not in self._needless}
            return [*coming] if len(coming) < 2 else [place for place in by_total.order(self._scores.totals, strategy) if place in coming]
        decided = len(candidates) < 2 or (not self._explain and self.reservations.holders.decide_order(candidates))
        order = range(len(candidates)) if decided else by_total.order(self._scores.totals, strategy)
        return self.reservations.put_holders_first(candidates, order)

    def evaluate(self, entry: Entry) -> Outcome:
        """Returns the outcome of one candidate in the contested phase; claims nodes, and confirms, gives, revokes or ends reservations.

        In this order: gates, strict order of submission, its own reservation, nodes, revocation of lower classes, a new reservation,
        rearrangement of those behind it.
        """
        candidate, number, person, opens, score = entry
        reservations = self.reservations
        held = reservations.begin_evaluation(candidate)
        admission = self._gates.evaluate(candidate, person, opens)
        if isinstance(admission, Waiting):
            return self._refuse(admission, score)
        shape = self._placer.shape(number, candidate, admission)
        if reservations.bars(candidate, shape.eq_class):
            return self._explainer.behind(candidate, shape, score)
        overtakes = reservations.overtakes(candidate, shape, held)
        if held is not None:
            if not overtakes and reservations.confirms(candidate, shape, held):
                shape.failed = True
                return self._explainer.waiting(candidate, shape, score, reservation=held)
            reservations.take_back(candidate.uid)
        fit = self._placer.fit(candidate, shape, admission, retry=held is not None)
        if isinstance(fit, Fit):
            return self._place(candidate, shape, fit, score)
        if overtakes and not fit.watts and shape.eq_class.usable >= candidate.minimum:
            return self._overtake(candidate, shape, admission, held, score)
        return self._grant(candidate, shape, admission, held, fit, score)

    def evaluate_capacity(self, pending: Iterable[Entry]) -> Iterator[Outcome]:
        """Yields the outcomes of the remaining candidates in the capacity phase, and claims what it places; gives no reservation.

        By gates and free nodes alone; equal request shapes share a reason.
        """
        shapes, now, unlimited = self._placer.classes.shapes, self._placer.classes.now, self._gates.unlimited
        gates, explainer, reasons = self._gates, self._explainer, self._explainer.cache.current()
        for candidate, number, person, opens, score in pending:
            shape = shapes.get(number)
            # Most of a long queue: an identical request has failed in this cycle, and nothing but nodes keeps this one.
            if shape is not None and shape.failed and opens <= now and unlimited[person]:
                reason, message = reasons.get(shape) or explainer.reason_of(candidate, shape)
                yield Waiting(candidate, reason, message, None, score)
                continue
            admission = UNRESTRICTED if opens <= now and unlimited[person] else gates.evaluate(candidate, person, opens)
            yield self._evaluate_alone(candidate, number, admission, score)
            reasons = explainer.cache.current()

    def commit(self) -> None:
        """Ends the cycle: stores in the cluster state its reservations, the moves of earlier ones, and, where nothing is explained, who
        found no nodes.
        """
        self.reservations.commit()
        if not self._explain:
            self._retries.keep_unschedulable()

    def _evaluate_alone(self, candidate: Candidate, number: int, admission: Admission | Waiting, score: Score | None) -> Outcome:
        """Returns the outcome of one candidate by its gates' answer and free nodes only; seeks and revokes no reservation."""
        if isinstance(admission, Waiting):
            return self._refuse(admission, score)
        shape = self._placer.shape(number, candidate, admission)
        fit = self._placer.fit(candidate, shape, admission)
        if isinstance(fit, Fit):
            return self._place(candidate, shape, fit, score)
        return self._explainer.waiting(candidate, shape, score, fit)

    def _overtake(
        self, candidate: Candidate, shape: RequestShape, admission: Admission, held: BackfillReservation | None, score: Score | None
    ) -> Outcome:
        """Searches nodes for a candidate once more without the reservations of lower classes, and returns its outcome.

        They stay revoked only where the candidate is placed, or gains a first reservation, by it; else they are restored.
        """
        granted = None
        with self.reservations.revoked_below(candidate) as revocation:
            self._placer.classes.forget_failures()
            fit = self._placer.fit(candidate, shape, admission, retry=True)
            if isinstance(fit, Fit):
                outcome = self._place(candidate, shape, fit, score)
                if isinstance(outcome, Placed):
                    revocation.make_final()
                return outcome
            if held is None and (granted := self.reservations.grant(candidate, shape, None, fit)) is not None:
                revocation.make_final()
        if held is not None:
            return self._grant(candidate, shape, admission, held, fit, score)
        return self._explainer.waiting(candidate, shape, score, fit, granted)

    def _grant(
        self, candidate: Candidate, shape: RequestShape, admission: Admission, held: BackfillReservation | None, fit: NoFit,
        score: Score | None,
    ) -> Outcome:  # fmt: skip
        """Returns the outcome of a candidate that found no nodes (`fit`): Waiting, with the reservation that it gets, if any, or Placed.

        Where it only keeps its own (`held`), reservations behind it are moved if it then starts now or gets an earlier one.
        """
        granted = self.reservations.grant(candidate, shape, held, fit)
        if granted is not None and granted is self.reservations.unimproved:
            earlier = self._rearrangement.earlier(candidate, shape, admission, granted)
            if isinstance(earlier, Fit):
                return self._place(candidate, shape, earlier, score)
            granted = earlier or granted
        return self._explainer.waiting(candidate, shape, score, fit, granted)

    def _place(self, candidate: Candidate, shape: RequestShape, fit: Fit, score: Score | None) -> Outcome:
        """Claims the nodes of a fit and returns Placed; claims none and returns Waiting where the quota tree refuses just these nodes.

        Either ends the candidate's reservation.
        """
        refused = self._placer.refusal(candidate, fit)
        if refused is not None:
            return self._refuse(refused, score)
        self.reservations.note_placed(candidate.uid)
        nodes = self._placer.claim(candidate, shape.eq_class, fit)
        self._gates.forget_limited()
        return Placed(candidate, nodes, score, backfilled=self.reservations.any_kept)

    def _refuse(self, waiting: Waiting, score: Score | None) -> Waiting:
        """Ends the reservation of a candidate that a gate keeps waiting, and returns the gate's answer with this score."""
        self.reservations.end(waiting.candidate.uid, waiting.reason)
        return Waiting(waiting.candidate, waiting.reason, waiting.message, waiting.wake, score)
