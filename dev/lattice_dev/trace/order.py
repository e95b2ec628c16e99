"""Was anybody passed over? A replay of the ledger's own history against the rule of the queue; pure.

The rule: among waiting jobs of one class the earlier one goes first, and a later one is placed before it only when
the earlier does not fit. What is judged is each commit of the ledger, in its order: the jobs that it claims nodes for,
and what was free when that was decided.

The tolerance, so that no race is called a fault: free nodes are those after the commit before, less what that one
gave back (the cycle may have decided before it), and a job counts as waiting only from `grace_seconds` after it was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lattice.errors import Corrupt


@dataclass(frozen=True, slots=True)
class Queued:
    """A job in the queue: its size, its class, what it is ordered by within the class, and when it was first seen."""

    name: str
    nodes: int
    job_class: int
    order: tuple[float, str]
    seen: float


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
        """The finding as a sentence with its numbers."""
        return f"{self.job} needs {self.nodes} nodes, {self.free} were free for it, and {self.by} was placed first in seq {self.seq}"


@dataclass
class _Machine:
    """What is held while the history is replayed."""

    capacity: int
    held: dict[str, int] = field(default_factory=dict)
    given_back: int = 0
    claimed: set[str] = field(default_factory=set)

    def free(self) -> int:
        """Nodes that the next decision surely knew to be free."""
        return self.capacity - sum(self.held.values()) - self.given_back

    def apply(self, commit: Commit, jobs: Mapping[str, Queued]) -> None:
        """Take and give; raises Corrupt for a job that is claimed twice or a row that nobody holds."""
        for name in commit.claimed:
            if name in self.claimed:
                raise Corrupt(f"{name} was claimed a second time in seq {commit.seq}", reason="ClaimedTwice")
            self.claimed.add(name)
            self.held[name] = jobs[name].nodes
        self.given_back = 0
        for name in commit.released:
            if name not in self.held:
                raise Corrupt(f"{name} was released in seq {commit.seq} and held nothing", reason="ReleasedTwice")
            self.given_back += self.held.pop(name)
        if sum(self.held.values()) > self.capacity:
            raise Corrupt(f"{sum(self.held.values())} nodes are held in seq {commit.seq}, of {self.capacity}", reason="TooManyHeld")


def passed_over(jobs: Iterable[Queued], history: Sequence[Commit], *, capacity: int, grace_seconds: float) -> list[PassedOver]:
    """Every breach of the rule. Raises Corrupt for a history that is none: a seq missing, a job claimed twice, too much held."""
    by_name = {job.name: job for job in jobs}
    machine, found = _Machine(capacity), []
    for before, commit in zip([None, *history[:-1]], history, strict=True):
        if before is not None and commit.seq != before.seq + 1:
            raise Corrupt(f"seq {before.seq} is followed by {commit.seq}: the history has a hole", reason="HistoryHole")
        if commit.claimed:
            found += _judge(by_name, machine, commit, grace_seconds)
        machine.apply(commit, by_name)
    return found


def _judge(jobs: Mapping[str, Queued], machine: _Machine, commit: Commit, grace_seconds: float) -> list[PassedOver]:
    placed = sorted((jobs[name] for name in commit.claimed), key=lambda job: (job.job_class, job.order))
    found = []
    for waiting in jobs.values():
        if waiting.name in machine.claimed or waiting.name in commit.claimed or waiting.seen + grace_seconds > commit.at:
            continue
        later = [job for job in placed if job.job_class == waiting.job_class and job.order > waiting.order]
        taken_before = sum(job.nodes for job in placed if job not in later)
        free = machine.free() - taken_before
        if later and waiting.nodes <= free:
            found.append(PassedOver(waiting.name, later[0].name, commit.seq, waiting.nodes, free))
    return found
