"""The proposals that the ledger accepts or refuses, and its verdicts."""

from __future__ import annotations

import msgspec

from lattice.ledger.format import Key


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Gives these free nodes (indices, ascending) to an attempt that holds none."""

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
    """Whether the nodes count against the sensitive pool, too."""
    walltime: int | None = None
    """The admitted seconds, which agents obey; None: no limit."""

    @property
    def key(self) -> Key:
        """Returns the key of the row: uid and attempt."""
        return (self.uid, self.attempt)


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Turns a held row into a releasing one, with the letter of its cause; its nodes stay taken."""

    key: Key
    cause: str


class Release(msgspec.Struct, frozen=True, gc=False):
    """Frees nodes of a row; None frees all, and the row goes with its last node."""

    key: Key
    nodes: tuple[int, ...] | None = None


class Renew(msgspec.Struct, frozen=True, gc=False):
    """Raises the generation of a held row, so that agents read the changed spec; `walltime` replaces the admitted one (None: it stays)."""

    key: Key
    generation: int
    walltime: int | None = None


class Appoint(msgspec.Struct, frozen=True, gc=False):
    """Names another reporter, one of the row's nodes."""

    key: Key
    reporter: int


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Copies a tenant's limits, and those of each of its users, into the ledger; None is unlimited."""

    tenant: str
    max_nodes: int | None
    max_allocations: int | None
    user_max_nodes: int | None = None
    user_max_allocations: int | None = None


class SensitivePool(msgspec.Struct, frozen=True, gc=False):
    """Sets how many nodes sensitive work may hold together."""

    max_nodes: int


class Forget(msgspec.Struct, frozen=True, gc=False):
    """Drops the account of a tenant that holds nothing."""

    tenant: str


class Pool(msgspec.Struct, frozen=True, gc=False):
    """Sets how many nodes have an index; `without` are indices that leave."""

    total_nodes: int
    without: tuple[int, ...] = ()


class Numbers(msgspec.Struct, frozen=True, gc=False):
    """Reserves the numbers of allocations below `next_number`."""

    next_number: int


class Recover(msgspec.Struct, frozen=True, gc=False):
    """Raises seq, epoch and the next number above all that nodes have seen; counts one recovery, and drops the terms before it."""

    seq: int
    next_number: int
    epoch: int = 0


class Adopt(msgspec.Struct, frozen=True, gc=False):
    """Enters in a recovery an attempt that really runs, whatever the limits; its nodes must be free."""

    claim: Claim
    state: str


Proposal = Claim | Stop | Release | Renew | Appoint | Limits | SensitivePool | Forget | Pool | Numbers | Recover | Adopt


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The proposal holds, or held already (`changed` False)."""

    changed: bool = True


class ProposalRefused(msgspec.Struct, frozen=True, gc=False):
    """The proposal cannot hold; carries the reason and a sentence with the numbers."""

    reason: str
    message: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The leader was deposed before the outcome was known; read the ledger."""


Verdict = Accepted | ProposalRefused | Unknown
