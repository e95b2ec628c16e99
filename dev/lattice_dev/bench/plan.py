"""Measures a full forecast of a crowded machine, beside a plan that examines the whole queue again at each end.

`naive` is that plan, without shapes, slots or kept promises: the reference for speed here, and for correctness in the tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import process_time
from typing import Final

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.forecast.columns import ForecastSnapshot
from lattice.scheduling.forecast.forecaster import Forecaster, Foreseen, simulator_inputs
from lattice.scheduling.forecast.predictor import RunFeatures
from lattice.scheduling.forecast.simulator_input import BACKFILL, IN_ORDER, Job, SimulatorInput
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import ClusterState
from lattice_dev.bench.figures import Aim, Baseline, Figure

WALLTIMES: Final = tuple(3600.0 * hours for hours in (1, 2, 4, 6, 12, 24, 24, 48, 72))
SIZES: Final = (1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 64, 128)
USERS: Final = tuple(f"user{number:02d}" for number in range(60))
NEEDS: Final = (Need(), Need(), Need(gpus=1), Need(memory=2 << 30), Need(gpus=4, memory=3 << 30))
NOW: Final = 1_000_000.0
REPEATS: Final = 5


def plain_node(index: int) -> NodeFacts:
    """Returns one of many equal nodes."""
    return NodeFacts(
        index=index, name=f"n{index:05d}", group=f"g{index // 64:03d}", cpus=1, memory=1 << 30, gpus=0, features=frozenset(),
        hollow=False, usable=True, state="Ready",
    )  # fmt: skip


def crowd(nodes: int, pending: int, seed: int) -> tuple[Forecaster, ClusterState, list[Candidate]]:
    """Returns a forecaster with 5,000 finished runs, a nearly full machine of twelve kinds of nodes, a queue with five kinds of needs."""
    dice = random.Random(seed)  # noqa: S311 - equal seeds, equal crowds
    state, forecaster = ClusterState(), Forecaster()
    for index in range(nodes):
        state.node_cache.put(replace(plain_node(index), gpus=4 if index % 4 == 0 else 0, memory=(1 << 30) * (1 + index % 3)))
    for _ in range(5000):
        walltime = dice.choice(WALLTIMES)
        work = RunFeatures(dice.choice(USERS), "physics", "", dice.choice(SIZES), walltime)
        forecaster.run_times.observe(work, walltime * min(1.0, 1.2 * dice.random() ** 2))
    for number, held in enumerate(_shares(nodes, dice)):
        walltime = dice.choice(WALLTIMES)
        began = NOW - 0.9 * walltime * dice.random()
        state.put_holder(
            NodeHolder(
                uid=f"h{number}", key=f"physics/h{number}", tenant="physics", user=dice.choice(USERS), vcluster="hpc", preemption_class=5,
                nodes=held, since=began, started=began, end=began + walltime + 30, walltime=walltime,
            )
        )  # fmt: skip
    return forecaster, state, [_pending(number, dice) for number in range(pending)]


def timing(nodes: int, pending: int, say: Callable[[float], None]) -> list[Figure]:
    """Returns CPU seconds of a full forecast, the median of some, and of two naive plans, measured once."""
    forecaster, state, queue = crowd(nodes, pending, seed=1)
    found = forecaster.forecast(state, {"hpc": queue}, NOW)
    seconds = []
    for number in range(REPEATS):
        seconds.append(_seconds(lambda: forecaster.forecast(state, {"hpc": queue}, NOW)))
        say(number / (REPEATS + 3))
    snapshot = forecaster.take_snapshot(state, {"hpc": queue}, NOW)
    look = _seconds(lambda: forecaster.take_snapshot(state, {"hpc": queue}, NOW))
    slowly = _seconds(lambda: naive_forecast(snapshot, forecaster))
    said = sum(expected.p50 is not None for expected in found.values())
    return [
        Figure(
            f"full forecast, {pending:,} pending on {nodes:,} nodes", median(seconds), "s CPU", Aim(0.5), Baseline("naive plan", slowly),
            detail=f"{said} with p50 and p90; the loop is held {1000 * look:.1f} ms", parts={"times quicker": slowly / median(seconds)},
        )
    ]  # fmt: skip


def naive_forecast(snapshot: ForecastSnapshot, forecaster: Forecaster) -> Foreseen:
    """Returns starts as `foresee` returns them, computed by naive plans."""
    short, long, uids, silent = simulator_inputs(snapshot, forecaster.run_times)
    starts: dict[str, tuple[float, float]] = {}
    for queue, medians, lates in zip(uids, naive(short), naive(long), strict=True):
        starts |= {uid: (expected, late) for uid, expected, late in zip(queue, medians, lates, strict=True)}
    return Foreseen(starts, silent)


def naive(stage: SimulatorInput) -> list[list[float]]:
    """Returns the starts of all queued jobs, found the plain way: at each end every job of every queue is examined, in order."""
    return _Naive(stage).run()


class _Naive:
    def __init__(self, stage: SimulatorInput) -> None:
        self.stage = stage
        self.free, self.room = list(stage.free), list(stage.room)
        self.running = [(held.expected, max(held.expected, held.believed), held.columns, held.caps) for held in stage.held]
        self.start = [[NEVER] * len(queue) for queue in stage.queues]
        size = list(stage.free)
        for held in stage.held:
            for column, count in held.columns:
                size[column] += count if held.expected < NEVER else 0
        self.possible = [[job.nodes <= sum(size[at] for at in stage.sets[job.columns]) for job in queue] for queue in stage.queues]

    def run(self) -> list[list[float]]:
        """Returns when each job of each queue starts, NEVER for one that cannot; examines all queues again at each end."""
        now = 0.0
        while True:
            self.ask(now)
            times = [end for end, *_rest in self.running] + [column_window.end for column_window in self.stage.column_windows]
            asked = zip(self.stage.queues, self.start, strict=True)
            waiting = [job for queue, starts in asked for job, at in zip(queue, starts, strict=True) if at == NEVER]
            times = [time for time in times + [job.after for job in waiting] if now < time < NEVER]
            if not waiting or not times:
                return self.start
            now = min(times)
            for one in [one for one in self.running if one[0] <= now]:
                self.running.remove(one)
                for column, count in one[2]:
                    self.free[column] += count
                for cap, amount in one[3]:
                    self.room[cap] += amount

    def ask(self, now: float) -> None:
        """Starts at `now` what can start, and keeps shadows for what is blocked by its queue's policy."""
        kept: list[list[float]] = []
        for number, queue in enumerate(self.stage.queues):
            mode = self.stage.modes[number] if self.stage.modes else BACKFILL
            head: Job | None = None
            blocked: set[int] = set()
            for rank, job in enumerate(queue):
                if self.start[number][rank] < NEVER or job.after > now or not self.possible[number][rank]:
                    continue
                if any(self.room[cap] < amount for cap, amount in job.caps) or (mode == IN_ORDER and job.columns in blocked):
                    continue
                columns = self.choose(job, now)
                if columns is not None and self.spares(job, columns, kept, now):
                    self.begin(number, rank, job, columns, kept, now)
                elif mode == BACKFILL and head is None:
                    reserved = self.reserve(job, now)
                    if job.window < 0 or reserved[1] < NEVER:  # one whose own window ends too soon holds no reservation
                        head = job
                        kept.append(reserved)
                elif mode == IN_ORDER:
                    blocked.add(job.columns)
                    head = head or job
            if mode == IN_ORDER and head is not None:
                kept.append(self.reserve(head, now))

    def choose(self, job: Job, now: float) -> dict[int, int] | None:
        """Returns how many nodes of each column a job would take now; None where too few are free."""
        closed = {
            column
            for number, one in enumerate(self.stage.column_windows)
            if (now + job.believed > one.end if number == job.window else now < one.end and now + job.believed > one.start)
            for column in one.columns
        }
        left, chosen = job.nodes, {}
        for column in self.stage.sets[job.columns]:
            count = 0 if column in closed else min(left, self.free[column])
            if count:
                chosen[column] = count
                left -= count
        return None if left else chosen

    def spares(self, job: Job, columns: dict[int, int], kept: list[list[float]], now: float) -> bool:
        """Tells whether a job on these columns leaves enough for each kept start."""
        return all(
            now + job.believed <= shadow or sum(columns.get(column, 0) for column in self.stage.sets[int(number)]) <= extra
            for number, shadow, extra in kept
        )

    def begin(self, queue: int, rank: int, job: Job, columns: dict[int, int], kept: list[list[float]], now: float) -> None:
        """Starts a job on these columns, and lowers what the kept starts can spare."""
        self.start[queue][rank] = now
        for column, count in columns.items():
            self.free[column] -= count
        for cap, amount in job.caps:
            self.room[cap] -= amount
        end = now + job.expected
        self.running.append((end, max(end, now + job.believed), tuple(columns.items()), job.caps))
        for one in kept:
            if now + job.believed > one[1]:
                one[2] -= sum(columns.get(column, 0) for column in self.stage.sets[int(one[0])])

    def reserve(self, job: Job, now: float) -> list[float]:
        """Returns set, earliest start and spare nodes of a blocked job, a closing window passed over; NEVER as the start where none is
        known.
        """
        columns = self.stage.sets[job.columns]
        free = sum(self.free[column] for column in columns)
        for time in sorted({now, *(max(now, believed) for end, believed, *_rest in self.running if end < NEVER)}):
            there = sum(count for _e, believed, held, _c in self.running if believed <= time for at, count in held if at in columns)
            if free + there >= job.nodes:
                extra, shadow = free + there - job.nodes, time
                break
        else:
            return [job.columns, NEVER, 0]
        for number, one in enumerate(self.stage.column_windows):
            concerns = number != job.window and not one.columns.isdisjoint(columns)
            if concerns and shadow < one.end and shadow + job.believed > one.start:
                shadow = one.end
        if job.window >= 0 and shadow + job.believed > self.stage.column_windows[job.window].end:
            return [job.columns, NEVER, 0]
        return [job.columns, shadow, extra]


def _shares(nodes: int, dice: random.Random) -> list[tuple[int, ...]]:
    """Returns the nodes of each running work: 98 % of `nodes` node indices, dealt out at random in parts of usual sizes."""
    free, dealt = list(range(nodes)), []
    dice.shuffle(free)
    while len(free) > nodes // 50:
        size = min(dice.choice(SIZES), len(free))
        dealt.append(tuple(sorted(free[:size])))
        del free[:size]
    return dealt


def _pending(number: int, dice: random.Random) -> Candidate:
    """Returns a candidate of random size, need, user and walltime."""
    size = dice.choice(SIZES)
    return Candidate(
        key=f"physics/j{number:05d}", uid=f"j{number}", tenant="physics", vcluster="hpc", preemption_class=5, submitted=float(number),
        minimum=size, maximum=size, need=dice.choice(NEEDS), user=dice.choice(USERS), walltime=dice.choice(WALLTIMES),
    )  # fmt: skip


def _seconds(what: Callable[[], object]) -> float:
    """Returns the processor seconds that a call takes."""
    began = process_time()
    what()
    return process_time() - began
