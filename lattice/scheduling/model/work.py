"""Work as the cycle reads it: pending candidates, and holders of nodes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lattice.scheduling.model.hardware import Need

ANY, TIGHT, SPREAD = "Any", "Tight", "Spread"
PREFERRED, REQUIRED, IGNORED = "Preferred", "Required", "Ignored"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One pending allocation as cycles read it; times in seconds since the epoch, durations in seconds.

    `minimum`, `maximum`: the least and the most nodes that it asks for. `held`: the user holds it. `not_before`, `back_off_until`:
    it starts no earlier. `vcluster_open`, `vcluster_known`: its vcluster takes its tenant's work; its vcluster exists.
    """

    key: str
    uid: str
    tenant: str
    vcluster: str
    preemption_class: int
    submitted: float
    minimum: int
    maximum: int
    need: Need
    user: str = ""
    walltime: float | None = None
    """Longest run from its first process; None: unbounded."""
    grace: float = 30.0
    """Seconds from TERM to KILL: the work may hold its nodes so much longer than its walltime."""
    topology: str = ANY
    """The spread over groups: ANY packs into the fewest groups.

    TIGHT waits rather than take more groups than an empty machine would need; SPREAD takes as many groups as it can.
    """
    conformance: str = PREFERRED
    """REQUIRED: the work waits until all its nodes can be of one fingerprint."""
    checkpointable: bool = True
    """False for `checkpoint: None`: preemption loses the progress of the work."""
    preemptible: bool = True
    """False for `preemptible: Never`."""
    sensitive: bool = False
    reservation: str = ""
    """The name of the Reservation whose nodes the work asks for."""
    name: str = ""
    """The job name, `tags.name`: the predictor takes work of one user and name to run alike."""
    held: bool = False
    not_before: float = 0.0
    back_off_until: float = 0.0
    vcluster_open: bool = True
    vcluster_known: bool = True
    blocked: tuple[str, str] | None = None
    """A reason and a sentence that keep the candidate waiting whatever nodes are free; None: nothing does."""
    project: str = ""
    """The project of its tenant whose budget the work draws on, too."""
    quota: str = ""
    """The leaf of the quota tree that the work is charged to; empty without one."""

    @property
    def non_preemptible(self) -> bool:
        """Tells whether no other work may preempt this one: it is sensitive, `preemptible: Never`, or of class 7 or higher without
        checkpoints (book, "Preemption Policy"; decision "checkpoint none").
        """
        return self.sensitive or not self.preemptible or (not self.checkpointable and self.preemption_class >= 7)


class NodeHolder(msgspec.Struct, gc=False):  # a cycle makes one for each place, a struct in a quarter of the time
    """One allocation that holds nodes, running or releasing, read from its ledger row and its object. `nodes`: indices, ascending.

    `end`: when its nodes are free at the latest, seconds since the epoch; None: unknown (unbounded work, or releasing from a silent
    node). `started`: when its first process started; None: not yet. `walltime` in seconds; None: unbounded.
    """

    uid: str
    key: str
    tenant: str
    user: str
    vcluster: str
    preemption_class: int
    nodes: tuple[int, ...]
    since: float
    """When the ledger gave the nodes to it, seconds since the epoch."""
    started: float | None = None
    end: float | None = None
    walltime: float | None = None
    checkpointable: bool = True
    preemptible: bool = True
    sensitive: bool = False
    releasing: bool = False
    borrowed: tuple[int, ...] = ()
    """The subset of its nodes that are at home in another vcluster."""
    preemptions: int = 0
    """How many times it was preempted before."""
    name: str = ""
    checkpointing: bool = False
    """Whether it saves its state now because other work preempts it."""
    checkpointed: float | None = None
    """When its last checkpoint was complete, seconds since the epoch; None: never, or unknown."""
    burst: int = 0
    """How far its tenant exceeds its fair share: 1 within its burst allowance, 2 beyond it; preemption takes the higher number first."""
    quota: str = ""
    """The leaf of the quota tree that the work is charged to; empty without one."""

    def holds_as(self, other: NodeHolder) -> bool:
        """Tells whether another record of this allocation needs no new accounting: same nodes, borrowed nodes and end, same tenant, user,
        vcluster and quota, both non-preemptible or neither; other fields may differ.
        """
        return (
            self.nodes == other.nodes and self.end == other.end and self.borrowed == other.borrowed
            and self.tenant == other.tenant and self.user == other.user and self.vcluster == other.vcluster
            and self.quota == other.quota and self.non_preemptible == other.non_preemptible
        )  # fmt: skip

    @property
    def non_preemptible(self) -> bool:
        """Tells whether no other work may preempt this one: it is sensitive, `preemptible: Never`, or of class 7 or higher without
        checkpoints.
        """
        return self.sensitive or not self.preemptible or (not self.checkpointable and self.preemption_class >= 7)
