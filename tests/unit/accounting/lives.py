"""Random lives of allocations, each step written as the scheduler's projector and the reporter's agent write it, and an independent sum."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from lattice.kube import patches
from lattice.ledger import projection
from lattice.ledger.format import Row
from lattice.ledger.steps import End, Retry
from lattice.lifecycle.conditions import TRUE, encode, with_condition
from lattice.lifecycle.settle import settle
from lattice.models import conditions as kinds
from lattice.units import format_time
from lattice.views.allocation import Allocation, Exit
from tests.build import uid

GPUS = (0, 4)
"""Of a node with an even and an odd index."""


@dataclass
class Life:
    """One allocation; `node_seconds` and `gpu_seconds` are added up here, apart from all that is tested."""

    number: int
    tenant: str
    user: str
    project: str
    roll: Random
    obj: dict[str, Any] = field(init=False)
    node_seconds: int = 0
    gpu_seconds: int = 0
    attempts: int = 0
    cancelled: bool = False
    """It ended without nodes."""

    def __post_init__(self) -> None:
        self.obj = {
            "metadata": {"name": f"job-{self.number}", "namespace": self.tenant, "uid": uid(self.number), "resourceVersion": "1",
                         "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["lattice.dev/release"]},
            "spec": {"tenant": self.tenant, "user": self.user, "project": self.project, "vcluster": "hpc"},
        }  # fmt: skip

    @property
    def view(self) -> Allocation:
        """The object as daemons read it."""
        return msgspec.convert(self.obj, Allocation)

    def write(self, patch: dict[str, Any]) -> None:
        """What the server makes of a patch."""
        self.obj = patches.merge(self.obj, {key: value for key, value in patch.items() if key != "metadata"})

    def attempt(self, begin: int, end: int, *, again: bool, started: bool = True) -> None:
        """An attempt from its placement to its end: requeued, or the last one."""
        nodes = tuple(sorted(self.roll.sample(range(64), self.roll.randint(1, 8))))
        gpus = sum(GPUS[node % 2] for node in nodes)
        number = max(1, self.view.status.attempt)
        row = Row(uid(self.number), number, 1, self.user, self.tenant, "hpc", "B", "h", nodes[0], nodes)
        names = {node: f"nid{node:03d}" for node in nodes}
        self.write(projection.placed(self.view, row, names, number=self.number, seq=1, now=begin + self.roll.random(), gpus=gpus))
        if started:
            self.write(self._reported(begin, end, again))
        if again:
            self.write(projection.retried(self.view, Retry("NodeLost", "", None, True), number=self.number, seq=1, now=end))
        elif not started:
            self.write(projection.ended(self.view, End("Cancelled", ""), number=self.number, seq=1, now=end))
        self.node_seconds += len(nodes) * (end - begin)
        self.gpu_seconds += gpus * (end - begin)
        self.attempts += 1

    def cancel(self, at: int) -> None:
        """It ends without nodes."""
        self.write(projection.ended(self.view, End("Cancelled", ""), number=self.number, seq=1, now=at))
        self.cancelled = True

    def again(self, number: int) -> Life:
        """The same life of another allocation."""
        other = Life(number, self.tenant, self.user, self.project, self.roll)
        other.obj = {**self.obj, "metadata": {**self.obj["metadata"], "name": f"job-{number}", "uid": uid(number)}}
        other.node_seconds, other.gpu_seconds, other.attempts = self.node_seconds, self.gpu_seconds, self.attempts
        other.cancelled = self.cancelled
        return other

    def _reported(self, begin: int, end: int, again: bool) -> dict[str, Any]:
        """The reporter's one patch of the end."""
        status = self.view.status
        reason = "Lost" if again else self.roll.choice(("Completed", "TaskFailed"))
        conditions = with_condition(status.conditions, kinds.STARTED, TRUE, "Started", "", generation=1, now=format_time(begin))
        conditions = with_condition(conditions, kinds.FINISHED, TRUE, reason, "", generation=1, now=format_time(end))
        settled = settle(
            conditions, lifecycle_type="Bounded", may_requeue=again, generation=1, now=format_time(end), phase_before="Running"
        )
        code = 0 if reason == "Completed" else 1
        return {
            "status": {
                "startTime": format_time(min(begin + 1, end)), "endTime": format_time(end), "phase": settled.phase,
                "conditions": encode(settled.conditions), "exit": msgspec.to_builtins(Exit(code=code, node="nid000")),
                "report": {"attempt": status.attempt, "by": status.reporter},
            }
        }  # fmt: skip


def live(number: int, roll: Random, start: int, *, most: int = 14) -> Life:
    """A whole random life: requeues, cancels while pending, never placed."""
    life = Life(number, roll.choice(("physics", "ml-team")), roll.choice(("alice", "bob")), roll.choice(("", "lhc")), roll)
    now, kind = start, roll.random()
    requeues = 0 if kind < 0.6 else roll.randint(1, 3) if kind < 0.95 else roll.randint(9, most)
    for _ in range(requeues):
        begin = now + roll.randint(0, 900)
        now = begin + roll.randint(0, 7200)
        life.attempt(begin, now, again=True, started=roll.random() < 0.9)
    if roll.random() < 0.1:
        life.cancel(now + 5)
    else:
        begin = now + roll.randint(0, 900)
        life.attempt(begin, begin + roll.randint(0, 7200), again=False, started=roll.random() < 0.95)
    return life
