"""The pending queue of one vcluster in columns, ordered by submission, then by namespace/name: candidate, request shape, person.

The columns are kept from cycle to cycle, so candidates that stay cost nothing. `replace` is the only change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.work import Candidate

_SPARE: Final = 10_000
"""Entries of candidates that are gone are evicted when they exceed 3 × pending + this; what-ifs add a few between cycles."""

_NO_LISTS: Final[frozenset[int]] = frozenset()

_Entry = tuple[float, str, str, int, Candidate, int, int, float]
"""Submitted, key, uid, a unique number (entries compare up to here); the candidate, its shape's and its person's number, `opens`."""


class PendingQueue:
    """The candidates of one vcluster in order of submission, with columns beside them: `shapes`, `people` and `opens`.

    A cycle replaces the candidates at its beginning and reads the columns instead of each candidate.
    """

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.shapes: list[int] = []
        """The number of each candidate's request shape: candidates of one number ask for the same nodes, in the same way, for the
        same time.
        """
        self.people: list[int] = []
        """The number of each candidate's person: the place of (tenant, user) in `persons`."""
        self.opens: list[float] = []
        """Until when each candidate's own wishes keep it waiting, seconds since the epoch; `NEVER`: the gates must check them."""
        self.persons: list[tuple[str, str]] = []
        self.families: list[int] = []
        """By the number of a shape: the number of its family; shapes of a family differ only in size and time."""
        self._given: list[Candidate] = []
        self._known: dict[str, _Entry] = {}
        self._shape_of: dict[tuple[object, ...], int] = {}
        self._family_of: dict[tuple[object, ...], int] = {}
        self._examples: list[Candidate] = []
        self._person_of: dict[tuple[str, str], int] = {}
        self._entered = 0
        self._asked: dict[Need, int] | None = {}
        """None: to be summed up when it is asked for."""
        self._naming: set[int] = set()
        """The shapes whose needs name node lists."""

    @property
    def asked(self) -> Mapping[Need, int]:
        """Returns, by need, how many nodes its candidates ask for together, each its minimum."""
        if self._asked is None:
            self._asked = {}
            for shape, count in Counter(self.shapes).items():
                example = self._examples[shape]
                self._asked[example.need] = self._asked.get(example.need, 0) + count * example.minimum
        return self._asked

    @property
    def lists(self) -> frozenset[int]:
        """Returns the node lists (bit sets of indices) that the needs of its candidates name."""
        naming = self._naming.intersection(self.shapes) if self._naming else ()
        return _NO_LISTS.union(*(self._examples[shape].need.lists for shape in naming))

    def replace(self, candidates: list[Candidate]) -> None:
        """Replaces the candidates, and sorts them and the columns by submission, then name; the given order does not matter.

        Candidates that stay cost nothing: their entries are reused.
        """
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
        self.shapes = [entry[5] for entry in entries]
        self.people = [entry[6] for entry in entries]
        self.opens = [entry[7] for entry in entries]
        self._asked = None

    def _enter(self, candidate: Candidate) -> _Entry:
        family = (
            candidate.need, candidate.topology, candidate.conformance, candidate.reservation, candidate.grace, candidate.non_preemptible,
        )  # fmt: skip
        key = (*family, candidate.minimum, candidate.maximum, candidate.walltime)
        shape = self._shape_of.get(key)
        if shape is None:
            shape = self._shape_of[key] = len(self._examples)
            self.families.append(self._family_of.setdefault(family, len(self._family_of)))
            self._examples.append(candidate)
            if candidate.need.lists:
                self._naming.add(shape)
        who = (candidate.tenant, candidate.user)
        person = self._person_of.get(who)
        if person is None:
            person = self._person_of[who] = len(self.persons)
            self.persons.append(who)
        self._entered += 1
        entry = (candidate.submitted, candidate.key, candidate.uid, self._entered, candidate, shape, person, opens(candidate))
        self._known[candidate.uid] = entry
        return entry

    def _clear(self) -> None:
        self._known.clear()
        self._shape_of.clear()
        self._family_of.clear()
        self.families.clear()
        self._examples.clear()
        self._naming.clear()
        self._person_of.clear()
        self.persons.clear()


def opens(candidate: Candidate) -> float:
    """Returns when not-before and back-off no longer keep a candidate waiting, seconds since the epoch.

    `NEVER` where the gates must look in each cycle: it is held or blocked, names a Reservation, or its vcluster is closed or gone.
    """
    if (
        candidate.held or candidate.blocked is not None or candidate.reservation
        or not candidate.vcluster_known or not candidate.vcluster_open
    ):  # fmt: skip
        return NEVER
    return max(candidate.not_before, candidate.back_off_until)
