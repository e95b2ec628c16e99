"""The regression suite: six generated traces, each judged by its key metric (book, "Regression Suite").

| trace | judged |
|---|---|
| steady-state | utilisation until the last submission > 85 % |
| burst | p99 of the waits < 4 h |
| unfair | greatest deviation of a tenant's share < 10 % |
| sensitive-claim | the longest wait of sensitive work = 0 |
| preemption-heavy | p95 of the waits of classes 7 to 9 below that of classes 1 to 3; the book's checkpoint success > 95 % waits for
  preemption to be executed, and is said to be not judged |
| empty-to-full | 95 % of the nodes held within 15 min; the longest cycle < 5 s |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lattice.errors import Rejected
from lattice.inventory import read_inventory
from lattice.replay.measures import Measures, Ran, Replayed, measure, waits_of
from lattice.replay.production import Setting, Timing, fit, replay
from lattice.replay.profiles import base_policy, read_settings, with_settings
from lattice.replay.synthetic import KINDS, generate
from lattice.scheduling.conversion.facts import facts_of_inventory
from lattice.units import format_duration


@dataclass(frozen=True, slots=True)
class SuiteSize:
    """The size of each generated trace: nodes of the machine, hours of submissions."""

    nodes: int
    hours: float


FULL: Final = SuiteSize(128, 48)
REDUCED: Final = SuiteSize(64, 24)
_LONGEST_CYCLE: Final = 5.0


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """One judgement on a trace: the condition asked, the value found, and whether it holds; None: it could not be judged."""

    trace: str
    asked: str
    found: str
    holds: bool | None


@dataclass(frozen=True)
class Outcome:
    """One trace of the suite after it was generated, replayed and judged."""

    trace: str
    jobs: int
    cpu_seconds: float
    measures: Measures
    verdicts: Sequence[SuiteVerdict]


def outcome(
    kind: str, seed: int, size: SuiteSize, clock: Callable[[], float], progress: Callable[[float], None] = lambda _: None
) -> Outcome:
    """Returns the outcome of one trace of this kind: generates the trace, replays and judges it.

    `clock` gives seconds of CPU or wall time; `progress` is called with the part done, from 0 to 1. Raises Rejected where a job never
    started, or for a size or kind that cannot be generated.
    """
    log = generate(kind, seed, nodes=size.nodes, hours=size.hours)
    inventory = read_inventory(json.dumps(log.inventory), kind)
    nodes, homes = facts_of_inventory(inventory), inventory.homes()
    log = fit(log, nodes)
    policies = {
        name: replace(with_settings(base_policy(name), read_settings(name, settings)), home=name in homes)
        for name, settings in log.vclusters.items()
    }
    timing = Timing(clock)
    begin = clock()
    done = replay(log, Setting(nodes, policies), lambda submitted: progress(submitted / len(log.jobs)), timing)
    spent = clock() - begin
    if not done.ran or done.stuck:
        first = done.stuck[0] if done.stuck else None
        raise Rejected(f"{kind}: {len(done.stuck)} jobs never started: {first and first[2]}", reason="BadTrace")
    measures = measure(kind, done, log.tenants)
    return Outcome(kind, len(done.ran), spent, measures, list(JUDGES[kind](kind, done, measures, timing)))


def _steady(kind: str, done: Replayed, found: Measures, timing: Timing) -> list[SuiteVerdict]:
    """Returns the verdict whether nodes were used enough until the last submission."""
    share = found.utilisation_submitting
    return [SuiteVerdict(kind, "utilisation until the last submission > 85 %", f"{share:.1%}", share > 0.85)]


def _burst(kind: str, done: Replayed, found: Measures, timing: Timing) -> list[SuiteVerdict]:
    """Returns the verdict whether 99 of 100 jobs waited short enough."""
    return [SuiteVerdict(kind, "p99 wait < 4 h", format_duration(found.waits.p99), found.waits.p99 < 4 * 3600)]


def _unfair(kind: str, done: Replayed, found: Measures, timing: Timing) -> list[SuiteVerdict]:
    """Returns the verdict whether tenants got nearly the shares agreed."""
    return [SuiteVerdict(kind, "greatest share deviation < 10 %", f"{found.deviation:.1%}", found.deviation < 0.10)]


def _claims(kind: str, done: Replayed, found: Measures, timing: Timing) -> list[SuiteVerdict]:
    """Returns the verdict whether sensitive work never waited; not judged where there was none."""
    asked = "every sensitive wait = 0"
    if found.sensitive is None:
        return [SuiteVerdict(kind, asked, "the trace is too short to have sensitive work", None)]
    longest = found.sensitive.most
    return [SuiteVerdict(kind, asked, f"{format_duration(longest)} at most, of {found.sensitive.jobs} jobs", longest == 0)]


def _inversions(kind: str, done: Replayed, found: Measures, timing: Timing) -> list[SuiteVerdict]:
    """Returns the verdict whether high classes waited less than low ones, and one that is not judged yet."""

    def p95(low: int, high: int) -> float:
        """Returns the wait that 95 of 100 jobs of these classes did not exceed; 0 without such jobs."""
        return waits_of([each.wait for each in _of_classes(done.ran, low, high)] or [0.0]).p95

    upper, lower = p95(7, 9), p95(1, 3)
    shown = f"{format_duration(upper)} against {format_duration(lower)}"
    return [
        SuiteVerdict(kind, "p95 wait of classes 7-9 below that of classes 1-3", shown, upper < lower),
        SuiteVerdict(kind, "checkpoint success > 95 %", "preemption is decided, not executed yet", None),
    ]


def _of_classes(ran: Sequence[Ran], low: int, high: int) -> list[Ran]:
    """Returns the jobs whose preemption class is from `low` to `high`."""
    return [each for each in ran if low <= each.job.preemption_class <= high]


def _ramp(kind: str, done: Replayed, found: Measures, timing: Timing) -> list[SuiteVerdict]:
    """Returns the verdicts whether the nodes were filled soon enough, and whether every cycle was short enough."""
    took = "never" if found.ramp_up is None else format_duration(found.ramp_up)
    longest = max(timing.seconds, default=0.0)
    return [
        SuiteVerdict(kind, "95 % of the nodes held within 15 min", took, found.ramp_up is not None and found.ramp_up <= 900),
        SuiteVerdict(kind, f"longest cycle < {_LONGEST_CYCLE:g} s", f"{longest * 1000:.1f} ms", longest < _LONGEST_CYCLE),
    ]


JUDGES: Final[dict[str, Callable[[str, Replayed, Measures, Timing], list[SuiteVerdict]]]] = {
    "steady-state": _steady,
    "burst": _burst,
    "unfair": _unfair,
    "sensitive-claim": _claims,
    "preemption-heavy": _inversions,
    "empty-to-full": _ramp,
}
TRACES: Final = tuple(KINDS)
