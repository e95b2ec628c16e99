"""What may be asked of the ledger, and how it answers."""

from __future__ import annotations

import msgspec

from lattice.ledger.format import Key


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Give these free nodes (indices, ascending) to an attempt that holds none."""

    uid: str
    attempt: int
    generation: int
    user: str
    tenant: str
    vcluster: str
    kind: str
    reporter: int
    nodes: tuple[int, ...]
    sensitive: bool = False
    """Counts against the sensitive pool too."""
    walltime: int | None = None
    """The admitted seconds, which agents obey; None: there is no limit."""

    @property
    def key(self) -> Key:
        """The row's key."""
        return (self.uid, self.attempt)


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Turn a held row into a releasing one, with its cause's letter; its nodes stay taken."""

    key: Key
    cause: str


class Release(msgspec.Struct, frozen=True, gc=False):
    """Free nodes of a row; None frees all, and the row goes with its last node."""

    key: Key
    nodes: tuple[int, ...] | None = None


class Renew(msgspec.Struct, frozen=True, gc=False):
    """Raise the generation of a held row, so that agents read the changed spec; `walltime` is admitted anew (None: it stays)."""

    key: Key
    generation: int
    walltime: int | None = None


class Appoint(msgspec.Struct, frozen=True, gc=False):
    """Name another reporter, one of the row's nodes."""

    key: Key
    reporter: int


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Copy a tenant's limits in, and those of each of its users; None is unlimited."""

    tenant: str
    max_nodes: int | None
    max_allocations: int | None
    user_max_nodes: int | None = None
    user_max_allocations: int | None = None


class SensitivePool(msgspec.Struct, frozen=True, gc=False):
    """How many nodes sensitive work may hold together."""

    max_nodes: int


class Forget(msgspec.Struct, frozen=True, gc=False):
    """Drop a tenant that holds nothing."""

    tenant: str


class Pool(msgspec.Struct, frozen=True, gc=False):
    """How many nodes have an index; `without` are indices that leave."""

    total_nodes: int
    without: tuple[int, ...] = ()


class Numbers(msgspec.Struct, frozen=True, gc=False):
    """Reserve numbers of allocations up to `next_number`, exclusively."""

    next_number: int


class Recover(msgspec.Struct, frozen=True, gc=False):
    """Raise seq, epoch and the next number above all that nodes have seen; counts one recovery, and forgets the terms before it."""

    seq: int
    next_number: int
    epoch: int = 0


class Adopt(msgspec.Struct, frozen=True, gc=False):
    """In a recovery: enter what really runs, limits or not; its nodes must be free."""

    claim: Claim
    state: str


Proposal = Claim | Stop | Release | Renew | Appoint | Limits | SensitivePool | Forget | Pool | Numbers | Recover | Adopt


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """It holds, or held already (`changed` False)."""

    changed: bool = True


class Refused(msgspec.Struct, frozen=True, gc=False):
    """It cannot hold: a reason and the numbers."""

    reason: str
    message: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The leader was deposed before the outcome was known; read the ledger."""


Verdict = Accepted | Refused | Unknown
