"""Finds allocations: by name, number, uid prefix, NAMESPACE/NAME, or a job name that only one has; lists and ranges too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lattice.cli.selection import bare_name, range_of, split_references
from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.scheduling.queries.status_rows import is_final
from lattice.units import is_digits
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

_UID_CHARACTERS = frozenset("0123456789abcdef-")
MIN_UID_PREFIX = 4
"""Shortest text that is taken for the beginning of a uid."""
MOST_NUMBERED = 16
"""So many numbers of a range are read one by one; of more, all allocations are listed."""
_MOST_DIGITS = 12


class Finder:
    """Finds the allocations that a person's references name; lists a namespace at most once, and
    only when a name alone does not suffice.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._listed: dict[str, list[Allocation]] = {}

    def find(self, reference: str) -> Allocation:
        """Returns the allocation that a reference names: by the name of the object first, then by number, uid prefix or job name.

        Raises NotFound when there is none, Rejected when the text is no reference, or naming the candidates when several match.
        """
        reference = bare_name(reference, "Allocation")
        namespace, slash, name = reference.partition("/")
        if not slash:
            namespace, name = self._console.namespace, reference
        if not name or not namespace or "/" in name:
            raise Rejected(f"{reference!r} names no allocation: give a name, a number, a uid prefix or NAMESPACE/NAME", reason="BadInput")
        if not is_digits(name):
            try:
                return self._console.cluster.get(ALLOCATIONS, name, namespace, type=Allocation)
            except NotFound:
                pass  # no such name: it may be the prefix of a uid
        return choose(reference, name, self._numbered(namespace, name) or self._all(namespace), namespace)

    def find_all(self, references: Sequence[str]) -> tuple[list[Allocation], list[LatticeError]]:
        """Returns the allocations that references (lists and ranges too) name, each once, and the NotFound and Rejected of those that name
        none; other errors are raised.
        """
        found: dict[str, Allocation] = {}
        errors: list[LatticeError] = []
        for reference in split_references(references):
            try:
                for one in self._find_range(reference):
                    found.setdefault(one.metadata.uid, one)
            except (NotFound, Rejected) as error:
                errors.append(error)
        return list(found.values()), errors

    def _find_range(self, reference: str) -> list[Allocation]:
        """Returns the allocations of a range of numbers, ascending, those that are missing left out; where the text is no range, or the
        name of an object, the one that it names.

        Raises NotFound where there is none.
        """
        namespace, slash, rest = reference.partition("/")
        namespace, name = (namespace, rest) if slash else (self._console.namespace, reference)
        numbers = range_of(name)
        if numbers is None:
            return [self.find(reference)]
        known = self._numbered(namespace, name) or self._all(namespace)
        within = [one for one in known if numbers[0] <= (one.status.number or 0) <= numbers[1] or one.metadata.name == name]
        named = [one for one in within if one.metadata.name == name]
        if not within:
            raise NotFound(f'no allocation has a number of {name} in namespace "{namespace}"', reason="AllocationNotFound")
        return named or sorted(within, key=lambda one: one.status.number or 0)

    def _numbered(self, namespace: str, text: str) -> list[Allocation] | None:
        """Returns the allocations of `12` or `12-17`, which the gateway names and the API server shows; None: they are to be listed.

        All the numbers must be there, as one that is not may have been given a moment ago.
        """
        single = is_digits(text, _MOST_DIGITS)
        numbers = (int(text), int(text)) if single else range_of(text)
        if numbers is None or numbers[1] - numbers[0] >= MOST_NUMBERED or namespace in self._listed:
            return None
        from lattice.cli.from_memory import ask_memory
        from lattice.cli.listed_rows import read_rows

        answer = ask_memory(self._console, "/v1/status", {"version": ALLOCATIONS.plural}, {"namespace": namespace, "numbers": text})
        found = None if answer is None else read_rows(answer)
        rows = [row for row in found.rows if row.name == text or numbers[0] <= row.number <= numbers[1]] if found is not None else []
        if not set(range(numbers[0], numbers[1] + 1)) <= {row.number for row in rows}:
            return None
        try:
            return [self._console.cluster.get(ALLOCATIONS, row.name, namespace, type=Allocation) for row in rows]
        except (NotFound, Denied):
            return None  # it has gone meanwhile, or may be listed and not read

    def _all(self, namespace: str) -> list[Allocation]:
        """Returns all allocations of a namespace, listed at the first call only."""
        if namespace not in self._listed:
            self._listed[namespace] = self._console.cluster.list(ALLOCATIONS, namespace, type=Allocation).items
        return self._listed[namespace]


def could_be_uid(text: str) -> bool:
    """Tells whether the text can be the beginning of a uid."""
    return len(text) >= MIN_UID_PREFIX and _UID_CHARACTERS.issuperset(text.lower())


def choose(reference: str, name: str, allocations: Sequence[Allocation], namespace: str) -> Allocation:
    """Returns the allocation that a name, number or uid prefix (of 4 characters) matches, else the only one of that job name, or the only
    one of it that has not ended; an exact name or number wins.

    Raises as `Finder.find` does.
    """
    exact = [one for one in allocations if one.metadata.name == name or (is_digits(name) and one.status.number == int(name))]
    found = exact or [one for one in allocations if could_be_uid(name) and one.metadata.uid.startswith(name.lower())]
    found = found or _find_by_job(name, allocations)
    if not found:
        raise _not_found(reference, namespace, _suggest(name, allocations))
    if len(found) > 1:
        shown = ", ".join(f"{one.metadata.name} ({one.status.number or 'no number yet'}, uid {one.metadata.uid})" for one in found[:10])
        more = f" and {len(found) - 10} more" if len(found) > 10 else ""
        raise Rejected(f"{reference!r} is ambiguous: it may be {shown}{more}", reason="Ambiguous")
    return found[0]


def _find_by_job(name: str, allocations: Sequence[Allocation]) -> list[Allocation]:
    """Returns, alone in a list, the only allocation with this job name, else the only one of several that has not ended; empty
    otherwise.
    """
    jobs = [one for one in allocations if one.spec.tags.get("name") == name]
    going = [one for one in jobs if not is_final(one)]
    return jobs if len(jobs) == 1 else going if len(going) == 1 else []


def _suggest(name: str, allocations: Sequence[Allocation]) -> str:
    """Returns a suggestion for a reference without a match: allocations of that job name, newest first, else a similar name; or nothing."""
    jobs = [one for one in allocations if one.spec.tags.get("name") == name]
    if jobs:
        newest = sorted(jobs, key=lambda one: -(one.status.number or 0))
        shown = ", ".join(str(one.status.number or one.metadata.name) for one in newest[:5]) + (", …" if len(jobs) > 5 else "")
        return f"that is the job name of {shown}"
    from difflib import get_close_matches

    near = get_close_matches(name, [one.metadata.name for one in allocations], n=1, cutoff=0.75) if not is_digits(name) else []
    return f"did you mean {near[0]}?" if near else ""


def _not_found(reference: str, namespace: str, meant: str) -> NotFound:
    """Returns the error that a reference names no allocation of a namespace; `meant`: the hint to give, else a general one."""
    hint = meant or "`lattice status --all` lists them; elsewhere it is NAMESPACE/NAME"
    return NotFound(f'no allocation "{reference}" in namespace {namespace}. Hint: {hint}', reason="AllocationNotFound")
