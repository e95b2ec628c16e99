"""What the cycle knows of work: pending allocations and those that hold nodes."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.scheduling.model.hardware import Need

ANY, TIGHT, SPREAD = "Any", "Tight", "Spread"
PREFERRED, REQUIRED, IGNORED = "Preferred", "Required", "Ignored"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One pending allocation; times in seconds since the epoch, durations in seconds."""

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
    """From TERM to KILL: its nodes may be held so much longer than the walltime."""
    topology: str = ANY
    """ANY packs into the fewest groups; TIGHT waits rather than take more groups than an empty machine would need; SPREAD
    takes as many groups as it can."""
    conformance: str = PREFERRED
    """REQUIRED: all nodes of one fingerprint, or it waits."""
    checkpointable: bool = True
    """False: `checkpoint: None`, its progress is lost when it is preempted."""
    preemptible: bool = True
    """False: `preemptible: Never`."""
    sensitive: bool = False
    reservation: str = ""
    """The Reservation whose nodes it asks for."""
    name: str = ""
    """`tags.name`: work of one user and name runs alike (predictor)."""
    held: bool = False
    not_before: float = 0.0
    back_off_until: float = 0.0
    vcluster_open: bool = True
    vcluster_known: bool = True
    blocked: tuple[str, str] | None = None
    """A reason and a sentence that keep it waiting whatever is free."""
    project: str = ""
    """Which budget of its tenant it draws on, too."""
    quota: str = ""
    """Its leaf of the quota tree; empty where there is none."""

    @property
    def non_preemptible(self) -> bool:
        """Whether nothing may preempt it (book, "Preemption Policy"; decisions, "checkpoint none")."""
        return self.sensitive or not self.preemptible or (not self.checkpointable and self.preemption_class >= 7)


@dataclass(slots=True)  # not frozen, though nobody changes one: a cycle makes one for each place
class NodeHolder:
    """One allocation that holds nodes (indices, ascending), from its ledger row and its object.

    `end`: when its nodes are free at the latest, seconds since the epoch; None: nobody knows (unbounded, or releasing
    from a node that is silent). `started`: its first process, or None.
    """

    uid: str
    key: str
    tenant: str
    user: str
    vcluster: str
    preemption_class: int
    nodes: tuple[int, ...]
    since: float
    """When the ledger gave it the nodes."""
    started: float | None = None
    end: float | None = None
    walltime: float | None = None
    checkpointable: bool = True
    preemptible: bool = True
    sensitive: bool = False
    releasing: bool = False
    borrowed: tuple[int, ...] = ()
    """Of its nodes, those at home in another vcluster."""
    preemptions: int = 0
    """How often it was preempted before."""
    name: str = ""
    checkpointing: bool = False
    """Whether it saves its state already because somebody else preempts it."""
    checkpointed: float | None = None
    """When its last checkpoint was complete, seconds since the epoch; None: never, or unknown."""
    burst: bool = False
    """Whether its tenant uses more than its fair share: such work is preempted first."""
    quota: str = ""
    """Its leaf of the quota tree; empty where there is none."""

    def holds_as(self, other: NodeHolder) -> bool:
        """Whether the other holds the same nodes for as long, and counts in the same places."""
        return (
            self.nodes == other.nodes and self.end == other.end and self.borrowed == other.borrowed
            and self.tenant == other.tenant and self.user == other.user and self.vcluster == other.vcluster
            and self.quota == other.quota and self.non_preemptible == other.non_preemptible
        )  # fmt: skip

    @property
    def non_preemptible(self) -> bool:
        """Whether nothing may preempt it."""
        return self.sensitive or not self.preemptible or (not self.checkpointable and self.preemption_class >= 7)
