"""Which allocation is meant: by name, number, uid prefix, or NAMESPACE/NAME."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lattice.errors import LatticeError, NotFound, Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

_UID_CHARACTERS = frozenset("0123456789abcdef-")
MIN_UID_PREFIX = 4
"""A shorter prefix of a uid is not taken for one."""


class Finder:
    """Finds allocations of one namespace; lists them at most once, and only when a name alone does not tell."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._listed: dict[str, list[Allocation]] = {}

    def one(self, reference: str) -> Allocation:
        """The allocation that is meant; NotFound when there is none, Rejected with the candidates when there are several."""
        namespace, slash, name = reference.partition("/")
        if not slash:
            namespace, name = self._console.namespace, reference
        if not name or not namespace or "/" in name:
            raise Rejected(f"{reference!r} names no allocation: give a name, a number, a uid prefix or NAMESPACE/NAME", reason="BadInput")
        if not name.isdigit():
            try:
                return self._console.cluster.get(ALLOCATIONS, name, namespace, type=Allocation)
            except NotFound:
                pass  # no such name: it may be the prefix of a uid
        return choose(reference, name, self._all(namespace), namespace)

    def many(self, references: Sequence[str]) -> tuple[list[Allocation], list[LatticeError]]:
        """Those that are found, each once, and the errors of those that are not."""
        found: dict[str, Allocation] = {}
        errors: list[LatticeError] = []
        for reference in references:
            try:
                one = self.one(reference)
            except (NotFound, Rejected) as error:
                errors.append(error)
            else:
                found.setdefault(one.metadata.uid, one)
        return list(found.values()), errors

    def _all(self, namespace: str) -> list[Allocation]:
        if namespace not in self._listed:
            self._listed[namespace] = self._console.cluster.list(ALLOCATIONS, namespace, type=Allocation).items
        return self._listed[namespace]


def could_be_uid(text: str) -> bool:
    """Whether the text can be the beginning of a uid."""
    return len(text) >= MIN_UID_PREFIX and _UID_CHARACTERS.issuperset(text.lower())


def choose(reference: str, name: str, allocations: Sequence[Allocation], namespace: str) -> Allocation:
    """The one of these that the name, number or uid prefix means; an exact name comes before a uid prefix."""
    exact = [one for one in allocations if one.metadata.name == name or (name.isdigit() and one.status.number == int(name))]
    found = exact or [one for one in allocations if could_be_uid(name) and one.metadata.uid.startswith(name.lower())]
    if not found:
        raise _not_found(reference, namespace, _meant(name, allocations))
    if len(found) > 1:
        shown = ", ".join(f"{one.metadata.name} ({one.status.number or 'no number yet'}, uid {one.metadata.uid})" for one in found[:10])
        more = f" and {len(found) - 10} more" if len(found) > 10 else ""
        raise Rejected(f"{reference!r} is ambiguous: it may be {shown}{more}", reason="Ambiguous")
    return found[0]


def _meant(name: str, allocations: Sequence[Allocation]) -> str:
    """What somebody may have meant who gave this name: the allocations of that job name, the newest first, else a name that is near."""
    jobs = [one for one in allocations if one.spec.tags.get("name") == name]
    if jobs:
        newest = sorted(jobs, key=lambda one: -(one.status.number or 0))
        shown = ", ".join(str(one.status.number or one.metadata.name) for one in newest[:5]) + (", …" if len(jobs) > 5 else "")
        return f"that is the job name of {shown}"
    from difflib import get_close_matches

    near = get_close_matches(name, [one.metadata.name for one in allocations], n=1, cutoff=0.75) if not name.isdigit() else []
    return f"did you mean {near[0]}?" if near else ""


def _not_found(reference: str, namespace: str, meant: str) -> NotFound:
    hint = meant or "`lattice status --all` lists them; elsewhere it is NAMESPACE/NAME"
    return NotFound(f'no allocation "{reference}" in namespace {namespace}. Hint: {hint}', reason="AllocationNotFound")
