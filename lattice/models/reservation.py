"""Reservation: nodes that are set aside in advance, once or again and again (`docs/howto/reserve-nodes.md`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lattice.models.forms import pattern_of
from lattice.models.shape import LINE_PATTERN, Column, Conditions, Duration, Kind, Meta, Name, Part, Rule, Time, kube

Word = Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=63)]
User = Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=253)]
Weekday = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
Moment = Annotated[str, Field(pattern=pattern_of("moment"), max_length=25)]
FIXED = ("nodes", "nodeCount", "features", "groups", "gpuType", "start", "timeZone")
"""Fields of spec that never change: which nodes, and from when."""


def _absent(name: str) -> str:
    """Returns the expression that a list of the spec is absent or empty."""
    return f"(!has(self.{name}) || size(self.{name}) == 0)"


class Recurrence(Part):
    """The days on which a reservation's window comes again, at the same local time of its time zone, and where the series ends."""

    every_days: Annotated[int, Field(ge=1, le=366)] | None = None
    """Every so many days; 1: daily."""
    weekdays: Annotated[list[Weekday], Field(min_length=1, max_length=7, json_schema_extra=kube(list_type="set"))] | None = None
    """On these days of every week."""
    until: Moment | None = None
    """No window begins after this time."""
    count: Annotated[int, Field(ge=1, le=100000)] | None = None
    """So many windows in all."""

    rules: ClassVar = (
        Rule(
            "has(self.everyDays) != has(self.weekdays)",
            "give either spec.recurrence.everyDays or spec.recurrence.weekdays, exactly one of them",
        ),
        Rule("!has(self.until) || !has(self.count)", "give spec.recurrence.until or spec.recurrence.count, not both"),
    )


class ReservationSpec(Part):
    """The nodes of a reservation, its windows of time, and who may use the nodes in them."""

    nodes: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    """A node set such as nid[001-064]: exactly these."""
    node_count: Annotated[int, Field(ge=1, le=16384)] | None = None
    """So many nodes, chosen once: those that are free first."""
    features: Annotated[list[Word], Field(max_length=32, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """With nodeCount: nodes that have all of these."""
    groups: Annotated[list[Word], Field(max_length=256, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """With nodeCount: nodes of any of these groups."""
    gpu_type: Word | None = None
    """With nodeCount: nodes with GPUs of this model."""
    start: Moment
    """Begin of the first window: RFC 3339, or local time of timeZone."""
    time_zone: Annotated[str, Field(pattern=pattern_of("timeZone"), max_length=64)] | None = None
    """IANA name such as Europe/Zurich, in which it recurs; default UTC."""
    duration: Duration
    """Length of each window in elapsed time, at most 366d."""
    recurrence: Recurrence | None = None
    """How it comes again; absent: once."""
    users: Annotated[list[User], Field(max_length=256, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """These users may use it, besides the tenants and vclusters below; nobody named at all: everybody."""
    tenants: Annotated[list[Name], Field(max_length=256, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Everybody of these tenants may use it."""
    vclusters: Annotated[list[Name], Field(max_length=64, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """All work of these vclusters may use it."""
    maintenance: bool = False
    """True: nobody may use it, the nodes stay empty."""
    ignore_running: bool = False
    """True: it may be made over work that runs into it; that work goes on to its end."""

    rules: ClassVar = (
        Rule("has(self.nodes) != has(self.nodeCount)", "give either spec.nodes or spec.nodeCount, exactly one of them"),
        Rule(
            f"has(self.nodeCount) || ({_absent('features')} && {_absent('groups')} && !has(self.gpuType))",
            "spec.features, spec.groups and spec.gpuType choose nodes for spec.nodeCount: leave them out beside spec.nodes",
        ),
        Rule(
            "has(self.timeZone) || self.start.matches('(Z|[+-][0-9]{2}:[0-9]{2})$')",
            "spec.start is a local time: set spec.timeZone, for example Europe/Zurich, or write an offset such as Z",
        ),
        Rule("self.duration.matches('[1-9]')", "spec.duration must be longer than nothing: write for example 4h"),
        Rule(
            f"!has(self.maintenance) || !self.maintenance || ({' && '.join(map(_absent, ('users', 'tenants', 'vclusters')))})",
            "spec.maintenance means that nobody may use it: leave spec.users, spec.tenants and spec.vclusters out",
        ),
        *(
            Rule(
                f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
                f"spec.{name} cannot be changed after creation: delete this reservation and make a new one",
            )
            for name in FIXED
        ),
    )


class ReservationStatus(Part):
    """The state of a reservation as the scheduler judges it: its nodes, its present or next window, and who asks for it."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of spec that was judged."""
    state: Annotated[str, Field(max_length=16)] = ""
    """Planned, Active, Ended or Impossible."""
    nodes: Annotated[str, Field(max_length=65536)] = ""
    """The nodes that it holds in its windows."""
    node_count: Annotated[int, Field(ge=0)] = 0
    """How many nodes it holds in its windows."""
    window_start: Time | None = None
    """Begin of the window that is open, or of the next one."""
    window_end: Time | None = None
    """End of that window."""
    allocations: Annotated[int, Field(ge=0)] = 0
    """Allocations that ask for it and have not ended."""
    conditions: Conditions = Field(default_factory=list)
    """The truth."""


class Reservation(Kind):
    """Nodes that are set aside in advance: for some people's work, or for maintenance."""

    meta: ClassVar = Meta(
        kind="Reservation",
        plural="reservations",
        short_names=("rsv",),
        namespaced=False,
        columns=(
            Column("State", ".status.state"),
            Column("Start", ".status.windowStart"),
            Column("End", ".status.windowEnd"),
            Column("Duration", ".spec.duration"),
            Column("Nodes", ".status.nodeCount", "integer"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("Maintenance", ".spec.maintenance", "boolean", priority=1),
            Column("Allocations", ".status.allocations", "integer", priority=1),
            Column("Where", ".status.nodes", priority=1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )
    kind: str = "Reservation"
    spec: ReservationSpec
    """Which nodes, when, and for whom."""
    status: ReservationStatus | None = None
    """What the scheduler made of it."""
