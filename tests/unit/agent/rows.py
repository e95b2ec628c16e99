"""Short builders of what the agent's machines take."""

from __future__ import annotations

from typing import Any

from lattice.ledger.plans import PlanRow
from lattice_agent.attempts import ExitRecord, Key, Known, NodeWork, Running, TaskExit
from lattice_agent.lifecycle.events import WorkTerms
from lattice_agent.members import Member, Phase, TaskEnd
from tests.build import uid


def key(number: int = 1, attempt: int = 1) -> Key:
    return Key(uid(number), attempt)


def run(
    number: int = 1,
    attempt: int = 1,
    *,
    nodes: tuple[str, ...] = ("n1",),
    generation: int = 1,
    reporter: str = "",
    walltime: int | None = None,
) -> PlanRow:
    who = reporter or nodes[0]
    name = f"job-{number}"
    return PlanRow(
        "run", "", uid(number), attempt, generation, 40 + number, who, f"{who}:50052", "physics", name, nodes[0], nodes, walltime
    )


def stop(number: int = 1, attempt: int = 1, *, nodes: tuple[str, ...] = ("n1",), cause: str = "c") -> PlanRow:
    name = f"job-{number}"
    return PlanRow("stop", cause, uid(number), attempt, 1, 40 + number, nodes[0], f"{nodes[0]}:50052", "physics", name, nodes[0], nodes)


def terms(**fields: Any) -> WorkTerms:
    return WorkTerms(**{"generation": 1, "grace_seconds": 30.0, "walltime_seconds": 100.0} | fields)


def running(started: float = 1000.0, boottime: float = 10.0) -> Running:
    return Running(77, 5, started, boottime)


def record(number: int = 1, attempt: int = 1, *codes: int, end: float = 1050.0, failure: str = "", reason: str = "") -> ExitRecord:
    tasks = tuple(TaskExit(rank, 80 + rank, code, code - 128 if code > 128 else 0, 1000.0, end + rank) for rank, code in enumerate(codes))
    return ExitRecord(uid(number), attempt, "boot-1", tasks, end, failure, reason=reason)


def work(number: int = 1, attempt: int = 1, **fields: Any) -> NodeWork:
    given: dict[str, Any] = {
        "key": key(number, attempt), "number": 41, "namespace": "physics", "name": f"job-{number}", "user": "alice", "tenant": "physics",
        "job_name": f"job-{number}", "nodes": ("n1",), "node": "n1", "rank_of_node": 0, "head": "n1", "tasks": 1, "first_rank": 0,
        "total_tasks": 1, "entrypoint": "true", "walltime_seconds": 100.0,
    }  # fmt: skip
    return NodeWork(**given | fields)


def known(number: int = 1, attempt: int = 1, **fields: Any) -> Known:
    given: dict[str, Any] = {
        "key": key(number, attempt), "work": work(number, attempt), "running": running(), "alive": False, "exit": None,
        "boot_matches": True, "populated": False,
    }  # fmt: skip
    return Known(**given | fields)


def member(node: str, phase: Phase, *exits: TaskEnd, number: int = 1, **fields: Any) -> Member:
    return Member(key(number), node, 1, phase, exits=exits, **fields)
