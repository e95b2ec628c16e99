"""The documents that answer `why`, `plan`, `queue` and `replay --cycle`, as types.

The JSON Schemas in docs/reference/schemas are generated from here. Times are RFC 3339 texts, durations texts such as `1h30m`, watts and
nodes whole numbers. An empty field is left out. New fields may appear within a version.
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
    """The base of every part of an answer: camelCase outside, what is empty left out."""


class Work(Part, frozen=True):
    """An allocation that the reader may name."""

    namespace: str
    name: str
    number: int | None = None
    uid: str = ""
    user: str = ""
    job: str = ""
    """`tags.name`."""


class ExpectedStart(Part, frozen=True):
    """The expected start of an allocation."""

    p50: str | None = None
    """As likely before as after."""
    p90: str | None = None
    """Nine times of ten before."""
    reason: str = ""
    """Why there is none."""


class Held(Part, frozen=True):
    """A reservation of nodes to come, and how it was moved later last."""

    given: str | None = None
    """When; absent: it holds none any more."""
    start: str | None = None
    """At the latest; absent: it is to be given nodes anew."""
    moved_at: str | None = None
    moved_from: str | None = None
    moved_to: str | None = None
    """Absent: it was taken back."""
    cause: str = ""
    """The word of what moved it."""
    because: str = ""


class Ranking(Part, frozen=True):
    """The score of an allocation in the last cycle."""

    total: float
    multiplier: float = 1.0
    """Of the tenant's budget."""
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
    """The nodes that fit what is asked for."""

    needed: int
    eligible: int
    usable: int
    free: int


class Blocker(Part, frozen=True):
    """One thing that stands before it."""

    kind: Literal["Holder", "Ahead", "Reservation", "Unavailable"]
    """Holder: work on nodes that fit. Ahead: pending work that comes first. Reservation: a window kept for others.
    Unavailable: nodes that fit and cannot be used."""
    nodes: int
    allocations: int = 0
    """How many allocations are summed up here; 0 where it is none."""
    whose: Literal["you", "your tenant", "other tenants", ""] = ""
    work: Work | None = None
    """Which one it is, where it is one and the reader may name it."""
    name: str = ""
    """Of a reservation, or the state of nodes that are unavailable."""
    since: str | None = None
    until: str | None = None
    """When all of it ends at the latest; absent: nobody knows."""
    first: str | None = None
    """Of several, when the first one ends."""


class Change(Part, frozen=True):
    """A change of the request that would start it now, found true by the planner."""

    kind: str
    value: str
    text: str


class Victim(Part, frozen=True):
    """Work that would be preempted."""

    nodes: int
    whose: Whose
    work: Work | None = None


class Preemption(Part, frozen=True):
    """The victims that would have to go, or why there are none; in GPU-hours, where a node without GPUs counts as one."""

    victims: list[Victim] = []
    nodes_freed: int = 0
    cost: float = 0.0
    value: float = 0.0
    reason: str = ""
    message: str = ""


class Silence(Part, frozen=True):
    """The scheduler does not answer."""

    message: str
    silent_since: str | None = None


class Why(Part, frozen=True):
    """The answer to `why`: what the object says, and what the scheduler adds."""

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
    """In order: what is to be waited for first stands first."""
    expected_start: ExpectedStart | None = None
    reservation: Held | None = None
    changes: list[Change] = []
    preemption: Preemption | None = None
    scheduler: Silence | None = None


class Group(Part, frozen=True):
    """Nodes of one topology group."""

    name: str
    nodes: int


class Placement(Part, frozen=True):
    """The nodes on which it would run."""

    nodes: str
    """A node set."""
    count: int
    """Of a range: with what it would get now beyond its least number."""
    least: int | None = None
    """Of a range: the least and the most nodes that it asks for."""
    most: int | None = None
    groups: list[Group] = []
    fingerprints: int = 0
    """How many different ones; 0: not known of any."""
    borrowed: int = 0
    """Of the nodes, those at home in another vcluster."""
    backfilled: bool = False
    """It goes ahead of work that waits with a reservation."""


class Use(Part, frozen=True):
    """One hard limit of the tenant; limit absent: none."""

    used: int
    after: int
    limit: int | None = None


class Quota(Part, frozen=True):
    """The tenant's use before and after."""

    tenant: str
    nodes: Use
    allocations: Use


class Bound(Part, frozen=True):
    """The proof of an exact solver for the same moment: no order of the pending work is worth more."""

    value: float
    """Node-weighted value of the production plan."""
    bound: float
    """Proven upper bound."""
    optimal: float | None = None
    """Value of the best plan found, which may break the rules of `unknown`; absent: none was found in time."""
    status: str = ""
    unknown: list[str] = []
    """Rules in force that the solver does not know, and the scheduler keeps: what it may place can be worth less than the bound."""


class Planned(Part, frozen=True):
    """The plan for one allocation."""

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
    """The answer to `plan`."""

    schema: Literal["lattice.dev/plan/v1"]
    at: str
    allocations: list[Planned]
    optimal: Bound | None = None


class Entry(Part, frozen=True):
    """A place in a queue: one allocation that the reader may name, or a run of others in counts."""

    position: int
    """Among those that could start if nodes were there; 0: no nodes would start it now, and it stands behind them."""
    whose: Whose
    nodes: int
    """The least that it asks for; summed up over `count`."""
    count: int = 1
    work: Work | None = None
    maximum: int | None = None
    """The most nodes it takes, where that is more."""
    walltime: str | None = None
    """Absent: unbounded, or several."""
    preemption_class: int | None = None
    submitted: str | None = None
    score: Ranking | None = None
    reason: str = ""
    message: str = ""
    expected_start: ExpectedStart | None = None


class Queue(Part, frozen=True):
    """One vcluster's queue."""

    vcluster: str
    policy: str
    pending: int
    depth: int
    apart: dict[str, int] = {}
    """By reason: how many of the pending no nodes would start now (Held, NotBefore, …)."""
    entries: list[Entry] = []
    left_out: int = 0
    """Entries beyond the limit of the question."""


class Window(Part, frozen=True):
    """A reservation in advance."""

    name: str
    start: str
    end: str
    nodes: int
    maintenance: bool = False


class Point(Part, frozen=True):
    """Node use from a moment on."""

    at: str
    running: int
    """Held by what runs now, at its walltime's end at the latest."""
    planned: int
    """By what is pending now and expected to have started, and not ended; at most what is left."""
    reserved: int
    """Kept by reservations in advance; at most what is left."""


class Timeline(Part, frozen=True):
    """Node use to come, at equal steps."""

    nodes: int
    """That can be used."""
    step_seconds: float
    points: list[Point]


class Queues(Part, frozen=True):
    """The answer to `queue`."""

    schema: Literal["lattice.dev/queue/v1"]
    at: str
    vclusters: list[Queue]
    reservations: list[Window] = []
    timeline: Timeline | None = None
    scheduler: Silence | None = None


class Stretch(Part, frozen=True):
    """Recorded cycles that follow each other, in one file."""

    file: str
    first: int
    last: int
    """0: the file holds no whole cycle."""
    began: str = ""
    ended: str = ""
    bytes: int = 0
    torn: int = 0
    """Bytes of a cycle at the end that was never finished; they are left out."""
    damage: str = ""
    """What is wrong with the file; nothing behind it is read."""


class Cycles(Part, frozen=True):
    """The recorded cycles (`lattice replay cycles`), oldest first."""

    schema: Literal["lattice.dev/cycles/v1"]
    stretches: list[Stretch]


class CycleLog(Part, frozen=True):
    """The recorded log of one cycle, as a file would hold it: for `lattice replay --cycle`."""

    cycle: int
    log: bytes


class Decided(Part, frozen=True):
    """The decision of a recorded cycle on one allocation."""

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
    """When it starts at the latest, by its reservation."""
    score: float | None = None


class Differing(Part, frozen=True):
    """One field that is decided otherwise now."""

    uid: str
    allocation: str
    field: str
    recorded: str
    now: str


class DecidedCycle(Part, frozen=True):
    """One vcluster's turn in a cycle, decided again."""

    vcluster: str
    policy: str
    reproduced: bool
    """Byte for byte."""
    decided: list[Decided]
    differences: list[Differing] = []


class Cycle(Part, frozen=True):
    """The answer to `replay --cycle`."""

    schema: Literal["lattice.dev/cycle/v1"]
    cycle: int
    at: str
    program: str
    """The version that recorded it."""
    rules: int
    """The rules that it was decided by."""
    rules_now: int
    """Those by which it is decided again: where they are others, a difference is no defect."""
    reproduced: bool
    """Byte for byte, in every vcluster shown."""
    vclusters: list[DecidedCycle]


ANSWERS: Final[dict[str, type[Part]]] = {
    WHY_SCHEMA: Why, PLAN_SCHEMA: Plan, QUEUE_SCHEMA: Queues, CYCLES_SCHEMA: Cycles, CYCLE_SCHEMA: Cycle,
}  # fmt: skip
"""The documents by their schema."""
