"""Counts the writes in a stretch of the API server's audit log, by what they wrote; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
QUESTIONS = frozenset({"subjectaccessreviews", "selfsubjectaccessreviews", "localsubjectaccessreviews", "tokenreviews"})
"""Are created, and store nothing."""


class _Reference(msgspec.Struct, rename="camel", gc=False):
    resource: str = ""
    subresource: str = ""
    name: str = ""


class _Answer(msgspec.Struct, frozen=True, gc=False):
    code: int = 0


class _User(msgspec.Struct, frozen=True, gc=False):
    username: str = ""


class _AuditEntry(msgspec.Struct, rename="camel", gc=False):
    verb: str = ""
    stage: str = ""
    user: _User = _User()
    impersonated_user: _User | None = None
    object_ref: _Reference | None = None
    response_status: _Answer = _Answer()
    request_received_timestamp: datetime | None = None
    stage_timestamp: datetime | None = None


DAEMONS = ("scheduler", "operator", "webhook", "gateway")


@dataclass
class Writes:
    """Writes that took effect, by `verb resource[/subresource]`; those of Leases and Events, and refused ones, are counted apart."""

    counted: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    """Reads, Leases, Events and what was refused too, by `who verb resource[/subresource]`: who is a daemon's name, `agents`, `people`, or
    `Kubernetes`. Reads are there only as far as the audit policy has them; watches end later, or not at all."""
    leases: int = 0
    events: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By `verb resource[/subresource] code`: conflicts and the like, which cost a request and wrote nothing."""

    @property
    def total(self) -> int:
        """Returns how many writes took effect, without those of Leases and Events."""
        return self.counted.total()

    def each(self, allocations: int) -> dict[str, float]:
        """Returns the number of writes of each kind divided by so many allocations, the most frequent first."""
        return {what: count / allocations for what, count in self.counted.most_common()}


@dataclass(frozen=True, slots=True)
class Moment:
    """One write that took effect: `verb resource[/subresource]`, when it came and when it was answered, in seconds since the epoch."""

    what: str
    received: float
    answered: float


_decode = msgspec.json.Decoder(_AuditEntry).decode


def count_writes(lines: Iterable[bytes], *, leave_out: frozenset[str] = frozenset()) -> Writes:
    """Returns the writes in these lines, without the resources in `leave_out` and questions that store nothing; a cut last line is left
    out.

    All requests, those too, are counted in `requests`.
    """
    writes = Writes()
    for line in lines:
        if not line.endswith(b"\n"):
            continue  # still being written
        entry = _decode(line)
        reference = entry.object_ref
        if reference is None:
            continue
        writes.requests[f"{_who(entry)} {_what(entry, reference)}"] += 1
        if entry.verb in WRITES and reference.resource not in leave_out and reference.resource not in QUESTIONS:
            _count(writes, entry, reference)
    return writes


def usual_writes(lives: Sequence[Writes]) -> Counter[str]:
    """Returns how many writes of each kind (`verb resource[/subresource]`) a life has: of each the median of these lives, at least one.

    What is written now and then, for whatever reason, is in few of them, and counts for none.
    """
    kinds = sorted({what for life in lives for what in life.counted})
    return +Counter({what: sorted(life.counted[what] for life in lives)[(len(lives) - 1) // 2] for what in kinds})


def varying_writes(lives: Sequence[Writes]) -> list[str]:
    """Returns the kinds of writes of which lives have different numbers, each with the fewest and the most."""
    found = []
    for what in sorted({what for life in lives for what in life.counted}):
        counts = [life.counted[what] for life in lives]
        if min(counts) != max(counts):
            found.append(f"{what} {min(counts)} to {max(counts)}")
    return found


def tell_difference(without: Counter[str], with_: Counter[str]) -> str:
    """Returns in words of which kinds of writes the second has more or fewer than the first."""
    kinds = sorted(what for what in without.keys() | with_.keys() if without[what] != with_[what])
    told = ", ".join(f"{what} {with_[what]} instead of {without[what]}" for what in kinds)
    return f"of the usual life {told}" if told else "the usual life has the same writes of every kind"


def moments(lines: Iterable[bytes]) -> list[Moment]:
    """Returns the writes in these lines that took effect, in the order in which they were answered; a cut last line is left out."""
    found = []
    for line in lines:
        entry = _decode(line) if line.endswith(b"\n") else _AuditEntry()
        came, answered = entry.request_received_timestamp, entry.stage_timestamp
        if entry.verb in WRITES and entry.object_ref is not None and entry.response_status.code < 300 and came and answered:
            found.append(Moment(_what(entry, entry.object_ref), came.timestamp(), answered.timestamp()))
    return found


def _what(entry: _AuditEntry, reference: _Reference) -> str:
    """Returns verb, resource and subresource of an entry as text."""
    return f"{entry.verb} {reference.resource}" + (f"/{reference.subresource}" if reference.subresource else "")


def _count(writes: Writes, entry: _AuditEntry, reference: _Reference) -> None:
    """Counts an entry among the writes: refused, a Lease, an Event, or any other by what it wrote."""
    what = _what(entry, reference)
    if entry.response_status.code >= 300:
        writes.refused[f"{what} {entry.response_status.code}"] += 1
    elif reference.resource == "leases":
        writes.leases += 1
    elif reference.resource == "events":
        writes.events += 1
    else:
        writes.counted[what] += 1


def _who(entry: _AuditEntry) -> str:
    """Returns the writer of an entry: a daemon's name, `agents` for all of them, `Kubernetes` for its own parts, else `people`."""
    name = (entry.impersonated_user or entry.user).username
    if name.startswith("lattice:agent:") or name == "lattice:hollow":
        return "agents"
    daemon = name.removeprefix("lattice:")
    if daemon in DAEMONS:
        return daemon
    return "Kubernetes" if name.startswith("system:") else "people"
