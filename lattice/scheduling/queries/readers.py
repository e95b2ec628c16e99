"""The reader of an answer, and the rule whose work he may see by name (decision "whose work").

An ordinary reader is told of "you", "your tenant" and "other tenants" with counts; names of others stand only in answers to readers
who may list every tenant's allocations. Every answer is built through a `Reader`, so that hidden names are never put into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

YOU: Final = "you"
YOUR_TENANT: Final = "your tenant"
OTHER_TENANTS: Final = "other tenants"


@dataclass(frozen=True, slots=True)
class Reader:
    """The person who asks, with his rights: `namespaces` whose allocations he may list, or `everything`.

    `groups`: he may list the groups of the quota tree.
    """

    user: str
    namespaces: frozenset[str] = frozenset()
    everything: bool = False
    groups: bool = False

    def whose(self, user: str, key: str) -> str:
        """Returns whose the work of `user` in `key` (NAMESPACE/NAME) is to the reader: "you", "your tenant" for a namespace whose
        allocations he may list, else "other tenants", also where he may know everything.
        """
        if user and user == self.user:
            return YOU
        return YOUR_TENANT if key.partition("/")[0] in self.namespaces else OTHER_TENANTS

    def may_name(self, user: str, key: str) -> bool:
        """Tells whether the reader may see the name and the owner of the work of `user` in `key` (NAMESPACE/NAME): his own, that of
        namespaces whose allocations he may list, or all where he may know everything.
        """
        return self.everything or self.whose(user, key) != OTHER_TENANTS
