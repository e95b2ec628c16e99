"""Who reads an answer, and whose work he may see by name (decision "whose work").

An ordinary reader is told of "you", "your tenant" and "other tenants" with counts; names of others stand only in
answers to those who may list every tenant's allocations. Every answer is built through one of these, so that what
may not be seen is never put into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

YOU: Final = "you"
YOUR_TENANT: Final = "your tenant"
OTHER_TENANTS: Final = "other tenants"


@dataclass(frozen=True, slots=True)
class Reader:
    """Someone who asks; `namespaces` are those whose allocations he may list, `everything` that he may list all.

    `groups`: he may list the groups of the quota tree.
    """

    user: str
    namespaces: frozenset[str] = frozenset()
    everything: bool = False
    groups: bool = False

    def whose(self, user: str, key: str) -> str:
        """Whose the work of this user and key (`namespace/name`) is, seen from the reader."""
        if user and user == self.user:
            return YOU
        return YOUR_TENANT if key.partition("/")[0] in self.namespaces else OTHER_TENANTS

    def may_name(self, user: str, key: str) -> bool:
        """Whether the reader may see the name of this work and its owner."""
        return self.everything or self.whose(user, key) != OTHER_TENANTS
