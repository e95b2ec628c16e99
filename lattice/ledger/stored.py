"""The ledger as the API server has acknowledged it, the only source of plans and statuses.

The committer's `Book` runs ahead while a commit is under way; plans and statuses made from it would show rows that the ledger does
not hold yet, and perhaps never will.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lattice.ledger.commit import Book, Head
from lattice.ledger.format import Key, Row
from lattice.views.ledger import SensitiveUse, TenantAccount


class Stored:
    """The rows and counters of the last acknowledged commit; changed by `advance` only."""

    def __init__(self, book: Book) -> None:
        """Copies a book of which no commit is under way."""
        self.head: Head = book.head
        self.accounts: dict[str, TenantAccount] = dict(book.accounts)
        """The limits and the use of each tenant; the dict stays the same object."""
        self.sensitive: SensitiveUse = book.sensitive
        self.rows: dict[Key, Row] = dict(book.rows)
        self.mutexes: dict[str, Key] = dict(book.mutexes)
        """By digest of a mutex: the row that has it, releasing ones included."""
        self._attempts: dict[str, set[int]] = {uid: set(attempts) for uid, attempts in book.attempts.items()}

    def advance(
        self, changes: Iterable[tuple[Row | None, Row | None]], head: Head, accounts: Mapping[str, TenantAccount], sensitive: SensitiveUse
    ) -> None:
        """Takes over an acknowledged commit: the rows before and after each change, in order, and the counters stored with them."""
        self.accounts.clear()
        self.accounts.update(accounts)
        self.sensitive = sensitive
        for old, new in changes:
            if old is not None:
                del self.rows[old.key]
                for mutex in old.mutexes:
                    del self.mutexes[mutex]
                attempts = self._attempts[old.uid]
                attempts.discard(old.attempt)
                if not attempts:
                    del self._attempts[old.uid]
            if new is not None:
                self.rows[new.key] = new
                self.mutexes.update(dict.fromkeys(new.mutexes, new.key))
                self._attempts.setdefault(new.uid, set()).add(new.attempt)
        self.head = head

    def rows_of(self, uid: str) -> Iterator[Row]:
        """Yields the rows of an allocation, the oldest attempt first."""
        for attempt in sorted(self._attempts.get(uid, ())):
            yield self.rows[(uid, attempt)]
