"""The ledger in memory: applies proposals, and gives a verdict on each.

`Book` has one owner, the committer. It is changed by `apply` only, and each change returns the function that undoes it, so that a
batch which the API server refuses leaves no trace. `validate` rebuilds everything from the stored text and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from lattice.errors import Corrupt
from lattice.ledger.format import FIRST_FORMAT, HELD, SHARDS, Key, Row, decode_shard, encode_shard, format_of, shard_of
from lattice.ledger.proposals import (
    Accepted,
    Adopt,
    Appoint,
    Claim,
    Forget,
    Limits,
    Numbers,
    Pool,
    Proposal,
    ProposalRefused,
    Recover,
    Release,
    Renew,
    SensitivePool,
    Stop,
    Verdict,
)
from lattice.units import format_ranges
from lattice.views.ledger import LedgerStatus, LedgerTerm, SensitiveUse, TenantAccount

Undo = Callable[[], None]
NO_CLAIMS_FROM_BYTES = 1258291  # 1.2 MiB: above 1.5 MiB every write to etcd fails for ever

MOST_TENANTS = 1024
"""Most accounts that the Ledger object keeps; its schema has the same number."""

TERMS_KEPT = 16
"""Most takeovers that the Ledger object keeps; its schema has the same number."""

SAME = Accepted(changed=False)


def _nothing() -> None:
    """Does nothing: undoes a proposal that changed nothing."""


@dataclass
class Head:
    """The counters of the ledger that each commit stores.

    `epoch`, `term`: the number and the name of the leader's term. `seq`: the number of the last commit. `next_number`: the lowest
    unused number of an allocation. `recoveries`: how often rows were made from the nodes' journals. `total_nodes`: how many nodes
    have an index.
    """

    epoch: int = 0
    term: str = ""
    seq: int = 0
    commit: str = ""
    next_number: int = 1
    recoveries: int = 0
    total_nodes: int = 0


class Book:
    """The ledger in memory: rows, accounts and counters; the committer applies proposals to it and stores the result."""

    def __init__(self) -> None:
        self.head = Head()
        self.format = FIRST_FORMAT
        """The number of the format in which shards are written."""
        self.terms: tuple[LedgerTerm, ...] = ()
        """The last terms of leaders, the newest last."""
        self.written = 0
        """When the last commit was made, seconds since the epoch."""
        self.sensitive = SensitiveUse()
        self.accounts: dict[str, TenantAccount] = {}
        self.rows: dict[Key, Row] = {}
        self.attempts: dict[str, set[int]] = {}
        self.holders: dict[int, Key] = {}
        self.users: dict[tuple[str, str], tuple[int, int]] = {}
        """By (tenant, user): the nodes and rows that he holds, releasing ones included; no entry without any."""
        self.mutexes: dict[str, Key] = {}
        """By digest of a mutex: the row that has it, releasing ones included."""
        self._shard: dict[Key, int] = {}
        self._members: list[dict[Key, Row]] = [{} for _ in range(SHARDS)]
        self._texts: list[str | None] = [None] * SHARDS
        self.changes: list[tuple[Row | None, Row | None]] = []
        """Rows before and after each change since the committer last took the list; None before: a new row, None after: a removed one."""

    @classmethod
    def empty(cls, term: str, commit: str) -> Book:
        """Returns the first ledger of a new cluster, with the term of its first leader."""
        book = cls()
        book.head = Head(epoch=1, term=term, seq=1, commit=commit)
        book.terms = (LedgerTerm(epoch=1, term=term, since=1),)
        return book

    @classmethod
    def load(cls, status: LedgerStatus) -> Book:
        """Returns the book of a stored ledger; raises Corrupt where the text is unreadable or breaks an invariant."""
        book = cls()
        book.head = Head(status.epoch, status.term, status.seq, status.commit, status.next_number, status.recoveries, status.total_nodes)
        book.sensitive = status.sensitive
        book.accounts = dict(status.tenants)
        book.format = format_of(status.shards)
        book.terms, book.written = status.terms, status.written
        for position, text in enumerate(status.shards):
            book._texts[position] = text
            for row in decode_shard(text):
                if row.key in book.rows:
                    raise Corrupt(f"the ledger names {row.uid} attempt {row.attempt} twice", reason="RowTwice")
                book._insert(row, position)
                book._texts[position] = text
        return book

    def apply(self, proposal: Proposal) -> tuple[Verdict, Undo]:
        """Applies one proposal in memory, or refuses it without a change; returns the verdict and the function that undoes it."""
        return _APPLY[type(proposal)](self, proposal)

    def take(self, term: str, commit: str) -> None:
        """Begins the term of a new leader, in memory: the epoch and the seq grow by one, and the last 16 terms are kept."""
        head = self.head
        self.head = replace(head, epoch=head.epoch + 1, term=term, seq=head.seq + 1, commit=commit)
        begun = LedgerTerm(epoch=self.head.epoch, term=term, since=self.head.seq, left=self.written)
        self.terms = (*self.terms, begun)[-TERMS_KEPT:]

    def write_format(self, number: int) -> None:
        """Changes the format number; from the next commit on every shard is written in it. The present number changes nothing."""
        if number != self.format:
            self.format = number
            self._texts = [encode_shard(members.values(), number) for members in self._members]

    def render(self) -> LedgerStatus:
        """Returns the ledger's status to be stored; encodes only shards that have changed."""
        for position, text in enumerate(self._texts):
            if text is None:
                self._texts[position] = encode_shard(self._members[position].values(), self.format)
        head = self.head
        return LedgerStatus(
            epoch=head.epoch, term=head.term, seq=head.seq, commit=head.commit, next_number=head.next_number,
            recoveries=head.recoveries, total_nodes=head.total_nodes, sensitive=self.sensitive, tenants=dict(self.accounts),
            shards=tuple(text or "" for text in self._texts), terms=self.terms, written=self.written,
        )  # fmt: skip

    def bytes(self) -> int:
        """Returns the size of all shards as last rendered, in bytes; shards that have changed since count nothing until `render`."""
        return sum(len(text) for text in self._texts if text is not None)

    def rows_of(self, uid: str) -> Iterator[Row]:
        """Yields the rows of an allocation, the oldest attempt first."""
        for attempt in sorted(self.attempts.get(uid, ())):
            yield self.rows[(uid, attempt)]

    def held(self, uid: str) -> Row | None:
        """Returns the row of the allocation's attempt that may run; None: it has none, or only releasing ones."""
        return next((row for row in self.rows_of(uid) if row.held), None)

    def used_by(self, tenant: str, user: str) -> tuple[int, int]:
        """Returns how many nodes and rows a user of a tenant holds, releasing ones included."""
        return self.users.get((tenant, user), (0, 0))

    def validate(self) -> None:
        """Rebuilds the book from its own text and every count from the rows; raises Corrupt on the first difference."""
        again = Book.load(self.render())
        for name in ("head", "accounts", "sensitive", "rows", "attempts", "holders", "users", "mutexes"):
            if getattr(self, name) != getattr(again, name):
                raise Corrupt(f"the book's {name} differ from its own text", reason="BookDiffers")
        for tenant, account in self.accounts.items():
            rows = [row for row in self.rows.values() if row.tenant == tenant]
            if (account.used_nodes, account.used_allocations) != (sum(len(row.nodes) for row in rows), len(rows)):
                raise Corrupt(f"the account of {tenant} differs from its rows", reason="BookDiffers")
        for who in {*self.users, *((row.tenant, row.user) for row in self.rows.values())}:
            rows = [row for row in self.rows.values() if (row.tenant, row.user) == who]
            if self.users.get(who) != (sum(len(row.nodes) for row in rows), len(rows)):
                raise Corrupt(f"the use of {who[1]} of {who[0]} differs from the rows", reason="BookDiffers")
        if self.sensitive.used != sum(len(row.nodes) for row in self.rows.values() if row.sensitive):
            raise Corrupt("the use of the sensitive pool differs from its rows", reason="BookDiffers")

    # -- changes -------------------------------------------------------------------------------------

    def _insert(self, row: Row, position: int) -> None:
        """Adds a row to a shard, at `position`, and to all indices by node, uid and user; charges no account.

        Raises Corrupt where a node or a mutex of it is held by another row.
        """
        self.rows[row.key] = row
        self.attempts.setdefault(row.uid, set()).add(row.attempt)
        for node in row.nodes:
            if self.holders.setdefault(node, row.key) != row.key:
                raise Corrupt(f"node index {node} is held by {self.holders[node]} and {row.key}", reason="NodeTwice")
        for mutex in row.mutexes:
            if self.mutexes.setdefault(mutex, row.key) != row.key:
                raise Corrupt(f"mutex {mutex} is held by {self.mutexes[mutex]} and {row.key}", reason="MutexTwice")
        self._shard[row.key] = position
        self._members[position][row.key] = row
        self._texts[position] = None
        nodes, rows = self.used_by(row.tenant, row.user)
        self.users[row.tenant, row.user] = (nodes + len(row.nodes), rows + 1)

    def _remove(self, row: Row) -> None:
        """Removes a row from its shard and from all indices by node, uid and user; discharges no account."""
        del self.rows[row.key]
        attempts = self.attempts[row.uid]
        attempts.discard(row.attempt)
        if not attempts:
            del self.attempts[row.uid]
        for node in row.nodes:
            del self.holders[node]
        for mutex in row.mutexes:
            del self.mutexes[mutex]
        position = self._shard.pop(row.key)
        del self._members[position][row.key]
        self._texts[position] = None
        nodes, rows = self.used_by(row.tenant, row.user)
        if rows > 1:
            self.users[row.tenant, row.user] = (nodes - len(row.nodes), rows - 1)
        else:
            del self.users[row.tenant, row.user]

    def _swap(self, old: Row | None, new: Row | None) -> Undo:
        """Replaces a row (None: none) by another (None: none) and updates the tenant's account; returns the function that undoes both."""
        position = self._shard[old.key] if old else shard_of(new.key if new else ("", 0))
        accounts, sensitive = {row.tenant: self.accounts.get(row.tenant) for row in (old, new) if row}, self.sensitive
        if old:
            self._remove(old)
            self._charge(old, -1)
        if new:
            self._insert(new, position)
            self._charge(new, 1)
        change = (old, new)
        self.changes.append(change)

        def undo() -> None:
            """Takes the change back: rows, accounts and sensitive pool are as before."""
            self.changes.remove(change)
            if new:
                self._remove(new)
            if old:
                self._insert(old, position)
            self.sensitive = sensitive
            for tenant, account in accounts.items():
                if account is None:
                    self.accounts.pop(tenant, None)
                else:
                    self.accounts[tenant] = account

        return undo

    def _charge(self, row: Row, sign: int) -> None:
        """Adds the nodes and the allocation of a row to its tenant's account (`sign` 1), or subtracts them (-1); those of sensitive work
        also to the sensitive pool.
        """
        account = self.accounts.get(row.tenant, TenantAccount())
        self.accounts[row.tenant] = msgspec.structs.replace(
            account,
            used_nodes=account.used_nodes + sign * len(row.nodes),
            used_allocations=account.used_allocations + sign,
        )
        if row.sensitive:
            self.sensitive = msgspec.structs.replace(self.sensitive, used=self.sensitive.used + sign * len(row.nodes))

    def _set_head(self, **changes: Any) -> Undo:
        """Replaces fields of the ledger's head, and returns a function that takes that back."""
        before = self.head
        self.head = replace(before, **changes)

        def undo() -> None:
            """Puts the head before the change back."""
            self.head = before

        return undo


def _claim(book: Book, claim: Claim) -> tuple[Verdict, Undo]:
    """Adds a row for a claim that is sound, on nodes that are free, and within limits; returns the verdict and how to take the change back.

    A claim whose row is held on the same nodes already changes nothing and is SAME.
    """
    standing = book.rows.get(claim.key)
    if standing is not None:
        if standing.held and standing.nodes == claim.nodes:
            return SAME, _nothing
        return ProposalRefused("AttemptTaken", f"attempt {claim.attempt} of {claim.uid} is in the ledger already"), _nothing
    for check in (_other_attempts, _nodes_free, _mutexes_free, _within_limits, _room_in_object):
        refusal = check(book, claim)
        if refusal is not None:
            return refusal, _nothing
    return Accepted(), book._swap(None, _row(claim, HELD))


def _row(claim: Claim, state: str) -> Row:
    """Returns the row of a claim, in this state."""
    return Row(
        claim.uid, claim.attempt, claim.generation, claim.user, claim.tenant, claim.vcluster,
        claim.kind, state, claim.reporter, claim.nodes, claim.sensitive, claim.walltime, claim.mutex,
    )  # fmt: skip


def _other_attempts(book: Book, claim: Claim) -> ProposalRefused | None:
    """Returns the refusal of a claim whose allocation has a row that is held or of a newer attempt; None: it has none."""
    for row in book.rows_of(claim.uid):
        if row.held or row.attempt > claim.attempt:
            return ProposalRefused("AttemptTaken", f"attempt {row.attempt} of {claim.uid} is {'held' if row.held else 'newer'}")
    return None


def _mutexes_free(book: Book, claim: Claim) -> ProposalRefused | None:
    """Returns the refusal of a claim that needs a mutex which another row has, a releasing one too; None: it may have all that it needs."""
    for mutex in filter(None, claim.mutex.split("+")):
        holder = book.mutexes.get(mutex)
        if holder is not None:
            return ProposalRefused("MutexHeld", f"mutex {mutex} is held by attempt {holder[1]} of {holder[0]}")
    return None


def _nodes_free(book: Book, claim: Claim) -> ProposalRefused | None:
    """Returns the refusal of a claim that names no nodes or a reporter not among them, or nodes that are held, or more than exist; None: it
    may have them.
    """
    taken = [node for node in claim.nodes if node in book.holders]
    if taken:
        return ProposalRefused("NodesTaken", f"{len(taken)} of {len(claim.nodes)} nodes are held already: indices {format_ranges(taken)}")
    if not claim.nodes or claim.reporter not in claim.nodes:
        return ProposalRefused("ClaimUnsound", "a claim names at least one node, and its reporter among them")
    used = sum(account.used_nodes for account in book.accounts.values())
    if used + len(claim.nodes) > book.head.total_nodes:
        return ProposalRefused("NodesTaken", f"{used} of {book.head.total_nodes} nodes are held, {len(claim.nodes)} more are asked for")
    return None


def _within_limits(book: Book, claim: Claim) -> ProposalRefused | None:
    """Returns the refusal of a claim beyond the limits of its tenant or user or, if sensitive, of the sensitive pool, or of a tenant
    without an account; None: it is within them.
    """
    account = book.accounts.get(claim.tenant)
    if account is None:
        return ProposalRefused("TenantUnknown", f'tenant "{claim.tenant}" has no account in the ledger yet')
    wanted = len(claim.nodes)
    excess = beyond(account, book.used_by(claim.tenant, claim.user), claim.tenant, claim.user, wanted)
    if excess is None and claim.sensitive and book.sensitive.used + wanted > book.sensitive.max:
        excess = Excess("sensitive work", "sensitive_pool_size", book.sensitive.used, wanted, book.sensitive.max)
    return ProposalRefused("WaitingForQuotaHeadroom", excess.sentence) if excess is not None else None


class Excess(NamedTuple):
    """A hard limit that a claim would exceed; `who` begins the sentence, for example 'tenant "physics"'."""

    who: str
    quota: str
    current: int
    requested: int
    limit: int

    @property
    def sentence(self) -> str:
        """Returns the sentence with the numbers, as the book words it (chapter "Quota Enforcement")."""
        return f"{self.who} would exceed {self.quota} quota (current: {self.current}, requested: {self.requested}, limit: {self.limit})"


def beyond(account: TenantAccount, own: tuple[int, int], tenant: str, user: str, wanted: int) -> Excess | None:
    """Returns the first hard limit that one more allocation of `wanted` nodes would exceed; None: it exceeds none.

    `account` has the tenant's limits and use, `own` the nodes and allocations that the user holds in it.
    """
    everybody, alone = f'tenant "{tenant}"', f'user "{user}" of tenant "{tenant}"'
    for who, quota, current, requested, limit in (
        (everybody, "max_nodes", account.used_nodes, wanted, account.max_nodes),
        (everybody, "max_concurrent_allocations", account.used_allocations, 1, account.max_allocations),
        (alone, "max_nodes", own[0], wanted, account.user_max_nodes),
        (alone, "max_running", own[1], 1, account.user_max_allocations),
    ):
        if limit is not None and current + requested > limit:
            return Excess(who, quota, current, requested, limit)
    return None


def _room_in_object(book: Book, claim: Claim) -> ProposalRefused | None:
    """Returns the refusal of a claim for which the ledger's object has no room left; None: it has."""
    size = book.bytes()
    if size + 70 + 6 * len(claim.nodes) > NO_CLAIMS_FROM_BYTES:
        return ProposalRefused(
            "LedgerFull", f"the ledger holds {len(book.rows)} allocations in {size} bytes; no more are taken above {NO_CLAIMS_FROM_BYTES}"
        )
    return None


def _stop(book: Book, stop: Stop) -> tuple[Verdict, Undo]:
    """Ends a held row with the cause of the stop; returns the verdict and how to take the change back.

    A row that is gone is a refusal; one that has ended already stays as it is and is SAME.
    """
    row = book.rows.get(stop.key)
    if row is None:
        return _gone(stop.key), _nothing
    if not row.held:
        return SAME, _nothing
    return Accepted(), book._swap(row, msgspec.structs.replace(row, state=stop.cause))


def _release(book: Book, release: Release) -> tuple[Verdict, Undo]:
    """Frees the nodes of a row that has ended, or some of them (`release.nodes`), and removes a row without nodes; returns the verdict and
    how to take that back.

    A held row may be freed only as a whole; a reporter that is freed is replaced by the lowest node left; nothing to free is SAME.
    """
    row = book.rows.get(release.key)
    if row is None:
        return SAME, _nothing
    freed = set(row.nodes if release.nodes is None else release.nodes)
    left = tuple(node for node in row.nodes if node not in freed)
    if left == row.nodes:
        return SAME, _nothing
    if left and row.held:
        return ProposalRefused("RowHeld", f"attempt {row.attempt} of {row.uid} is held: stop it before parts of it are freed"), _nothing
    reporter = row.reporter if row.reporter in left else min(left, default=0)
    return Accepted(), book._swap(row, msgspec.structs.replace(row, nodes=left, reporter=reporter) if left else None)


def _renew(book: Book, renew: Renew) -> tuple[Verdict, Undo]:
    """Stores a newer generation of a row's allocation, and its walltime where one is given; returns the verdict and how to take that back.

    A row that is gone is a refusal; a generation that is not newer is SAME.
    """
    row = book.rows.get(renew.key)
    if row is None:
        return _gone(renew.key), _nothing
    if renew.generation <= row.generation:
        return SAME, _nothing
    walltime = row.walltime if renew.walltime is None else renew.walltime
    return Accepted(), book._swap(row, msgspec.structs.replace(row, generation=renew.generation, walltime=walltime))


def _appoint(book: Book, appoint: Appoint) -> tuple[Verdict, Undo]:
    """Makes another node of a row its reporter; returns the verdict and how to take that back.

    A row that is gone and a node that is not its own are refusals; the present reporter is SAME.
    """
    row = book.rows.get(appoint.key)
    if row is None:
        return _gone(appoint.key), _nothing
    if appoint.reporter not in row.nodes:
        return ProposalRefused("ClaimUnsound", f"node index {appoint.reporter} is none of the nodes of {row.uid}"), _nothing
    if row.reporter == appoint.reporter:
        return SAME, _nothing
    return Accepted(), book._swap(row, msgspec.structs.replace(row, reporter=appoint.reporter))


def _gone(key: Key) -> ProposalRefused:
    """Returns the refusal that says that a row is not in the ledger."""
    return ProposalRefused("RowGone", f"attempt {key[1]} of {key[0]} is not in the ledger")


def _limits(book: Book, limits: Limits) -> tuple[Verdict, Undo]:
    """Sets the limits of a tenant and of each of its users, with a new account where it has none; returns the verdict and how to take that
    back.

    Equal limits are SAME; a new account beyond the most tenants is a refusal.
    """
    before = book.accounts.get(limits.tenant)
    after = msgspec.structs.replace(
        before or TenantAccount(),
        max_nodes=limits.max_nodes,
        max_allocations=limits.max_allocations,
        user_max_nodes=limits.user_max_nodes,
        user_max_allocations=limits.user_max_allocations,
    )
    if before == after:
        return SAME, _nothing
    if before is None and len(book.accounts) >= MOST_TENANTS:
        sentence = f'the ledger keeps accounts of {MOST_TENANTS} tenants at most: tenant "{limits.tenant}" gets none until one is deleted'
        return ProposalRefused("LedgerFull", sentence), _nothing
    return Accepted(), _set_account(book, limits.tenant, before, after)


def _sensitive_pool(book: Book, pool: SensitivePool) -> tuple[Verdict, Undo]:
    """Sets how many nodes sensitive work may hold, also below what it holds; returns the verdict, SAME if equal, and how to take
    that back.
    """
    before = book.sensitive
    if before.max == pool.max_nodes:
        return SAME, _nothing
    book.sensitive = msgspec.structs.replace(before, max=pool.max_nodes)

    def undo() -> None:
        """Puts the pool before the change back."""
        book.sensitive = before

    return Accepted(), undo


def _forget(book: Book, forget: Forget) -> tuple[Verdict, Undo]:
    """Removes the account of a tenant; returns the verdict and how to take that back.

    A tenant that holds nodes or allocations is a refusal, an unknown one is SAME.
    """
    before = book.accounts.get(forget.tenant)
    if before is None:
        return SAME, _nothing
    if before.used_allocations or before.used_nodes:
        return ProposalRefused("TenantInUse", f'tenant "{forget.tenant}" holds {before.used_nodes} nodes'), _nothing
    return Accepted(), _set_account(book, forget.tenant, before, None)


def _set_account(book: Book, tenant: str, before: TenantAccount | None, after: TenantAccount | None) -> Undo:
    """Stores an account of a tenant, or removes it (`after` None), and returns a function that puts `before` back."""

    def put(account: TenantAccount | None) -> None:
        """Stores the tenant's account; None removes it."""
        if account is None:
            book.accounts.pop(tenant, None)
        else:
            book.accounts[tenant] = account

    put(after)
    return lambda: put(before)


def _pool(book: Book, pool: Pool) -> tuple[Verdict, Undo]:
    """Sets how many nodes exist; returns the verdict and how to take that back.

    Refused where nodes that leave (`without`) are held, or more are held than would exist; an equal number is SAME.
    """
    held = [node for node in pool.without if node in book.holders]
    if held:
        return ProposalRefused("NodeHeld", f"node indices {format_ranges(held)} are held and cannot leave"), _nothing
    used = sum(account.used_nodes for account in book.accounts.values())
    if pool.total_nodes < used:
        return ProposalRefused("NodeHeld", f"{used} nodes are held, {pool.total_nodes} would exist"), _nothing
    if pool.total_nodes == book.head.total_nodes:
        return SAME, _nothing
    return Accepted(), book._set_head(total_nodes=pool.total_nodes)


def _numbers(book: Book, numbers: Numbers) -> tuple[Verdict, Undo]:
    """Raises the next number of an allocation; returns the verdict and how to take that back.

    A number that is not higher changes nothing and is SAME.
    """
    if numbers.next_number <= book.head.next_number:
        return SAME, _nothing
    return Accepted(), book._set_head(next_number=numbers.next_number)


def _recover(book: Book, recover: Recover) -> tuple[Verdict, Undo]:
    """Raises seq, epoch and next number to at least these, never lowers them, counts the recovery, and begins the terms anew; returns the
    verdict and how to take that back.
    """
    before, seq, epoch = book.terms, max(recover.seq, book.head.seq), max(recover.epoch, book.head.epoch)
    next_number = max(recover.next_number, book.head.next_number)
    back = book._set_head(seq=seq, next_number=next_number, epoch=epoch, recoveries=book.head.recoveries + 1)
    book.terms = (LedgerTerm(epoch=epoch, term=book.head.term, since=seq + 1, left=before[-1].left if before else 0),)

    def undo() -> None:
        """Puts terms and head before the recovery back."""
        book.terms = before
        back()

    return Accepted(), undo


def _adopt(book: Book, adopt: Adopt) -> tuple[Verdict, Undo]:
    """Adds a row that the nodes' histories say, in the state that they say, without a check of limits, and without the mutexes that another
    row has; returns the verdict and how to take that back.

    A row that is in the ledger is SAME; nodes that are held, or, for a held row, another attempt's claim, are a refusal.
    """
    if adopt.claim.key in book.rows:
        return SAME, _nothing
    refusal = _other_attempts(book, adopt.claim) if adopt.state == HELD else None
    refusal = refusal or _nodes_free(book, adopt.claim)
    if refusal is not None:
        return refusal, _nothing
    free = "+".join(mutex for mutex in adopt.claim.mutex.split("+") if mutex not in book.mutexes)
    return Accepted(), book._swap(None, _row(msgspec.structs.replace(adopt.claim, mutex=free), adopt.state))


_APPLY: dict[type, Callable[[Book, Any], tuple[Verdict, Undo]]] = {
    Claim: _claim,
    Stop: _stop,
    Release: _release,
    Renew: _renew,
    Appoint: _appoint,
    Limits: _limits,
    SensitivePool: _sensitive_pool,
    Forget: _forget,
    Pool: _pool,
    Numbers: _numbers,
    Recover: _recover,
    Adopt: _adopt,
}


def apply_all(book: Book, proposals: Iterable[Proposal]) -> tuple[list[Verdict], Undo]:
    """Applies a batch of proposals in order; returns a verdict on each, and the function that undoes all of them."""
    verdicts: list[Verdict] = []
    undos: list[Undo] = []
    for proposal in proposals:
        verdict, undo = book.apply(proposal)
        verdicts.append(verdict)
        undos.append(undo)

    def undo_all() -> None:
        """Takes all changes back, the last one first."""
        for undo in reversed(undos):
            undo()

    return verdicts, undo_all
