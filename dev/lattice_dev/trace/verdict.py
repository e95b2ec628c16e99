"""Judges a trace: every job ended, none twice, nobody was passed over; pure. Each finding is a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lattice.errors import Corrupt
from lattice_dev.trace.order import Commit, PassedOver, Queued, passed_over


@dataclass(frozen=True, slots=True)
class Ended:
    """One allocation at its end: times in seconds of one clock, None for what was never seen."""

    name: str
    nodes: int
    seen: float
    started: float | None
    ended: float | None
    phase: str
    reason: str
    attempt: int
    reasons: tuple[str, ...] = ()

    @property
    def waited(self) -> float | None:
        """Returns the seconds from when the allocation was first seen until its start; None: no start was seen."""
        return None if self.started is None else self.started - self.seen


def faults(wanted: Iterable[str], ends: Mapping[str, Ended], phases: frozenset[str]) -> Iterator[str]:
    """Yields a sentence for each wanted allocation that is missing, has not ended, ended in no phase of `phases` or in a second attempt."""
    for name in wanted:
        end = ends.get(name)
        if end is None:
            yield f"{name} is not there"
        elif end.ended is None:
            yield f"{name} has not ended: {end.phase or 'never evaluated'}"
        elif end.phase not in phases:
            yield f"{name} ended {end.phase} ({end.reason}), not {' or '.join(sorted(phases))}"
        elif end.attempt != 1:
            yield f"{name} ended in attempt {end.attempt}: it was started more than once"


def order_faults(
    queue: Iterable[Queued], history: Sequence[Commit], *, capacity: int, grace_seconds: float, depth: int = 0,
    together_seconds: float = 0.0, bound: Callable[[PassedOver], bool] = lambda _: False,
    evidence: Callable[[PassedOver], Iterable[str]] = lambda _: (),
) -> list[str]:  # fmt: skip
    """Returns a sentence for each job that was passed over, or a single one where the ledger's history is inconsistent.

    `bound` tells of a job that it did not fit beside promises given before, which is no fault; `evidence` gives the lines that follow a
    sentence. The other arguments are those of `passed_over`.
    """
    try:
        found = passed_over(
            queue, history, capacity=capacity, grace_seconds=grace_seconds, depth=depth, together_seconds=together_seconds
        )  # fmt: skip
        return ["\n".join((str(one), *evidence(one))) for one in found if not bound(one)]
    except Corrupt as error:
        return [error.message]


def witness_faults(lines: Iterable[str], wanted: Mapping[str, int]) -> Iterator[str]:
    """Yields a sentence for each rank that did not write its line `NAME ATTEMPT RANK` exactly once, and for each line of nobody.

    `wanted`: the number of ranks of each allocation; only attempt 1 counts.
    """
    counts = Counter(tuple(line.split()) for line in lines)
    for name, nodes in wanted.items():
        for rank in range(nodes):
            times = counts.pop((name, "1", str(rank)), 0)
            if times != 1:
                yield f"rank {rank} of {name} ran {times} times"
    for line in counts:
        yield f"work ran that nobody asked for: {' '.join(line)}"


def table(ends: Iterable[Ended]) -> list[str]:
    """Returns a heading and a line for each allocation: nodes, wait and run in seconds, end, the reasons that it showed while it waited."""
    lines = [f"{'JOB':<10} {'NODES':>5} {'WAIT s':>8} {'RUN s':>8}  {'END':<10} REASONS SHOWN"]
    for end in ends:
        wait = "-" if end.waited is None else f"{end.waited:.2f}"
        run = "-" if end.started is None or end.ended is None else f"{end.ended - end.started:.2f}"
        reasons = ", ".join(end.reasons) or "none: placed at once"
        lines.append(f"{end.name:<10} {end.nodes:>5} {wait:>8} {run:>8}  {end.phase:<10} {reasons}")
    return lines
