"""The pending queue of one vcluster in columns, ordered by submission, then by namespace/name: candidate, request shape, person.

The columns are kept from cycle to cycle, so candidates that stay cost nothing. `replace` is the only change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.cluster.node_choice import NodeChoices
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.strategies import Strategy
from lattice.scheduling.model.work import Candidate

_SPARE: Final = 10_000
"""Entries of candidates that are gone are evicted when all entries exceed 4 × pending + this; what-ifs add a few between cycles."""

_NO_LISTS: Final[frozenset[int]] = frozenset()

_Entry = tuple[float, str, str, int, Candidate, int, int, float]
"""Submitted, key, uid, a unique number (entries compare up to here); the candidate, its shape's and its person's number, `opens`."""


class RequestNumbers:
    """The numbers of request shapes and of persons, in the order in which a pending queue first saw them."""

    def __init__(self) -> None:
        self.persons: list[tuple[str, str]] = []
        """(tenant, user), by the person's number."""
        self.families: list[int] = []
        """By the number of a shape: the number of its family; shapes of a family differ only in size and time."""
        self._shape_of: dict[tuple[object, ...], int] = {}
        self._family_of: dict[tuple[object, ...], int] = {}
        self._examples: list[Candidate] = []
        """By the number of a shape: the candidate that was first seen with it."""
        self._person_of: dict[tuple[str, str], int] = {}
        self._naming: set[int] = set()
        """The shapes whose needs name node lists."""

    def shape_number(self, candidate: Candidate) -> int:
        """Returns the number of a candidate's request shape, a new one at its first call: candidates of one number have equal need, sizes,
        walltime, grace, topology, conformance and Reservation, and are non-preemptible alike.
        """
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
        return shape

    def person_number(self, candidate: Candidate) -> int:
        """Returns the number of a candidate's tenant and user together; a new one at the first call."""
        who = (candidate.tenant, candidate.user)
        person = self._person_of.get(who)
        if person is None:
            person = self._person_of[who] = len(self.persons)
            self.persons.append(who)
        return person

    def nodes_asked(self, shapes: Iterable[int]) -> dict[Need, int]:
        """Returns, by need, how many nodes candidates of these shapes, one for each, ask for together; each asks for its minimum."""
        asked: dict[Need, int] = {}
        for shape, count in Counter(shapes).items():
            example = self._examples[shape]
            asked[example.need] = asked.get(example.need, 0) + count * example.minimum
        return asked

    def lists_named(self, shapes: Iterable[int]) -> frozenset[int]:
        """Returns the node lists (bit sets of indices) that the needs of these shapes name."""
        naming = self._naming.intersection(shapes) if self._naming else ()
        return _NO_LISTS.union(*(self._examples[shape].need.lists for shape in naming))

    def drop_numbers(self) -> None:
        """Drops all numbers; the lists `families` and `persons` stay the same objects, empty."""
        self.families.clear()
        self.persons.clear()
        self._shape_of.clear()
        self._family_of.clear()
        self._examples.clear()
        self._person_of.clear()
        self._naming.clear()


class OrderByTotal:
    """The order of a queue by the totals of its scores, kept while no total changes."""

    __slots__ = ("_order", "_totals")

    def __init__(self) -> None:
        self._totals: Sequence[float] = ()
        self._order: Sequence[int] = ()

    def order(self, totals: Sequence[float], strategy: Strategy) -> Sequence[int]:
        """Returns the places of the totals in the order of evaluation, as the strategy wants it."""
        if strategy.first_come:
            return strategy.order(totals)
        if totals != self._totals:
            self._totals, self._order = totals, strategy.order(totals)
        return self._order


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
        self._numbers = RequestNumbers()
        self.by_total = OrderByTotal()
        self.choices = NodeChoices()
        self._given: list[Candidate] = []
        self._known: dict[str, _Entry] = {}
        self._entered = 0
        self._asked: dict[Need, int] | None = {}
        """None: to be summed up when it is asked for."""

    @property
    def persons(self) -> list[tuple[str, str]]:
        """Returns (tenant, user) by the person's number; the same list at each call, which numbers of new candidates extend."""
        return self._numbers.persons

    @property
    def families(self) -> list[int]:
        """Returns the numbers of families by the number of a shape; shapes of a family differ only in size and time."""
        return self._numbers.families

    @property
    def asked(self) -> Mapping[Need, int]:
        """Returns, by need, how many nodes its candidates ask for together, each its minimum."""
        if self._asked is None:
            self._asked = self._numbers.nodes_asked(self.shapes)
        return self._asked

    @property
    def lists(self) -> frozenset[int]:
        """Returns the node lists (bit sets of indices) that the needs of its candidates name."""
        return self._numbers.lists_named(self.shapes)

    def replace(self, candidates: list[Candidate]) -> None:
        """Replaces the candidates, and sorts them and the columns by submission, then name; the given order does not matter. A list equal
        to the last one changes nothing.

        Entries of the same candidate objects are reused; where too many are of candidates that are gone, all shapes and persons get new
        numbers.
        """
        if candidates == self._given:
            return
        self._given = candidates
        if len(self._known) > 4 * len(candidates) + _SPARE:
            self._known.clear()
            self._numbers.drop_numbers()
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
        """Returns a new entry for a candidate, and keeps it under the candidate's uid, in place of an earlier one."""
        self._entered += 1
        shape, person = self._numbers.shape_number(candidate), self._numbers.person_number(candidate)
        entry = (candidate.submitted, candidate.key, candidate.uid, self._entered, candidate, shape, person, opens(candidate))
        self._known[candidate.uid] = entry
        return entry


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
