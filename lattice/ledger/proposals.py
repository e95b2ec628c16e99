"""The proposals that the scheduler makes to its ledger, and the verdicts on them; the committer writes many in one update."""

from __future__ import annotations

import msgspec

from lattice.ledger.format import Key


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Proposes to give free nodes (indices, ascending) to an attempt that holds none.

    `kind`: the first letter of the lifecycle type. `reporter`: the index of the node that writes the status.
    """

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
    """Whether the nodes count against the sensitive pool as well."""
    walltime: int | None = None
    """The admitted seconds, which agents obey; None: no limit."""
    mutex: str = ""
    """The digests of the mutexes that it needs, joined by `+`."""

    @property
    def key(self) -> Key:
        """Returns (uid, attempt), the key of the row that it would make."""
        return (self.uid, self.attempt)


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Proposes that a held row releases its nodes, for the cause of this letter; they stay taken until `Release`."""

    key: Key
    cause: str


class Release(msgspec.Struct, frozen=True, gc=False):
    """Proposes to free nodes of a row (None: all); the row is removed with its last node."""

    key: Key
    nodes: tuple[int, ...] | None = None


class Renew(msgspec.Struct, frozen=True, gc=False):
    """Proposes a higher generation for a held row, so that agents read the changed spec; `walltime`: the new admitted seconds
    (None: as before).
    """

    key: Key
    generation: int
    walltime: int | None = None


class Appoint(msgspec.Struct, frozen=True, gc=False):
    """Proposes another node of a row as its reporter, which writes the status."""

    key: Key
    reporter: int


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Proposes the hard limits of a tenant and of each of its users for the ledger's account; None: no limit."""

    tenant: str
    max_nodes: int | None
    max_allocations: int | None
    user_max_nodes: int | None = None
    user_max_allocations: int | None = None


class SensitivePool(msgspec.Struct, frozen=True, gc=False):
    """Proposes how many nodes sensitive work may hold together."""

    max_nodes: int


class Forget(msgspec.Struct, frozen=True, gc=False):
    """Proposes to remove the account of a tenant that holds nothing."""

    tenant: str


class Pool(msgspec.Struct, frozen=True, gc=False):
    """Proposes how many nodes have an index; `without`: indices that are taken away, which no row may hold."""

    total_nodes: int
    without: tuple[int, ...] = ()


class Numbers(msgspec.Struct, frozen=True, gc=False):
    """Proposes to reserve the numbers of allocations below `next_number` for this scheduler to give."""

    next_number: int


class Recover(msgspec.Struct, frozen=True, gc=False):
    """Proposes, in a recovery, to raise seq, epoch and the next number above all that nodes have seen.

    Counts one recovery and drops the terms before it.
    """

    seq: int
    next_number: int
    epoch: int = 0


class Adopt(msgspec.Struct, frozen=True, gc=False):
    """Proposes, in a recovery, a row for an attempt that really runs, whatever the limits; its nodes must be free."""

    claim: Claim
    state: str


Proposal = Claim | Stop | Release | Renew | Appoint | Limits | SensitivePool | Forget | Pool | Numbers | Recover | Adopt


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The verdict that a proposal holds; `changed` False: it held before."""

    changed: bool = True


class ProposalRefused(msgspec.Struct, frozen=True, gc=False):
    """The verdict that a proposal does not hold, with the reason and a sentence with the numbers."""

    reason: str
    message: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The verdict that the outcome is not known: the process lost its leadership first. The caller reads the ledger."""


Verdict = Accepted | ProposalRefused | Unknown
