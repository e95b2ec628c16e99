"""Measures how well starts are foreseen on logs, knowing only the past; `plan` measures how long a full forecast takes.

KTH-SP2 and the made logs of `scenes`, and in full every other log beside KTH-SP2, are replayed under EASY with the users' estimates: such a
schedule depends on no prediction. At each submission of a job that has to wait, the production forecaster is asked about everything that
waits, with the cluster state of that second and run times learnt from runs that ended before. The first prediction of each job is judged.
Beside it: the same simulation with the users' estimates for run times, and a predictor that promises everybody the same wait, the running
0.9 quantile of all waits that ended before.

Coverage is given by band, twice: of the waits that were foreseen, which is what a reader of p90 can know, and of the waits that came. A
wait that turns out long was more often foreseen too short than others were; so the second is lower for long waits by its definition.
"""

from __future__ import annotations

import gzip
import math
import os
from array import array
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Final

from lattice.errors import Rejected
from lattice.replay.engine import Estimates, Policy, simulate
from lattice.replay.jobs import Log as Jobs
from lattice.replay.swf import parse
from lattice.replay.workload import Machine as Counted
from lattice.replay.workload import Workload, select
from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.forecast.forecaster import Forecaster, features_of, foresee, simulator_inputs
from lattice.scheduling.forecast.simulator import BackfillSimulator
from lattice.scheduling.forecast.simulator_input import SimulatorInput
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import is_digits
from lattice_dev.bench import scenes
from lattice_dev.bench.figures import Aim, Baseline, Figure
from lattice_dev.bench.plan import plain_node, timing

KTH: Final = "KTH-SP2"
NODES: Final = 100
"""Nodes of KTH-SP2."""
MADE_JOBS: Final = 6000
"""Jobs of each made log."""
BANDS: Final = (("< 10 min", 600.0), ("10-60 min", 3600.0), ("1-6 h", 6 * 3600.0), ("6-24 h", 24 * 3600.0), ("> 24 h", math.inf))
"""Bands of waits, each with the seconds below which a wait belongs to it."""
LOGS: Final[Mapping[str, Callable[[int], Jobs]]] = {**scenes.LOGS, "other": lambda jobs: scenes.made(jobs, 0.8, 101)}
"""The made logs; `other` is one that the calibration was not designed on."""
ENOUGH, ENOUGH_QUICK = 200, 100
"""Starts of a band from which on its coverage is judged; with fewer it is only shown."""
USER, GROUP = 11, 12
"""Fields of the user's and the group's number in a line of SWF."""
STEP: Final = 500
FOLDER: Final = Path(os.environ.get("LATTICE_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
"""The folder with the logs."""
WARM_UP: Final = 200
"""Predictions of waiting jobs from which the constant predictor learns before anything is judged."""

Say = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Judged:
    """The first prediction for one job that waited; all times in seconds from its submission."""

    waited: float
    p50: float
    p90: float
    by_users: float
    """The predicted wait if all jobs ran as long as their users estimated."""
    constant: float
    """The wait that the constant predictor gives every job."""


@dataclass
class Log:
    """The jobs of a log, the user and group of each, and when each starts."""

    workload: Workload
    people: list[tuple[str, str]]
    start: Sequence[int]
    nodes: int = NODES
    """Nodes of the machine."""

    def candidate(self, job: int) -> Candidate:
        """Returns a job as the scheduler sees it while it waits."""
        work, (user, tenant) = self.workload, self.people[job]
        nodes = work.nodes[job]
        return Candidate(
            key=f"log/{job:08d}", uid=str(job), tenant=tenant, vcluster="log", preemption_class=5, submitted=float(work.submit[job]),
            minimum=nodes, maximum=nodes, need=Need(), user=user, walltime=float(work.estimate[job]), grace=0.0,
        )  # fmt: skip

    def holder(self, job: int, nodes: tuple[int, ...]) -> NodeHolder:
        """Returns a job as the scheduler sees it while it runs."""
        work, (user, tenant), at = self.workload, self.people[job], float(self.start[job])
        walltime = float(work.estimate[job])
        return NodeHolder(
            uid=str(job), key=f"log/{job:08d}", tenant=tenant, user=user, vcluster="log", preemption_class=5, nodes=nodes,
            since=at, started=at, end=at + walltime, walltime=walltime,
        )  # fmt: skip


def read(file: Path, jobs: int | None = None, nodes: int | None = NODES) -> Log:
    """Returns the first jobs of a log (None: all) packed with gzip, with the starts that EASY gives them by the users' estimates; `nodes`
    None: as many as its header names.

    Raises Rejected where the file cannot be read or is no log, or names no number of nodes.
    """
    try:
        lines = gzip.decompress(file.read_bytes()).splitlines()
    except OSError as error:
        raise Rejected(f"{file} cannot be read: {error}; set LATTICE_DATA to the folder with KTH-SP2.swf.gz", reason="BadTrace") from error
    people = {
        int(words[0]): (words[USER].decode(), words[GROUP].decode()) for words in map(bytes.split, lines) if words and is_digits(words[0])
    }
    trace = parse(lines)
    size = nodes or trace.header.get("maxprocs") or trace.header.get("maxnodes")
    if not size:
        raise Rejected(f"{file} has no MaxProcs in its header: add the line `; MaxProcs: NUMBER`", reason="BadTrace")
    workload, _left = select(trace, Counted(size))
    if jobs is not None:
        columns = ("job", "submit", "run", "estimate", "procs", "nodes")
        workload = Workload(**{name: getattr(workload, name)[:jobs] for name in columns})
    start = simulate(workload, size, Policy.EASY, Estimates.USER)
    return Log(workload, [people[number] for number in workload.job], start, size)


def made(name: str, jobs: int) -> Log:
    """Returns a made log, with the starts that EASY gives its jobs."""
    found = LOGS[name](jobs).jobs
    columns = (
        range(len(found)), [round(job.submit) for job in found], [round(min(job.run, job.walltime or job.run)) for job in found],
        [round(job.walltime or job.run) for job in found], [job.nodes for job in found],
    )  # fmt: skip
    number, submit, run, estimate, nodes = (array("q", column) for column in columns)
    workload = Workload(number, submit, run, estimate, nodes, nodes)
    start = simulate(workload, scenes.NODES, Policy.EASY, Estimates.USER)
    return Log(workload, [(job.user, job.tenant) for job in found], start, scenes.NODES)


@dataclass
class Course:
    """Plays a log second by second on a cluster state, and asks the forecaster at each submission."""

    log: Log
    state: ClusterState = field(default_factory=lambda: ClusterState(start_allowance=0.0))
    forecaster: Forecaster = field(default_factory=Forecaster)
    waiting: dict[int, Candidate] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = list(range(self.log.nodes))
        for index in self.free:
            self.state.node_cache.put(plain_node(index))

    def judge(self, say: Say) -> Iterator[Judged]:
        """Yields the predictions for the jobs that wait, in order of submission, each made at its submission; plays the whole log while it
        is read.
        """
        for number, (now, ends, submissions, starts) in enumerate(_moments(self.log)):
            for job in ends:
                self._end(job)
            for job in submissions:
                self.waiting[job] = self.log.candidate(job)
            for job in starts:
                self._start(job, now)
            late = [job for job in submissions if job in self.waiting]
            if late:
                yield from self._ask(late, float(now))
            if number % STEP == 0:
                say(submissions[-1] / len(self.log.workload) if submissions else 0.0)

    def _ask(self, jobs: Sequence[int], now: float) -> Iterator[Judged]:
        """Makes one forecast of the whole queue, and yields its predictions for the jobs that were submitted now.

        Raises Rejected where no start of one is foreseen.
        """
        snapshot = self.forecaster.take_snapshot(self.state, {"log": list(self.waiting.values())}, now)
        found = self.forecaster.conclude(snapshot, foresee(snapshot, self.forecaster.run_times))
        median_stage, _late, uids, _silent = simulator_inputs(snapshot, self.forecaster.run_times)
        by_users = BackfillSimulator(as_users_say(median_stage)).run()[0]
        constant = self.waits[max(0, math.ceil(0.9 * len(self.waits)) - 1)] if self.waits else 0.0
        for job in jobs:
            expected, rank = found[str(job)], uids[0].index(str(job))
            if expected.p50 is None or expected.p90 is None or by_users[rank] == NEVER:
                raise Rejected(f"no start is foreseen for job {job}: {expected.reason}", reason="NotForeseen")
            yield Judged(self.log.start[job] - now, expected.p50 - now, expected.p90 - now, by_users[rank], constant)

    def _start(self, job: int, now: int) -> None:
        """Starts a job on the lowest free nodes, and notes how long it waited."""
        self.forecaster.started(str(job), float(now))
        wait = now - self.log.workload.submit[job]
        if wait:
            insort(self.waits, float(wait))
        del self.waiting[job]
        count = self.log.workload.nodes[job]
        nodes, self.free = tuple(self.free[:count]), self.free[count:]
        self.state.put_holder(self.log.holder(job, nodes))

    def _end(self, job: int) -> None:
        """Ends a job, frees its nodes, and lets the forecaster learn how long it ran."""
        holder = self.state.holders[str(job)]
        self.state.drop_holder(holder.uid)
        self.free += holder.nodes
        self.forecaster.learn(features_of(holder, len(holder.nodes), holder.walltime or 0.0), float(self.log.workload.run[job]))


def as_users_say(stage: SimulatorInput) -> SimulatorInput:
    """Returns the same simulator input in which all work runs as long as its users estimated."""
    held = tuple(replace(one, expected=one.believed) for one in stage.held)
    return replace(stage, held=held, queues=tuple(tuple(replace(job, expected=job.believed) for job in queue) for queue in stage.queues))


def _moments(log: Log) -> Iterator[tuple[int, list[int], list[int], list[int]]]:
    """Yields each second with an event, ascending, and the jobs that end, are submitted and start in it."""
    work = log.workload
    events = sorted(
        event
        for job in range(len(work))
        for event in ((log.start[job] + work.run[job], 0, job), (work.submit[job], 1, job), (log.start[job], 2, job))
    )
    at = 0
    while at < len(events):
        now = events[at][0]
        found: tuple[list[int], list[int], list[int]] = ([], [], [])
        while at < len(events) and events[at][0] == now:
            found[events[at][1]].append(events[at][2])
            at += 1
        yield now, *found


def measure(*, quick: bool, say: Say) -> list[Figure]:
    """Returns the forecast's accuracy on KTH-SP2, coverage by band on each log, and the speed of a forecast.

    `quick`: fewer jobs and a tenth of the machine. Raises Rejected where a log is missing or too short.
    """
    enough = ENOUGH_QUICK if quick else ENOUGH
    kth = judge(read(FOLDER / f"{KTH}.swf.gz", 3000 if quick else None), say)
    found = [*accuracy(kth), *by_bands(KTH, kth.judged, enough)]
    for name in LOGS:
        found += by_bands(name, judge(made(name, 1500 if quick else MADE_JOBS), say).judged, enough)
    for file in [] if quick else sorted(FOLDER.glob("*.swf.gz")):
        name = file.name.removesuffix(".swf.gz")
        if name != KTH:
            found += by_bands(name, judge(read(file, nodes=None), say).judged, enough)
    return [*found, *(timing(500, 300, say) if quick else timing(5000, 3000, say))]


@dataclass(frozen=True)
class Verdict:
    """The first predictions for the jobs of a log that waited, and how many jobs did not wait."""

    judged: Sequence[Judged]
    at_once: int
    jobs: int


def judge(log: Log, say: Say) -> Verdict:
    """Plays a log and judges its predictions after the first `WARM_UP`; raises Rejected where no more jobs waited."""
    judged = list(Course(log).judge(say))[WARM_UP:]
    if not judged:
        raise Rejected(f"fewer than {WARM_UP + 1} jobs waited: nothing can be judged", reason="NoValues")
    at_once = sum(start == submit for start, submit in zip(log.start, log.workload.submit, strict=True))
    return Verdict(judged, at_once, len(log.workload))


def accuracy(verdict: Verdict) -> list[Figure]:
    """Returns how accurate the first predictions for waiting jobs were."""
    judged, at_once, jobs = verdict.judged, verdict.at_once, verdict.jobs
    count = len(judged)
    covered = sum(one.waited <= one.p90 for one in judged)
    error = median(abs(one.waited - one.p50) for one in judged)
    of_users = median(abs(one.waited - one.by_users) for one in judged)
    width, constant = median(one.p90 for one in judged), median(one.constant for one in judged)
    kept_by_constant = sum(one.waited <= one.constant for one in judged) / count
    return [
        Figure(
            "starts by p90, jobs that waited", 100 * covered / count, "%", Aim(85, at_least=True),
            detail=f"aim 85 to 95; {count} jobs, {at_once} of {jobs} more started at once",
            parts={"p50": 100 * sum(one.waited <= one.p50 for one in judged) / count, "constant": 100 * kept_by_constant},
        ),
        Figure("starts after p90, jobs that waited", 100 - 100 * covered / count, "%", Aim(5, at_least=True), detail="the other side"),
        Figure(
            "starts by p90, all jobs", 100 * (covered + at_once) / (count + at_once), "%",
            detail="jobs that start at once count as foreseen",
        ),
        Figure(
            "median width, p90 - now", width, "s", Aim(constant), Baseline("the same wait for everybody", constant),
            parts={"p90 - p50": median(one.p90 - one.p50 for one in judged)},
        ),
        Figure("median error of p50", error, "s", Aim(of_users), Baseline("by users' estimates", of_users)),
    ]  # fmt: skip


def by_bands(name: str, judged: Sequence[Judged], enough: int = ENOUGH) -> list[Figure]:
    """Returns the lowest coverage of p90 in a band of a log, by foreseen and by real waits, and how sharp p90 is."""
    return [
        _lowest(f"{name}, starts by p90, lowest of the waits foreseen", judged, lambda one: one.p50, enough),
        _lowest(f"{name}, starts by p90, lowest of the waits that came", judged, lambda one: one.waited, enough),
        Figure(f"{name}, p90 by the wait, median", median(one.p90 / max(one.waited, 1.0) for one in judged), "times"),
    ]


def _lowest(name: str, judged: Sequence[Judged], of: Callable[[Judged], float], enough: int) -> Figure:
    """Returns the figure of the band in which the fewest starts were as early as foreseen.

    Raises Rejected where no band has enough starts.
    """
    bands = {band: [one for one in judged if least <= of(one) < most] for band, least, most in _ranges()}
    covered = {band: 100 * sum(one.waited <= one.p90 for one in some) / len(some) for band, some in bands.items() if some}
    judgeable = [share for band, share in covered.items() if len(bands[band]) >= enough]
    if not judgeable:
        raise Rejected(f"{name}: no band has {enough} starts; take a longer log", reason="NoValues")
    said = (
        f"{band} {covered[band]:.1f} of {len(some)} (p90 by wait {median(one.p90 / max(one.waited, 1.0) for one in some):.2f}, "
        f"p50 misses by {median(abs(one.waited - one.p50) for one in some):,.0f} s)"
        for band, some in bands.items()
        if some
    )
    return Figure(name, min(judgeable), "%", Aim(85, at_least=True), detail="; ".join(said))


def _ranges() -> Iterator[tuple[str, float, float]]:
    """Yields name, least and most of each band."""
    least = -math.inf
    for name, most in BANDS:
        yield name, least, most
        least = most
