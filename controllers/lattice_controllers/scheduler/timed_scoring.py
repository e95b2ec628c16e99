"""The cost function with a watch beside it: pure code asks no clock, so its time is taken here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lattice.daemon.clock import Clock
from lattice.scheduling.machine import Machine
from lattice.scheduling.policy import Policy
from lattice.scheduling.scoring import Scores, Scoring
from lattice.scheduling.work import Candidate


class TimedScoring(Scoring):
    """Scores as `Scoring` does; `took` hears the vcluster and the seconds of each call that scored something."""

    def __init__(self, policies: Mapping[str, Policy], clock: Clock, took: Callable[[str, float], object]) -> None:
        super().__init__(policies=policies)
        self._clock, self._took = clock, took

    def score(self, candidates: Sequence[Candidate], machine: Machine, now: float) -> Scores:
        """The score of each candidate of one vcluster, in the order given: the totals found out, the terms when they are asked for."""
        began = self._clock.monotonic()
        scores = super().score(candidates, machine, now)
        if scores.totals:
            self._took(candidates[0].vcluster, self._clock.monotonic() - began)
        return scores
