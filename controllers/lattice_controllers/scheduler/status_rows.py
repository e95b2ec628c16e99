"""Rows of `lattice status` from the cache of Allocations: as the API server would list them, without a request to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from lattice.errors import Rejected
from lattice.scheduling.queries.status_rows import Selection, status_detail, status_row
from lattice.views.allocation import Allocation

MOST_ROWS: Final = 50_000
"""In one answer; who selects more reads the API server."""
_SPARE: Final = 1_000
"""So many encoded rows of allocations that are gone are kept at most, and a fourth of those that are there."""


class AllocationSource(Protocol):
    """Holds every Allocation; the informer is the implementation."""

    @property
    def objects(self) -> Mapping[str, Allocation]:
        """Returns the allocations by key."""
        ...

    async def reach(self, version: str) -> str:
        """Returns the version of `objects` once it is no older than this; Retry where its age cannot be told."""
        ...


class StatusCache:
    """Answers `status` from what a source holds; each row is encoded once for each version of its allocation."""

    def __init__(self, source: AllocationSource) -> None:
        self._source = source
        self._rows: dict[str, tuple[Allocation, bytes]] = {}
        self._encode = msgspec.json.Encoder().encode

    async def held_at(self, version: str) -> tuple[str, Sequence[Allocation]]:
        """Returns what is held now, no older than a version, and its version; Retry where the cache cannot tell how old it is."""
        return await self._source.reach(version), list(self._source.objects.values())

    def answer(self, held: Sequence[Allocation], selection: Selection, *, wide: bool) -> tuple[msgspec.Raw, msgspec.Raw]:
        """Returns the rows of a selection, and their details for the wide table, as JSON; in one thread at a time."""
        if selection.namespace:
            held = [one for one in held if one.metadata.namespace == selection.namespace]
        kept = [one for one in held if selection.keeps(one)]
        if len(kept) > MOST_ROWS:
            raise Rejected(f"{len(kept)} allocations are asked for, and at most {MOST_ROWS} are answered", reason="TooManyRows")
        rows = [self._row(one) for one in kept]
        if len(self._rows) > 1.25 * len(self._source.objects) + _SPARE:
            self._forget_gone()
        details = [self._encode(status_detail(one)) for one in kept] if wide else []
        return _array(rows), _array(details)

    def _row(self, allocation: Allocation) -> bytes:
        uid = allocation.metadata.uid
        known = self._rows.get(uid)
        if known is None or known[0] is not allocation:
            known = self._rows[uid] = (allocation, self._encode(status_row(allocation)))
        return known[1]

    def _forget_gone(self) -> None:
        there = {one.metadata.uid for one in list(self._source.objects.values())}
        self._rows = {uid: row for uid, row in self._rows.items() if uid in there}


def _array(parts: Sequence[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")
