"""Was anybody passed over? A replay of the ledger's own history against the rule of the queue; pure.

The rule: among waiting jobs of one class the earlier one goes first, and a later one is placed before it only when
the earlier does not fit. It does not fit either where enough nodes are free, and it would still hold them when one of the
first `depth` of those before it is to have them (backfill): that is planned again here, from nodes, walltimes and the
allowance for starting alone. Promises once given bind everybody, those before their holders too: what the scheduler had
promised when it decided is not known from the ledger, so `recorded` looks at the cycles of the jobs that are found here.
What is judged is each commit of the ledger, in its order: the jobs that it claims nodes for, and what was free when that
was decided.

The tolerance, so that no race is called a fault: free nodes are those after the commit before, less what that one
gave back (the cycle may have decided before it), a job counts as waiting only from `grace_seconds` after it was seen,
as later only if it was seen more than `together_seconds` after (of work that is submitted at once the scheduler may hear
in another order, and a promise once given binds who is heard of after it),
and it must have fitted by each of three beliefs about running work: it ends as it was claimed, `SLACK_SECONDS` later, or
`START_ALLOWANCE` later where its start was not yet seen or has been for less than `NEWS_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lattice.errors import Corrupt
from lattice.scheduling.state.cluster_state import START_ALLOWANCE

SLACK_SECONDS = 2.0
"""Time between a claim and the start from which the scheduler counts the walltime, as a rule at most."""
NEWS_SECONDS = 1.0
"""How far the scheduler may be behind in what it knows of starts."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A job in the queue: size, class, order within the class, when it was first seen, and when its start was seen (None: not yet).

    `takes`: for how many seconds it may hold its nodes (walltime and grace).
    """

    name: str
    nodes: int
    job_class: int
    order: tuple[float, str]
    seen: float
    takes: float = 0.0
    started: float | None = None

    @property
    def occupies(self) -> float:
        """Returns for how many seconds the scheduler plans nodes for the job: its walltime and grace, and the allowance for starting."""
        return START_ALLOWANCE + self.takes


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit: when it was seen, the jobs whose rows it added and those whose rows it removed."""

    seq: int
    at: float
    claimed: tuple[str, ...] = ()
    released: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A job that waited and fitted while a later one of its class was placed."""

    job: str
    by: str
    seq: int
    nodes: int
    free: int

    def __str__(self) -> str:
        """Returns the finding as a sentence with its numbers."""
        return f"{self.job} needs {self.nodes} nodes, {self.free} were free for it, and {self.by} was placed first in seq {self.seq}"


@dataclass
class _Machine:
    """The nodes held while the ledger's history is replayed."""

    capacity: int
    held: dict[str, int] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    given_back: int = 0
    claimed: set[str] = field(default_factory=set)

    def free(self) -> int:
        """Returns how many nodes the next decision certainly knew to be free: those not held, without what the last commit gave back."""
        return self.capacity - sum(self.held.values()) - self.given_back

    def apply(self, commit: Commit, jobs: Mapping[str, Queued]) -> None:
        """Applies a commit; raises Corrupt for a job claimed twice, a row that nobody holds, or more nodes held than there are."""
        for name in commit.claimed:
            if name in self.claimed:
                raise Corrupt(f"{name} was claimed a second time in seq {commit.seq}", reason="ClaimedTwice")
            self.claimed.add(name)
            self.held[name] = jobs[name].nodes
            self.since[name] = commit.at
        self.given_back = 0
        for name in commit.released:
            if name not in self.held:
                raise Corrupt(f"{name} was released in seq {commit.seq} and held nothing", reason="ReleasedTwice")
            self.given_back += self.held.pop(name)
        if sum(self.held.values()) > self.capacity:
            raise Corrupt(f"{sum(self.held.values())} nodes are held in seq {commit.seq}, of {self.capacity}", reason="TooManyHeld")


@dataclass
class Outlook:
    """Free nodes from now on, as changes at times."""

    now: float
    changes: list[tuple[float, int]]

    def free(self, begin: float, seconds: float) -> int:
        """Returns the fewest nodes that are free at any time of a span of `seconds` from `begin`; changes at its very end do not count."""
        changes = sorted(self.changes)
        level = sum(count for at, count in changes if at <= begin)
        least = level
        for at, count in changes:
            if begin < at < begin + seconds:
                level += count
                least = min(least, level)
        return least

    def promise(self, job: Queued) -> None:
        """Takes a job's nodes from the outlook, from the earliest time at which they are free; changes nothing where they never are."""
        times = sorted({self.now, *(at for at, _ in self.changes if at > self.now)})
        begin = next((time for time in times if self.free(time, job.occupies) >= job.nodes), None)
        if begin is not None:
            self.changes += [(begin, -job.nodes), (begin + job.occupies, job.nodes)]


def passed_over(
    jobs: Iterable[Queued], history: Sequence[Commit], *, capacity: int, grace_seconds: float, depth: int = 0, together_seconds: float = 0.0
) -> list[PassedOver]:
    """Returns every breach of the rule in a history of commits: a job that waited and fitted, by each belief on ends, while a later one of
    its class was placed.

    The first `depth` blocked jobs hold a promise; a job counts as waiting `grace_seconds` after it was seen, and no job as later than
    another that was seen at most `together_seconds` before it. Raises Corrupt for a history
    that is none: a seq missing, a job claimed or released twice, too much held.
    """
    by_name = {job.name: job for job in jobs}
    machine, found = _Machine(capacity), []
    for before, commit in zip([None, *history[:-1]], history, strict=True):
        if before is not None and commit.seq != before.seq + 1:
            raise Corrupt(f"seq {before.seq} is followed by {commit.seq}: the history has a hole", reason="HistoryHole")
        if commit.claimed:
            found += _judge(by_name, machine, commit, grace_seconds, depth, together_seconds)
        machine.apply(commit, by_name)
    return found


def _judge(
    jobs: Mapping[str, Queued], machine: _Machine, commit: Commit, grace_seconds: float, depth: int, together_seconds: float
) -> list[PassedOver]:
    """Returns the jobs that a commit passed over: they would have fitted before a later one of their class that it placed, by every belief
    about ends.
    """
    placed = sorted((jobs[name] for name in commit.claimed), key=_place)
    waiting = [job for job in jobs.values() if job.name not in machine.claimed and job.name not in commit.claimed]
    found = []
    for job in waiting:
        behind = [other for other in placed if other.job_class == job.job_class and other.order > job.order]
        later = [other for other in behind if not together_seconds or other.seen > job.seen + together_seconds]
        first = [other for other in placed if other not in later]
        free = machine.free() - sum(other.nodes for other in first)
        if not later or job.nodes > free or job.seen + grace_seconds > commit.at:
            continue
        before = sorted((other for other in waiting if _place(other) < _place(job) and other.seen <= commit.at), key=_place)
        if all(_fits(job, before[:depth], first, machine, commit.at, ends) for ends in _beliefs(jobs, machine, commit.at)):
            found.append(PassedOver(job.name, later[0].name, commit.seq, job.nodes, free))
    return found


def _beliefs(jobs: Mapping[str, Queued], machine: _Machine, now: float) -> list[dict[str, float]]:
    """Returns the times at which running jobs end, by name, in each of the beliefs that the scheduler may have."""
    claimed = {name: machine.since[name] + jobs[name].takes for name in machine.held}
    fresh = {name for name in machine.held if (started := jobs[name].started) is None or started + NEWS_SECONDS > now}
    return [
        claimed,
        {name: end + SLACK_SECONDS for name, end in claimed.items()},
        {name: end + (START_ALLOWANCE if name in fresh else 0.0) for name, end in claimed.items()},
    ]


def _fits(
    job: Queued, before: Sequence[Queued], placed: Sequence[Queued], machine: _Machine, now: float, ends: Mapping[str, float]
) -> bool:
    """Tells whether a job fits from now on beside those placed before it, and leaves the jobs `before` it what they were promised.

    `ends`: when each running job ends, in seconds.
    """
    changes = [(now, machine.free()), *((max(now, ends[name]), nodes) for name, nodes in machine.held.items())]
    changes += [change for other in placed for change in ((now, -other.nodes), (now + other.occupies, other.nodes))]
    outlook = Outlook(now, changes)
    for other in before:
        outlook.promise(other)
    return outlook.free(now, job.occupies) >= job.nodes


def _place(job: Queued) -> tuple[int, tuple[float, str]]:
    """Returns the sort key of a job in the queue: the higher class first, then the order within the class."""
    return -job.job_class, job.order
