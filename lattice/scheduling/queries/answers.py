"""The documents that answer `why`, `plan`, `queue` and `replay --cycle`, as types.

The JSON Schemas in docs/reference/schemas are generated from here. Times are RFC 3339 texts, durations texts such as `1h30m`, watts
and nodes whole numbers. An empty field is left out. New fields may appear within a version.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

WHY_SCHEMA: Final = "lattice.dev/why/v1"
PLAN_SCHEMA: Final = "lattice.dev/plan/v1"
QUEUE_SCHEMA: Final = "lattice.dev/queue/v1"
CYCLES_SCHEMA: Final = "lattice.dev/cycles/v1"
CYCLE_SCHEMA: Final = "lattice.dev/cycle/v1"

Whose = Literal["you", "your tenant", "other tenants"]
NOW: Final = "Now"
LATER: Final = "Later"
NEVER: Final = "Never"
Verdict = Literal["Now", "Later", "Never"]


class Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The base of every part of an answer document: field names in camelCase, empty fields left out."""


class Work(Part, frozen=True):
    """An allocation by name, given only where the reader may know it."""

    namespace: str
    name: str
    number: int | None = None
    uid: str = ""
    user: str = ""
    job: str = ""
    """`tags.name`."""


class ExpectedStart(Part, frozen=True):
    """The forecast of an allocation's start; both times absent: none is foreseen, and `reason` says why."""

    p50: str | None = None
    """The start is as likely before as after this time."""
    p90: str | None = None
    """The start comes before this time in nine of ten cases."""
    reason: str = ""
    """Why no start is foreseen."""


class Held(Part, frozen=True):
    """The backfill reservation of a pending allocation, and how a cycle last moved it to a later time."""

    given: str | None = None
    """When it was first given; absent: it holds none any more."""
    start: str | None = None
    """The latest start that it promises; absent: it is to be given nodes anew."""
    moved_at: str | None = None
    moved_from: str | None = None
    moved_to: str | None = None
    """Absent: the reservation was withdrawn."""
    cause: str = ""
    """The word for the cause of the last move."""
    because: str = ""


class Ranking(Part, frozen=True):
    """The score of an allocation in the last cycle."""

    total: float
    multiplier: float = 1.0
    """The factor that follows from the use of budgets."""
    terms: dict[str, float] = {}
    """f1 to f9, each between 0 and 1, before its weight."""
    weights: dict[str, float] = {}
    """The weight of each term in the vcluster."""


class Position(Part, frozen=True):
    """The position of an allocation among those of its vcluster that could start if nodes were there; 1 is the head."""

    vcluster: str
    position: int
    of: int


class Census(Part, frozen=True):
    """Counts of the nodes that fit an allocation: how many it needs, how many fit, how many of these may work, how many are free."""

    needed: int
    eligible: int
    usable: int
    free: int


class Blocker(Part, frozen=True):
    """One obstacle between an allocation and its start: work, a reservation window, or unusable nodes."""

    kind: Literal["Holder", "Ahead", "Reservation", "Unavailable"]
    """Holder: work on nodes that fit. Ahead: pending work that comes first. Reservation: a window kept for others.
    Unavailable: nodes that fit and cannot be used."""
    nodes: int
    allocations: int = 0
    """How many allocations are summed up here; 0 where the obstacle is no allocation."""
    whose: Literal["you", "your tenant", "other tenants", ""] = ""
    work: Work | None = None
    """The allocation, where it is one and the reader may know its name."""
    name: str = ""
    """The name of a reservation, or the state of nodes that are unavailable."""
    since: str | None = None
    until: str | None = None
    """When the last of them ends at the latest; absent: nobody knows."""
    first: str | None = None
    """Of several allocations: when the first ends at the latest."""


class Change(Part, frozen=True):
    """One change of an allocation's request with which it would start now, confirmed by the planner."""

    kind: str
    value: str
    text: str


class Victim(Part, frozen=True):
    """One allocation that preemption would end; its name only where the reader may know it."""

    nodes: int
    whose: Whose
    work: Work | None = None


class Preemption(Part, frozen=True):
    """The victims that preemption would end so that an allocation starts, or the reason why there are none.

    Cost and value in GPU-hours, where a node without GPUs counts as one GPU.
    """

    victims: list[Victim] = []
    nodes_freed: int = 0
    cost: float = 0.0
    value: float = 0.0
    reason: str = ""
    message: str = ""


class Silence(Part, frozen=True):
    """States that the scheduler did not answer, and since when; the rest of the document then comes from the API server."""

    message: str
    silent_since: str | None = None


class Why(Part, frozen=True):
    """The document that answers `why`: what the Allocation's status says, and what the scheduler adds."""

    schema: Literal["lattice.dev/why/v1"]
    allocation: Work
    reason: str
    message: str = ""
    phase: str = ""
    since: str | None = None
    next_step: str = ""
    at: str | None = None
    """When the scheduler answered; absent: it did not."""
    queue: Position | None = None
    score: Ranking | None = None
    nodes: Census | None = None
    blockers: list[Blocker] = []
    """In the order in which they would have to go."""
    expected_start: ExpectedStart | None = None
    reservation: Held | None = None
    changes: list[Change] = []
    preemption: Preemption | None = None
    steps: list[str] = []
    """Lines on the steps of its nodes, of placed work that has not started; the command line alone fills it in."""
    scheduler: Silence | None = None


class Group(Part, frozen=True):
    """The nodes of a placement that belong to one topology group."""

    name: str
    nodes: int


class Placement(Part, frozen=True):
    """The nodes on which an allocation of a plan would start now."""

    nodes: str
    """A node set."""
    count: int
    """How many nodes; for a range, those beyond its least number included."""
    least: int | None = None
    """For a range: the least and the most nodes that it asks for."""
    most: int | None = None
    groups: list[Group] = []
    fingerprints: int = 0
    """How many different known fingerprints the nodes have; 0: none is known."""
    borrowed: int = 0
    """How many of the nodes are at home in another vcluster."""
    backfilled: bool = False
    """The allocation starts ahead of work that waits with a reservation."""


class Use(Part, frozen=True):
    """The use of one hard limit before and after the allocation holds its nodes; limit absent: none."""

    used: int
    after: int
    limit: int | None = None


class Quota(Part, frozen=True):
    """The use of a tenant's hard limits before and after the planned allocation starts."""

    tenant: str
    nodes: Use
    allocations: Use


class Bound(Part, frozen=True):
    """The upper bound that an exact solver proves for the same moment: no order of the pending work is worth more."""

    value: float
    """The node-weighted value of the production plan."""
    bound: float
    """The proven upper bound of that value."""
    optimal: float | None = None
    """Value of the best plan found, which may break the rules of `unknown`; absent: none was found in time."""
    status: str = ""
    unknown: list[str] = []
    """Rules in force that the solver does not know, and the scheduler keeps: what it may place can be worth less than the bound."""


class Planned(Part, frozen=True):
    """The answer of `plan` for one allocation that is not submitted: whether it would start now, later or never, where, and why not."""

    allocation: Work
    verdict: Verdict
    reason: str = ""
    message: str = ""
    queue: Position | None = None
    score: Ranking | None = None
    nodes: Census | None = None
    placement: Placement | None = None
    expected_start: ExpectedStart | None = None
    blockers: list[Blocker] = []
    changes: list[Change] = []
    preemption: Preemption | None = None
    quota: Quota | None = None


class Plan(Part, frozen=True):
    """The document that answers `plan`: what would become of the given allocations if they were submitted now, in this order."""

    schema: Literal["lattice.dev/plan/v1"]
    at: str
    allocations: list[Planned]
    optimal: Bound | None = None


class Entry(Part, frozen=True):
    """One line of a queue: an allocation that the reader may name, or a run of consecutive others as counts."""

    position: int
    """The place among those that could start if nodes were free; 0: free nodes would not start it now."""
    whose: Whose
    nodes: int
    """The least number of nodes asked for; of several allocations, summed up."""
    count: int = 1
    work: Work | None = None
    maximum: int | None = None
    """The most nodes that it takes, where that is more than `nodes`."""
    walltime: str | None = None
    """Absent: unbounded, or several."""
    preemption_class: int | None = None
    submitted: str | None = None
    score: Ranking | None = None
    reason: str = ""
    message: str = ""
    expected_start: ExpectedStart | None = None


class Queue(Part, frozen=True):
    """The pending allocations of one vcluster in the order in which its cycle evaluates them."""

    vcluster: str
    policy: str
    pending: int
    depth: int
    apart: dict[str, int] = {}
    """By reason: how many pending allocations free nodes would not start now (Held, NotBefore, …)."""
    entries: list[Entry] = []
    left_out: int = 0
    """How many pending allocations were left out beyond the limit that the question set."""


class Window(Part, frozen=True):
    """A reservation window to come or under way; the name is empty where the reader may not know it."""

    name: str
    start: str
    end: str
    nodes: int
    maintenance: bool = False


class Point(Part, frozen=True):
    """The use of nodes, as it is or as it is expected, from one moment on."""

    at: str
    running: int
    """Held by allocations that run now, each until its walltime's end at the latest."""
    planned: int
    """Held by allocations that are pending now and by then expected to run; at most the nodes left."""
    reserved: int
    """In reservation windows; at most the nodes left."""


class Timeline(Part, frozen=True):
    """The use of nodes to come, at equal steps."""

    nodes: int
    """How many nodes can be used."""
    step_seconds: float
    points: list[Point]


class Queues(Part, frozen=True):
    """The document that answers `queue`."""

    schema: Literal["lattice.dev/queue/v1"]
    at: str
    vclusters: list[Queue]
    reservations: list[Window] = []
    timeline: Timeline | None = None
    scheduler: Silence | None = None


class Stretch(Part, frozen=True):
    """Consecutive recorded cycles in one file of the cycle log."""

    file: str
    first: int
    last: int
    """The number of the last cycle; 0: the file holds no whole cycle."""
    began: str = ""
    ended: str = ""
    bytes: int = 0
    torn: int = 0
    """Bytes at the end of a cycle that was not written to its end; they are ignored."""
    damage: str = ""
    """What is wrong with the file; nothing behind the damage is read."""


class Cycles(Part, frozen=True):
    """The recorded cycles (`lattice replay cycles`), oldest first."""

    schema: Literal["lattice.dev/cycles/v1"]
    stretches: list[Stretch]


class CycleLog(Part, frozen=True):
    """One recorded cycle as bytes in the format of a cycle log file; `lattice replay --cycle` reads it."""

    cycle: int
    log: bytes


class Decided(Part, frozen=True):
    """The outcome of one allocation in a recorded cycle."""

    namespace: str
    name: str
    uid: str
    outcome: Literal["placed", "waiting"]
    user: str = ""
    nodes: list[str] = []
    backfilled: bool = False
    reason: str = ""
    message: str = ""
    latest: str | None = None
    """The latest start that its reservation promises."""
    score: float | None = None


class Differing(Part, frozen=True):
    """One field of an outcome that differs between the recorded cycle and its replay by the present program."""

    uid: str
    allocation: str
    field: str
    recorded: str
    now: str


class DecidedCycle(Part, frozen=True):
    """The cycle of one vcluster in a recorded round: its outcomes, and whether a replay decides the same."""

    vcluster: str
    policy: str
    reproduced: bool
    """The replay gives the same outcomes byte for byte."""
    decided: list[Decided]
    differences: list[Differing] = []


class Cycle(Part, frozen=True):
    """The document that answers `replay --cycle`."""

    schema: Literal["lattice.dev/cycle/v1"]
    cycle: int
    at: str
    program: str
    """The version of the program that recorded the cycle."""
    rules: int
    """The version of the decision rules when it was recorded."""
    rules_now: int
    """The version of the decision rules that replayed it; where it is another, a difference is no defect."""
    reproduced: bool
    """The replay gives the same outcomes byte for byte, in every vcluster shown."""
    vclusters: list[DecidedCycle]


ANSWERS: Final[dict[str, type[Part]]] = {
    WHY_SCHEMA: Why, PLAN_SCHEMA: Plan, QUEUE_SCHEMA: Queues, CYCLES_SCHEMA: Cycles, CYCLE_SCHEMA: Cycle,
}  # fmt: skip
"""The documents by their schema."""
