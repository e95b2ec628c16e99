"""Reads the groups of the quota trees from the objects that declare them: each version once, laid out again only after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from lattice.admission.facts import QuotaFacts
from lattice.errors import Rejected
from lattice.kube.informer import Change
from lattice.quota.amounts import amounts_of
from lattice.quota.declared import (
    Declared,
    bindings_of,
    declared_of,
    declared_of_koordinator,
    declared_of_profile,
    is_root_of,
    published_of,
)
from lattice.quota.gathering import gather
from lattice.quota.groups import Resources
from lattice.quota.publication import PUBLISHED
from lattice.views import ElasticQuota, KoordinatorProfile, KoordinatorQuota, Metadata


@dataclass(frozen=True)
class Objects:
    """All objects that declare groups, as read at one time."""

    ours: Sequence[ElasticQuota]
    theirs: Sequence[KoordinatorQuota]
    profiles: Sequence[KoordinatorProfile]


class GroupReader:
    """Parses objects that declare groups; an unchanged one is not parsed again, and one that does not parse is left out."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[str, Declared | None]] = {}

    def declared(self, objects: Objects) -> QuotaFacts:
        """Returns all groups that these objects declare, not yet laid out as trees (`laid_out`), and the amounts published of them.

        An object that does not parse is left out; a profile declares its root only while no quota of Koordinator's does.
        """
        profiles = objects.profiles
        stamp = ",".join(f"{each.metadata.uid}:{each.metadata.resource_version}" for each in profiles)
        found = [self._one(each.metadata, str(each.metadata.generation), partial(declared_of, each)) for each in objects.ours]
        for each in objects.theirs:
            version = f"{each.metadata.resource_version} {stamp}"
            found.append(self._one(each.metadata, version, partial(declared_of_koordinator, each, profiles)))
        found += [
            self._one(each.metadata, each.metadata.resource_version, partial(declared_of_profile, each))
            for each in profiles
            if each.spec.quota_name and not any(is_root_of(each, quota) for quota in objects.theirs)
        ]
        declared = tuple(each for each in found if each is not None)
        ours, theirs = {each.metadata.name: each for each in objects.ours}, {each.metadata.name: each for each in objects.theirs}
        numbers = (Published(ours, theirs, "used"), Published(ours, theirs, "childRequest"))
        return QuotaFacts(declared=declared, profiles=tuple(profiles), used=numbers[0], requested=numbers[1])

    def keep_only(self, standing: frozenset[str]) -> None:
        """Drops what was parsed of objects whose uid is not among `standing`."""
        self._read = {uid: entry for uid, entry in self._read.items() if uid in standing}

    def _one(self, metadata: Metadata, version: str, read: Callable[[], Declared]) -> Declared | None:
        """Returns the group that an object declares, None where it does not read; an object of the same uid and version is not read
        again.
        """
        known = self._read.get(metadata.uid)
        if known is not None and known[0] == version and metadata.uid:
            return known[1]
        try:
            declared = read()
        except Rejected:
            declared = None
        self._read[metadata.uid] = (version, declared)
        return declared


def laid_out(facts: QuotaFacts) -> QuotaFacts:
    """Returns these facts with the groups that take part in a tree, and the rules that give work its leaf, computed from `declared`.

    Facts that depend on a request (capacity, nodes, work, charge, rights) are not carried over.
    """
    groups = gather(facts.declared).groups
    return QuotaFacts(facts.declared, groups, bindings_of(groups.values()), facts.profiles, facts.used, facts.requested)


class Published(Mapping[str, Resources]):
    """Amounts that the scheduler has published in the status of groups, by name; read when asked for.

    `what` chooses the amounts: used, or requested by work and children.
    """

    def __init__(
        self, ours: Mapping[str, ElasticQuota], theirs: Mapping[str, KoordinatorQuota], what: Literal["used", "childRequest"]
    ) -> None:
        self._ours = ours
        self._theirs = theirs
        self._what = what

    def __getitem__(self, name: str) -> Resources:
        ours, theirs = self._ours.get(name), self._theirs.get(name)
        try:
            if ours is not None:
                amounts = ours.status.used if self._what == "used" else ours.status.child_request
                return amounts_of(amounts or {}, field=f"status.{self._what}")
            if theirs is not None:
                return (
                    amounts_of(theirs.status.used, field="status.used") if self._what == "used" else published_of(theirs, "child-request")
                )
        except Rejected:
            return {}  # somebody else wrote what does not read
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._ours, **self._theirs})

    def __len__(self) -> int:
        return len({**self._ours, **self._theirs})


class Declarations:
    """Counts the changes that declare something; `version` rises with each. What the scheduler publishes does not count."""

    def __init__(self) -> None:
        self.version = 0

    def on_change(self, change: Change[Any]) -> None:
        """Handles an object that appeared, changed or vanished: raises `version` where that changes what is declared."""
        if change.old is None or change.new is None or _declares(change.old) != _declares(change.new):
            self.version += 1


def _declares(view: Any) -> tuple[object, ...]:
    """Returns the parts of an object that can change which group it declares: all but what is published into it."""
    metadata = view.metadata
    return metadata.uid, view.spec, metadata.labels, {key: note for key, note in metadata.annotations.items() if key not in PUBLISHED}
