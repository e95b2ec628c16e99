"""Rows of `lattice status` from the cache of Allocations: as the API server would list them, without a request to it.

An answer is made once for all who ask the same while nothing has changed: of a cluster that stands still ten readers cost one pass over
the cache, and a gateway that has the answer already is told so instead of being sent it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple, Protocol

import msgspec

from lattice.errors import Rejected
from lattice.scheduling.queries.status_rows import Selection, is_final, since, status_detail, status_row
from lattice.units import parse_time
from lattice.views.allocation import Allocation

MOST_ROWS: Final = 50_000
"""Most rows in one answer; a client that selects more lists from the API server."""
_SPARE: Final = 1_000
"""Encoded rows of allocations that are gone are dropped once they exceed this number plus a quarter of those that exist."""
_MOST_ANSWERS: Final = 4
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Answers that are kept, and the size of all of them."""


class AllocationSource(Protocol):
    """Holds every Allocation; the informer is the implementation."""

    @property
    def objects(self) -> Mapping[str, Allocation]:
        """Returns the Allocations by namespace/name."""
        ...

    @property
    def version(self) -> str:
        """Returns the resourceVersion that `objects` shows."""
        ...

    @property
    def lists(self) -> int:
        """Returns how many complete lists were read; versions are comparable only within one count, since etcd may be restored in
        between.
        """
        ...

    async def reach(self, version: str) -> str:
        """Waits until `objects` is no older than a resourceVersion (empty: any age); returns the one that it shows then.

        Raises Retry where its age cannot be told, or the version does not come in 2 s.
        """
        ...


class StatusAnswer(NamedTuple):
    """The answer to `lattice status`: rows of the selected allocations as JSON, those of `-o wide` as well, and the cache's version."""

    tag: str
    """Another one for each answer that was made."""
    lists: int
    version: str
    dropped: float
    """The latest end that was left out as too old."""
    kept: float
    """The earliest end among the rows: every `after` from behind `dropped` up to here selects the same."""
    rows: msgspec.Raw
    details: msgspec.Raw

    @property
    def size(self) -> int:
        """Returns the size of the answer in bytes."""
        return len(bytes(self.rows)) + len(bytes(self.details))


class StatusCache:
    """Makes the answers of `lattice status` from the Allocations of a source; each row is encoded once a version of its allocation."""

    def __init__(self, source: AllocationSource) -> None:
        self._source = source
        self._rows: dict[str, tuple[Allocation, bytes, float]] = {}
        self._answers: dict[tuple[Selection, bool], StatusAnswer] = {}
        self._encode = msgspec.json.Encoder().encode
        self._mark = secrets.token_hex(6)
        self._made = 0

    async def reach(self, version: str) -> str:
        """Waits until the cache is no older than a resourceVersion (empty: any age); returns the one that it shows then.

        Raises Retry where its age cannot be told, or the version does not come in 2 s.
        """
        return await self._source.reach(version)

    def known_answer(self, selection: Selection, *, version: str, wide: bool) -> StatusAnswer | None:
        """Returns the kept answer to this selection, where it shows at least `version`, and the same rows as for the selection's `after`.

        None: there is no such answer; `answer_later` makes one.
        """
        found = self._answers.get(_key(selection, wide=wide))
        after = -inf if selection.after is None else selection.after
        if found is None or found.lists != self._source.lists or int(found.version) < int(version):
            return None
        return found if (found.dropped == -inf or found.dropped < after) and after <= found.kept else None

    def answer_later(self, selection: Selection, *, wide: bool) -> Callable[[], StatusAnswer]:
        """Returns a function that makes and keeps the answer for this moment; it may run in another thread, one at a time.

        The function raises Rejected where more than 50,000 rows are selected.
        """
        held, lists, version = list(self._source.objects.values()), self._source.lists, self._source.version
        return lambda: self._answer(held, lists, version, selection, wide=wide)

    def _answer(self, held: Sequence[Allocation], lists: int, version: str, selection: Selection, *, wide: bool) -> StatusAnswer:
        """Makes and keeps the answer to a selection from these Allocations (`held`), which stand at `version` of list number `lists`.

        Raises Rejected where more than 50,000 rows are selected.
        """
        if selection.namespace:
            held = [one for one in held if one.metadata.namespace == selection.namespace]
        key, after = _key(selection, wide=wide), -inf if selection.after is None else selection.after
        found = [(one, *self._row(one)) for one in held if key[0].keeps(one)]
        kept = [(one, row) for one, row, ended in found if ended >= after]
        if len(kept) > MOST_ROWS:
            raise Rejected(f"{len(kept)} allocations are asked for, and at most {MOST_ROWS} are answered", reason="TooManyRows")
        if len(self._rows) > 1.25 * len(self._source.objects) + _SPARE:
            self._forget_gone()
        details = [self._encode(status_detail(one)) for one, _ in kept] if wide else []
        self._made += 1
        answer = StatusAnswer(
            tag=f"{self._mark}-{self._made}", lists=lists, version=version, rows=_array([row for _, row in kept]), details=_array(details),
            dropped=max((ended for _, _, ended in found if ended < after), default=-inf),
            kept=min((ended for _, _, ended in found if ended >= after), default=inf),
        )  # fmt: skip
        self._keep(key, answer)
        return answer

    def _row(self, allocation: Allocation) -> tuple[bytes, float]:
        """Returns the encoded row, and when the allocation ended, seconds since the epoch; infinity where it has not, or shows no time."""
        uid = allocation.metadata.uid
        known = self._rows.get(uid)
        if known is None or known[0] is not allocation:
            ended = since(allocation) if is_final(allocation) else None
            known = self._rows[uid] = (allocation, self._encode(status_row(allocation)), parse_time(ended) if ended else inf)
        return known[1], known[2]

    def _keep(self, key: tuple[Selection, bool], answer: StatusAnswer) -> None:
        """Keeps an answer for later readers, 4 at most and 4 MiB in all, the oldest dropped first; one to a selection of numbers, or larger
        than that, is not kept.
        """
        self._answers.pop(key, None)
        if answer.size <= _MOST_BYTES and key[0].numbers is None:
            self._answers[key] = answer
        while len(self._answers) > _MOST_ANSWERS or sum(one.size for one in self._answers.values()) > _MOST_BYTES:
            del self._answers[next(iter(self._answers))]

    def _forget_gone(self) -> None:
        """Drops the encoded rows of allocations that are gone."""
        there = {one.metadata.uid for one in list(self._source.objects.values())}
        self._rows = {uid: row for uid, row in self._rows.items() if uid in there}


def _key(selection: Selection, *, wide: bool) -> tuple[Selection, bool]:
    """Returns the key under which an answer is kept: the selection without its time, and whether the answer is wide."""
    return msgspec.structs.replace(selection, after=None), wide


def _array(parts: Sequence[bytes]) -> msgspec.Raw:
    """Joins encoded values to one JSON array."""
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")
