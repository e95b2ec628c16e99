"""Names mutexes: of the allocations of one user and namespace that name the same one, one at a time has nodes, in order of submission.

The mutex of a job's name is what Slurm calls `singleton`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from bisect import bisect_left, insort
from functools import lru_cache
from typing import Final

from lattice.units import is_digits
from lattice.views.allocation import Allocation

MUTEX: Final = "Mutex"
MOST_MUTEXES: Final = 8
"""Most mutexes of one allocation."""
_PLAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NOT_PLAIN: Final = re.compile(r"[^a-z0-9]+")
_UNNUMBERED: Final = 1 << 62

Place = tuple[str, int, str, str]
"""The place of an allocation in the order of submission: when it was made, its number, its name, its uid."""


def is_mutex_name(text: str) -> bool:
    """Tells whether a text names a mutex: small letters, digits and dashes, 63 at most, and not digits alone, which would be a number."""
    return bool(_PLAIN.fullmatch(text)) and not is_digits(text)


def mutex_of_job(name: str) -> str:
    """Returns the name of the mutex that a job's name stands for: the same text where it names one, else a part of it and a hash."""
    if is_mutex_name(name):
        return name
    part = _NOT_PLAIN.sub("-", name.lower()).strip("-")[:40].strip("-") or "job"
    return f"{part}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def mutexes_of(allocation: Allocation) -> tuple[str, ...]:
    """Returns the digests of the mutexes that an allocation names, sorted, each once: 11 characters of user, namespace and name."""
    spec = allocation.spec
    if not spec.depends_on:
        return ()
    named = {edge.ref for edge in spec.depends_on if edge.condition == MUTEX}
    return tuple(sorted(_digest(spec.user, allocation.metadata.namespace, name) for name in named))


@lru_cache(maxsize=65536)
def _digest(user: str, namespace: str, name: str) -> str:
    """Returns 64 bits that stand for one mutex, as URL-safe base64 without padding."""
    found = hashlib.sha256(f"{user}\0{namespace}\0{name}".encode()).digest()[:8]
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode()


class MutexLines:
    """The work that has not ended of each mutex, in order of submission; the first of a line may have the mutex."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Place]] = {}
        self._places: dict[str, tuple[Place, tuple[str, ...]]] = {}
        """By uid: its place, and the mutexes in whose lines it stands."""

    def enter_lines(self, allocation: Allocation) -> set[str]:
        """Puts an allocation that has not ended into the lines of its mutexes, and out of others.

        Returns the uids that are first of these lines now; none where nothing has changed.
        """
        meta, mutexes = allocation.metadata, mutexes_of(allocation)
        uid = meta.uid
        place = (meta.creation_timestamp, allocation.status.number or _UNNUMBERED, meta.key, uid)
        standing, stood = self._places.get(uid, (place, ()))
        if (standing, stood) == (place, mutexes):
            return set()
        self.leave_lines(uid)
        if mutexes:
            self._places[uid] = place, mutexes
            for mutex in mutexes:
                insort(self._lines.setdefault(mutex, []), place)
        return self.first((*stood, *mutexes))

    def leave_lines(self, uid: str) -> set[str]:
        """Takes an allocation (by uid) out of all lines; returns the uids that are first of these now."""
        place, mutexes = self._places.pop(uid, (None, ()))
        if place is None:
            return set()
        for mutex in mutexes:
            line = self._lines[mutex]
            del line[bisect_left(line, place)]
            if not line:
                del self._lines[mutex]
        return self.first(mutexes)

    def first(self, mutexes: tuple[str, ...]) -> set[str]:
        """Returns the uids of the first of each of these lines."""
        return {self._lines[mutex][0][3] for mutex in mutexes if mutex in self._lines}

    def is_first(self, uid: str) -> bool:
        """Tells whether an allocation is the first of all its lines; True of one that stands in none."""
        _, mutexes = self._places.get(uid, (None, ()))
        return all(self._lines[mutex][0][3] == uid for mutex in mutexes)
