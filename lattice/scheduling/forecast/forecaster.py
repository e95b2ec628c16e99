"""Forecast of the starts of pending work: p50 and p90 for all of it, in every vcluster at once.

Two simulations (`lattice.scheduling.forecast.simulator`) of all queues over counts of nodes: in one all work, running and pending, lasts
its median run time by `predictor`, in the other its 0.9 quantile. The first gives p50, the distance between the two p90, both
as earlier predictions of the kind turned out (`calibration`). The walltime enters only as what the real
cycle believes. No start is foreseen for work that never fits, is held or blocked, or waits for nodes that no known end
gives back; `Expected.reason` says which. Work that arrives later is not foreseen: the calibration carries its effect.

In three steps, so that the loop that owns the cluster state has short ones only: `Forecaster.take_snapshot` reads the cluster state,
`foresee` works on
what was read, in another thread if wished, `Forecaster.conclude` makes the answers. One forecast at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lattice.quota.gates import WAITING as QUOTA_SHARE
from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.forecast.calibration import Calibration, Kept, PredictedStart
from lattice.scheduling.forecast.columns import Caps, Columns, ForecastSnapshot, NodeMasks, forecast_snapshot, mode_of
from lattice.scheduling.forecast.predictor import RunFeatures, RunTimes
from lattice.scheduling.forecast.simulator import BackfillSimulator
from lattice.scheduling.forecast.simulator_input import ColumnWindow, Job, RunningWork, SimulatorInput
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.budget_gate import BUDGET_EXHAUSTED
from lattice.scheduling.state.cluster_state import ClusterState

MEDIAN, LONG = 0.5, 0.9
UNBOUNDED_WORK: Final = "UnboundedWork"
"""The reason of work whose nodes are or will be held by work without a known end."""
UNFORESEEN: Final = frozenset({QUOTA_SHARE, BUDGET_EXHAUSTED})
"""Reasons without an expected start: nobody knows what others will ask of the quota tree, nor when a budget is raised."""
POWER_BUDGET: Final = "PowerBudget"
TRIED: Final = frozenset({"WaitingForNodes", "BehindHigherPriority", "InsufficientConformance", POWER_BUDGET})
"""Reasons of work that was tried in the last cycle. Where counts of nodes would let it start now, it is topology, a fingerprint, a deeper
reservation or power that keeps it, which are not rehearsed: it starts when the next nodes come free, at the earliest."""
EXACT_JOBS: Final = 256
"""Up to so many pending jobs each end is an event of its own; above, ends are rounded up to `SLOTS` slots over the simulated time."""
SLOTS: Final = 600


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected start of one allocation, p50 and p90 in seconds since the epoch; both None: none is foreseen, and `reason` says why."""

    p50: float | None = None
    p90: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Foreseen:
    """The result of both simulations.

    `starts`: by uid, seconds from the snapshot's `now` to the start with median and with long run times.

    `silent`: by uid, the reason why no start is foreseen.
    """

    starts: Mapping[str, tuple[float, float]]
    silent: Mapping[str, str]
    widths: Mapping[str, float] = field(default_factory=dict)
    """By uid: the nodes that it asks for as a part of the usable nodes that it may use."""
    after: Mapping[str, float] = field(default_factory=dict)
    """By uid: seconds from the snapshot's `now` before which it cannot start (not-before, back-off, its window); absent: at once."""


class Forecaster:
    """Learns run times, predicts the start of all pending work, and scores the predictions; the scheduling loop owns one."""

    def __init__(self) -> None:
        self.run_times = RunTimes()
        """The learnt run times; only `take_snapshot` changes them, so that `foresee` may read them in another thread."""
        self.calibration = Calibration()
        self._masks = NodeMasks()
        self._ended: list[tuple[RunFeatures, float]] = []
        self._gone: set[str] = set()
        """Uids that started or were cancelled since the last `take_snapshot`; a forecast that began before gives them no prediction."""

    def forecast(
        self, state: ClusterState, queues: Mapping[str, Sequence[Candidate]], now: float, waiting: Iterable[Waiting] = ()
    ) -> dict[str, Expected]:
        """Runs all three steps: returns the expected start of every candidate of every queue, by uid.

        `waiting`: the outcomes of the last cycles, for their reasons and reservations.
        """
        snapshot = self.take_snapshot(state, queues, now, waiting)
        return self.conclude(snapshot, foresee(snapshot, self.run_times))

    def take_snapshot(
        self, state: ClusterState, queues: Mapping[str, Sequence[Candidate]], now: float, waiting: Iterable[Waiting] = ()
    ) -> ForecastSnapshot:
        """Learns from the work that ended since the last call, and copies the cluster state for `foresee`; starts and cancellations noted
        until now no longer keep work out of `conclude`.

        `queues`: the candidates of each vcluster in the order of evaluation. `waiting`: the outcomes of the last cycles.
        """
        for work, ran in self._ended:
            self.run_times.observe(work, ran)
        self._ended.clear()
        self._gone.clear()
        said = list(waiting)
        latest = {outcome.candidate.uid: outcome.latest for outcome in said if outcome.latest is not None}
        unforeseen = {outcome.candidate.uid: outcome.reason for outcome in said if outcome.reason in UNFORESEEN}
        unforeseen |= dict.fromkeys(_beyond_power(state, [one for one in said if one.reason in TRIED]), POWER_BUDGET)
        tried = {outcome.candidate.uid: outcome.reason for outcome in said if outcome.reason in TRIED}
        return forecast_snapshot(state, queues, self._masks, now, latest, unforeseen, tried)

    def conclude(self, snapshot: ForecastSnapshot, foreseen: Foreseen) -> dict[str, Expected]:
        """Returns the expected starts by uid: calibrated predictions of the simulated starts, which it also keeps to score them later.

        Work without a foreseen start has its reason there, and its predictions are dropped. Work that has started or was cancelled since
        the snapshot is left out.
        """
        found = {uid: Expected(reason=reason) for uid, reason in foreseen.silent.items() if uid not in self._gone}
        for uid in found:
            self.calibration.drop_predictions(uid)
        for uid in foreseen.starts:
            if uid in self._gone:
                continue
            prediction = self._predicted_start(snapshot, foreseen, uid)
            self.calibration.predicted(uid, prediction)
            found[uid] = Expected(prediction.p50, prediction.p90)
        self.calibration.prune(found)
        return found

    def suppose(self, snapshot: ForecastSnapshot, foreseen: Foreseen, uids: Iterable[str]) -> dict[str, Expected]:
        """Returns predictions for allocations of a what-if, by uid, and keeps none of them; for those without a foreseen start the reason,
        and unknown uids are left out.
        """
        found: dict[str, Expected] = {}
        for uid in uids:
            if uid in foreseen.starts:
                prediction = self._predicted_start(snapshot, foreseen, uid)
                found[uid] = Expected(prediction.p50, prediction.p90)
            elif uid in foreseen.silent:
                found[uid] = Expected(reason=foreseen.silent[uid])
        return found

    def _predicted_start(self, snapshot: ForecastSnapshot, foreseen: Foreseen, uid: str) -> PredictedStart:
        """Returns the calibrated prediction of one allocation, no later than its reservation promises."""
        now, (median, late) = snapshot.now, foreseen.starts[uid]
        earliest = now + foreseen.after.get(uid, 0.0)
        made = self.calibration.calibrated(now, now + median, now + late, width=foreseen.widths.get(uid, 0.0), earliest=earliest)
        return made.by(max(now, snapshot.latest.get(uid, NEVER)))

    def started(self, uid: str, at: float) -> Kept | None:
        """Scores the predictions of an allocation that was given its nodes at `at`, seconds since the epoch, and learns from the first of
        them; None: there were none.

        A forecast under way gives it no prediction any more.
        """
        self._gone.add(uid)
        return self.calibration.started(uid, at)

    def learn(self, work: RunFeatures, ran: float) -> None:
        """Notes that an attempt ended by itself or at its walltime after `ran` seconds; the next `take_snapshot` learns its run time."""
        self._ended.append((work, ran))

    def drop_allocation(self, uid: str) -> None:
        """Drops the predictions of an allocation that was cancelled before it started; a forecast under way gives it none any more."""
        self._gone.add(uid)
        self.calibration.drop_predictions(uid)


class _Reader:
    """Converts holders and candidates of a snapshot into the simulator's input, each for median and for long run times, in this order."""

    def __init__(self, snapshot: ForecastSnapshot, run_times: RunTimes) -> None:
        self._snapshot = snapshot
        self.columns = Columns(snapshot)
        self._caps = Caps(snapshot)
        self._run_times = run_times
        self._now = snapshot.now

    def holding(self, holder: NodeHolder) -> tuple[RunningWork, RunningWork]:
        """Converts a holder to running work with the median and with a long learnt run time, cut at the holder's end; releasing work, and
        work that has an end but no walltime, lasts to that end.

        Work past its end is taken to run for `overrun_seconds` more; work without a known end never ends.
        """
        columns, uses, now = self.columns.held(holder.nodes), self._caps.amounts_of(holder, len(holder.nodes)), self._now
        if holder.end is None:
            unknown = RunningWork(columns, NEVER, NEVER, uses)
            return unknown, unknown
        believed = holder.end - now if holder.end > now else self._snapshot.overrun_seconds
        if holder.walltime is None or holder.releasing:
            certain = RunningWork(columns, believed, believed, uses)
            return certain, certain
        work, times = features_of(holder, len(holder.nodes), holder.walltime), self._run_times
        if holder.started is None:
            begins = max(0.0, holder.since + self._snapshot.start_allowance - now)
            left = [begins + total for total in times.totals(work, (MEDIAN, LONG))]
        else:
            left = times.remaining(work, (MEDIAN, LONG), now - holder.started)
        median, late = (RunningWork(columns, min(believed, seconds), believed, uses) for seconds in left)
        return median, late

    def pending(self, candidate: Candidate) -> tuple[Job, Job]:
        """Converts a candidate, at its minimum of nodes, to a job with the median and one with a long run time; work without a walltime
        never ends.

        The job starts no earlier than not-before, back-off and the window that it must run in.
        """
        window = self.columns.window_of(candidate)
        opens = self._snapshot.windows[window].start if window >= 0 else 0.0
        after = max(0.0, max(candidate.not_before, candidate.back_off_until, opens) - self._now)
        uses, number, nodes = self._caps.amounts_of(candidate, candidate.minimum), self.columns.number(candidate), candidate.minimum
        if candidate.walltime is None:
            endless = Job(number, nodes, NEVER, NEVER, uses, after, window)
            return endless, endless
        work = features_of(candidate, nodes, candidate.walltime)
        believed = self._snapshot.start_allowance + candidate.walltime + candidate.grace
        median, late = self._run_times.totals(work, (MEDIAN, LONG))
        return Job(number, nodes, median, believed, uses, after, window), Job(number, nodes, late, believed, uses, after, window)

    def stage(
        self, held: Sequence[tuple[RunningWork, RunningWork]], jobs: Sequence[Sequence[tuple[Job, Job]]], which: int
    ) -> SimulatorInput:
        """Makes the input of one simulation; `which`: 0 with median run times, 1 with long ones.

        A column has no less than 0 free nodes, whatever holds them.
        """
        free = list(self.columns.sizes)
        for one in held:
            for column, count in one[0].columns:
                free[column] = max(0, free[column] - count)
        return SimulatorInput(
            free=tuple(free),
            sets=self.columns.sets,
            held=tuple(one[which] for one in held),
            queues=tuple(tuple(job[which] for job in queue) for queue in jobs),
            room=tuple(self._caps.room),
            column_windows=self._column_windows(),
            modes=tuple(mode_of(self._snapshot.policy(vcluster)) for vcluster in self._snapshot.queues),
        )

    def _column_windows(self) -> tuple[ColumnWindow, ...]:
        """Returns the reservation windows of the snapshot by columns, with times in seconds from its `now`."""
        windows = zip(self._snapshot.windows, self.columns.windows, strict=True)
        return tuple(ColumnWindow(max(0.0, window.start - self._now), window.end - self._now, nodes) for window, nodes in windows)


def simulator_inputs(
    snapshot: ForecastSnapshot, run_times: RunTimes
) -> tuple[SimulatorInput, SimulatorInput, tuple[tuple[str, ...], ...], dict[str, str]]:
    """Makes the inputs of both simulations (median, long run times); the uids by queue and rank; the uids left out with the reason."""
    reader = _Reader(snapshot, run_times)
    silent: dict[str, str] = {}
    foreseen: list[list[Candidate]] = []
    for queue in snapshot.queues.values():
        foreseen.append([])
        for candidate in queue:
            reason = snapshot.unforeseen.get(candidate.uid) or _silence(candidate, reader.columns)
            if reason:
                silent[candidate.uid] = reason
            else:
                foreseen[-1].append(candidate)
    jobs = [[reader.pending(candidate) for candidate in queue] for queue in foreseen]
    held = [reader.holding(holder) for holder in snapshot.holders]
    uids = tuple(tuple(candidate.uid for candidate in queue) for queue in foreseen)
    return reader.stage(held, jobs, 0), reader.stage(held, jobs, 1), uids, silent


def foresee(snapshot: ForecastSnapshot, run_times: RunTimes) -> Foreseen:
    """Runs both simulations and returns the simulated starts; work that the last cycle tried in vain starts when the next work or window
    ends, at the earliest. Pure, and the only step of a forecast that takes long.

    It may run in another thread, as long as nobody changes `run_times` and the snapshot's masks meanwhile.
    """
    median, late, uids, silent = simulator_inputs(snapshot, run_times)
    slot = _slot(median)
    starts: dict[str, tuple[float, float]] = {}
    widths: dict[str, float] = {}
    after: dict[str, float] = {}
    sizes = _sizes(median)
    capacity, earliest = _room_at_last(median), (_first_end(median), _first_end(late))
    played = zip(uids, median.queues, BackfillSimulator(median, slot).run(), BackfillSimulator(late, slot).run(), strict=True)
    for queue, jobs, medians, lates in played:
        for uid, job, expected, long in zip(queue, jobs, medians, lates, strict=True):
            if expected <= 0.0 and uid in snapshot.tried:
                expected, long = earliest
            if expected == NEVER:
                over = any(amount > capacity[cap] for cap, amount in job.caps)
                endless = UNBOUNDED_WORK if job.window < 0 else "ReservedNodes"
                silent[uid] = POWER_BUDGET if snapshot.tried.get(uid) == POWER_BUDGET else "WaitingForQuotaHeadroom" if over else endless
            else:
                starts[uid] = (expected, expected if long == NEVER else max(expected, long))
                widths[uid] = job.nodes / max(1, sizes[job.columns])
                if job.after > 0.0:
                    after[uid] = job.after
    return Foreseen(starts, silent, widths, after)


def features_of(work: Candidate | NodeHolder, nodes: int, walltime: float) -> RunFeatures:
    """Returns the properties of an allocation on `nodes` nodes, of a walltime in seconds, by which its run time is learnt and predicted."""
    return RunFeatures(work.user, work.tenant, work.name, nodes, walltime)


def _silence(candidate: Candidate, columns: Columns) -> str:
    """Returns the reason why no start can be foreseen for a candidate whatever work ends; empty: one can."""
    if candidate.blocked is not None:
        return candidate.blocked[0]
    if candidate.held:
        return "Held"
    if not candidate.vcluster_known or not candidate.vcluster_open:
        return "VClusterClosed"
    if candidate.reservation and columns.window_of(candidate) < 0:
        return "ReservedNodes"
    number = columns.number(candidate)
    if candidate.minimum > columns.exist[number]:
        return "NeverFits"
    if candidate.minimum > columns.usable[number]:
        return "NodesUnavailable"
    return "InsufficientConformance" if columns.lacks_equal(candidate) else ""


def _sizes(stage: SimulatorInput) -> list[int]:
    """Returns how many nodes, free or held, each set has."""
    columns = list(stage.free)
    for held in stage.held:
        for column, count in held.columns:
            columns[column] += count
    return [sum(columns[column] for column in members) for members in stage.sets]


def _room_at_last(stage: SimulatorInput) -> list[int]:
    """Returns the headroom of each cap, by its number, after all running work with a known end has ended."""
    room = list(stage.room)
    for held in stage.held:
        if held.expected < NEVER:
            for cap, amount in held.caps:
                room[cap] += amount
    return room


def _beyond_power(state: ClusterState, waiting: Iterable[Waiting]) -> Iterator[str]:
    """Yields the uids of waiting work that would exceed the whole power budget even on the usable nodes that draw least, free or held, of
    whatever vcluster; none without a budget.
    """
    if state.power.limit is None:
        return
    least: dict[tuple[Need, int], int] = {}
    for candidate in (one.candidate for one in waiting):
        need, left = candidate.need, candidate.minimum
        if (need, left) not in least:
            watts = 0
            for bucket in sorted(state.node_cache.table.admitted(need), key=lambda one: one.key.hardware.watts):
                watts += min(left, bucket.usable) * bucket.key.hardware.watts
                left -= min(left, bucket.usable)
            least[need, candidate.minimum] = watts
        if least[need, candidate.minimum] > state.power.limit:
            yield candidate.uid


def _first_end(stage: SimulatorInput) -> float:
    """Returns the seconds to the first end, after now, of running work or of a window; NEVER where none is known."""
    ends = [held.expected for held in stage.held] + [column_window.end for column_window in stage.column_windows]
    return min((end for end in ends if end > 0.0), default=NEVER)


def _slot(stage: SimulatorInput) -> float:
    """Returns the length of a slot to which ends are rounded up, in seconds; 0 for few jobs: no rounding."""
    if sum(map(len, stage.queues)) <= EXACT_JOBS:
        return 0.0
    pending = sum(job.nodes * job.expected for jobs in stage.queues for job in jobs if job.expected < NEVER)
    running = sum(count * held.expected for held in stage.held if held.expected < NEVER for _column, count in held.columns)
    nodes = sum(stage.free) + sum(count for held in stage.held for _column, count in held.columns)
    return (pending + running) / max(1, nodes) / SLOTS
