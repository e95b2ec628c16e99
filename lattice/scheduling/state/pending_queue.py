"""What waits in one vcluster, in columns: by submission, then by namespace/name, with the kind and the person of each.

Kept from cycle to cycle: candidates that stay are not looked at again, whatever their number. `take` is the only change.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.work import Candidate

_SPARE: Final = 10_000
"""So many candidates that are gone may be kept, and three times those that are there: what-ifs ask about a few of them between cycles."""


_Entry = tuple[float, str, str, int, Candidate, int, int, float]
"""Submitted, key, uid, a number unlike every other's (so much is compared); the candidate, its kind, its person, `opens`."""


class PendingQueue:
    """The columns of one vcluster; see the module's docstring. `kinds`, `people` and `opens` stand beside `candidates`."""

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.kinds: list[int] = []
        """Candidates of one number ask for the same nodes, in the same way, for the same time."""
        self.people: list[int] = []
        """The place of (tenant, user) in `persons`."""
        self.opens: list[float] = []
        """Until when its own wishes keep it waiting, seconds since the epoch; `NEVER`: it has to be looked at."""
        self.persons: list[tuple[str, str]] = []
        self.tenants: set[str] = set()
        """Of `persons`."""
        self.numbers = 0
        """How many numbers of kinds there are, in use or not."""
        self.families: list[int] = []
        """By the number of a kind: kinds of one family ask for the same nodes in the same way, and differ in size and time."""
        self.asked: dict[Need, int] = {}
        """The nodes that are asked for at least, by need."""
        self.lists: frozenset[int] = frozenset()
        """The node lists among the needs."""
        self._given: list[Candidate] = []
        self._known: dict[str, _Entry] = {}
        self._kind_of: dict[tuple[object, ...], int] = {}
        self._family_of: dict[tuple[object, ...], int] = {}
        self._examples: list[Candidate] = []
        self._person_of: dict[tuple[str, str], int] = {}
        self._entered = 0

    def take(self, candidates: list[Candidate]) -> None:
        """Make these what waits, in whatever order they come."""
        if candidates == self._given:
            return
        self._given = candidates
        if len(self._known) > 4 * len(candidates) + _SPARE:
            self._clear()
        known = self._known
        entries = [
            entry if (entry := known.get(candidate.uid)) is not None and entry[4] is candidate else self._enter(candidate)
            for candidate in candidates
        ]
        entries.sort()
        self.candidates = [entry[4] for entry in entries]
        self.kinds = [entry[5] for entry in entries]
        self.people = [entry[6] for entry in entries]
        self.opens = [entry[7] for entry in entries]
        self._sum()

    def _sum(self) -> None:
        asked: dict[Need, int] = {}
        for kind, count in Counter(self.kinds).items():
            example = self._examples[kind]
            asked[example.need] = asked.get(example.need, 0) + count * example.minimum
        self.asked = asked
        self.lists = frozenset().union(*(need.lists for need in asked))

    def _enter(self, candidate: Candidate) -> _Entry:
        family = (
            candidate.need, candidate.topology, candidate.conformance, candidate.reservation, candidate.grace, candidate.non_preemptible,
        )  # fmt: skip
        key = (*family, candidate.minimum, candidate.maximum, candidate.walltime)
        kind = self._kind_of.get(key)
        if kind is None:
            kind = self._kind_of[key] = self.numbers
            self.families.append(self._family_of.setdefault(family, len(self._family_of)))
            self._examples.append(candidate)
            self.numbers += 1
        who = (candidate.tenant, candidate.user)
        person = self._person_of.get(who)
        if person is None:
            person = self._person_of[who] = len(self.persons)
            self.persons.append(who)
            self.tenants.add(candidate.tenant)
        self._entered += 1
        entry = (candidate.submitted, candidate.key, candidate.uid, self._entered, candidate, kind, person, opens(candidate))
        self._known[candidate.uid] = entry
        return entry

    def _clear(self) -> None:
        self._known.clear()
        self._kind_of.clear()
        self._family_of.clear()
        self.families.clear()
        self._examples.clear()
        self._person_of.clear()
        self.persons.clear()
        self.tenants.clear()
        self.numbers = 0


def opens(candidate: Candidate) -> float:
    """Until when its own wishes alone keep it waiting; `NEVER` where they have to be looked at in every cycle."""
    if (
        candidate.held or candidate.blocked is not None or candidate.reservation
        or not candidate.vcluster_known or not candidate.vcluster_open
    ):  # fmt: skip
        return NEVER
    return max(candidate.not_before, candidate.back_off_until)
