"""The optimality monitor: compares a cycle's value with the bound of a linear program, once a minute at most, in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from lattice.daemon.clock import Clock
from lattice.daemon.guard import Guard
from lattice.daemon.logs import event
from lattice.errors import Retry
from lattice.scheduling.cycle.ranges import RANGES
from lattice.scheduling.model.outcomes import Outcome, Placed
from lattice.scheduling.model.strategies import lenders_for
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.optimum.formulation import Formulation, formulate, value_of
from lattice.scheduling.optimum.solver import installed
from lattice.scheduling.queries.context import ABOUT_NODES
from lattice.scheduling.state.cluster_state import ClusterState
from lattice_controllers.scheduler.bound_worker import packed
from lattice_controllers.scheduler.metrics import SchedulerMetrics

log = logging.getLogger(__name__)

BOUND_SECONDS: Final = 60.0
"""Least time between two measurements."""
ANSWER_SECONDS: Final = 60.0
MOST_JOBS: Final = 2_000
MOST_BUCKETS: Final = 2_000
"""A cycle with more buckets, or more jobs (`MOST_JOBS`), is not measured: making its question would hold the loop for some 15 ms."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One cycle to be measured: its vcluster, its value (score × nodes placed), and the question for the solver."""

    vcluster: str
    value: float
    question: Formulation


class OptimalityMonitor:
    """Measures one cycle that placed something every 60 s at most, the vclusters in turn, and shows value ÷ bound as a metric.

    `solve` returns the bound of a question; by default another process does (`in_a_process`).
    """

    def __init__(
        self,
        clock: Clock,
        state: ClusterState,
        metrics: SchedulerMetrics,
        *,
        solve: Callable[[Formulation], Awaitable[float]] | None = None,
    ) -> None:
        self._clock = clock
        self._state = state
        self._metrics = metrics
        self._solve = solve or in_a_process
        self._measures = solve is not None or installed()
        self._guard = Guard(clock, "upper bound")
        self._waiting: set[str] = set()
        self._latest = ""
        self._next = 0.0
        self._samples: asyncio.Queue[Sample] = asyncio.Queue()

    def begin_turn(self, vcluster: str, candidates: Sequence[Candidate], now: float, cycle: int) -> Callable[[Sequence[Outcome]], None]:
        """Returns the function that receives the outcomes of the cycle of a vcluster (`judged`); for `RANGES` one that ignores them."""
        del candidates, now, cycle
        return _ignore if vcluster == RANGES else partial(self.judged, vcluster)

    def judged(self, vcluster: str, outcomes: Sequence[Outcome]) -> None:
        """Takes a vcluster's cycle, given its outcomes, as a sample for `run` if a measurement is due; none where no solver is installed.

        The claims of these outcomes must be in the cluster state already. Cycles that placed nothing, or are very large, are passed over.
        """
        if not self._measures or len(outcomes) > MOST_JOBS or len(self._state.node_cache.buckets) > MOST_BUCKETS:
            return
        if not any(isinstance(outcome, Placed) for outcome in outcomes):
            return  # where nothing was placed, what is left of nodes is kept for work that comes first, or too little
        now = self._clock.monotonic()
        if now < self._next:
            self._waiting.add(vcluster)
            return
        if vcluster == self._latest and self._waiting - {vcluster} and now < self._next + BOUND_SECONDS:
            return  # those that were turned away have an interval's time to come first
        self._next, self._latest = now + BOUND_SECONDS, vcluster
        self._waiting.discard(vcluster)
        self._samples.put_nowait(Sample(vcluster, value_of(outcomes), self._question(vcluster, outcomes)))

    async def run(self) -> None:
        """Measures the sampled cycles until cancelled, and shows the value of each divided by its bound in a metric."""
        while True:
            sample = await self._samples.get()
            await self._guard.attempt_async(sample.vcluster, lambda sample=sample: self._measure(sample))  # type: ignore[misc]

    async def _measure(self, sample: Sample) -> None:
        """Asks for the bound of a sampled cycle, and shows its value ÷ bound in the metric and the log; a bound of 0 shows nothing."""
        bound = await self._solve(sample.question)
        if bound > 0:
            ratio = sample.value / max(bound, sample.value)
            self._metrics.bound_ratio.labels(sample.vcluster).set(ratio)
            event(log, "Held a cycle against the bound", vcluster=sample.vcluster, value=round(sample.value, 4), bound=round(bound, 4))

    def _question(self, vcluster: str, outcomes: Sequence[Outcome]) -> Formulation:
        """Formulates the placement problem that a vcluster's cycle had: candidates placed or waiting for nodes, the placed nodes counted as
        free.
        """
        meant = [one for one in outcomes if isinstance(one, Placed) or one.reason in ABOUT_NODES]
        state, policy = self._state, self._state.policy(vcluster)
        return formulate(
            state.node_cache,
            [one.candidate for one in meant],
            [one.score.total if one.score is not None else 0.0 for one in meant],
            home=vcluster if policy.home else "",
            lenders=frozenset(lenders_for(state.policies, vcluster, 0.0)),
            given=[node for one in meant if isinstance(one, Placed) for node in one.nodes],
        )


def _ignore(outcomes: Sequence[Outcome]) -> None:
    """Ignores the outcomes of the turn that extends ranges: it is no cycle of a vcluster."""
    del outcomes


async def in_a_process(question: Formulation) -> float:
    """Returns the upper bound of a question, computed by `bound_worker` in a process.

    Raises Retry when that gave none, or took longer than 60 s.
    """
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lattice_controllers.scheduler.bound_worker",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            said, wrong = await program.communicate(packed(question))
    except TimeoutError:
        raise Retry(f"the upper bound of a cycle took longer than {ANSWER_SECONDS:g} s", reason="NoBound") from None
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    if program.returncode != 0:
        last = wrong.decode(errors="replace").strip().splitlines()[-1:] or [f"it ended with {program.returncode}"]
        raise Retry(f"no upper bound of a cycle of {len(question.jobs)} jobs: {last[0]}", reason="NoBound")
    return float(said)
