"""Decides the reporter's one change of an Allocation's status, of the fields that a reporter may write; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from lattice.lifecycle.conditions import FALSE, TRUE, condition, encode, is_true, with_condition
from lattice.lifecycle.settle import may_requeue, requeue_asked, settle
from lattice.models.conditions import FINISHED, STAGED, STARTED, UNKILLABLE
from lattice.units import format_time, parse_time
from lattice.views.allocation import Condition
from lattice.views.work import Work
from lattice_agent.attempts import Key, ResourceUse
from lattice_agent.reporter.head import Begun, Over, Surviving, Verdict


@dataclass(frozen=True, slots=True)
class Write:
    """The outcome that the status is to be changed by this merge patch; `settles`: it holds the attempt's end."""

    status: dict[str, Any]
    settles: bool


@dataclass(frozen=True, slots=True)
class Later:
    """The outcome that the scheduler has not yet written what the report builds on: check again soon."""

    why: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """The outcome that the status already shows the verdict."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The outcome that nothing is left to report: the end is written already, or the attempt is not the current one."""

    why: str


Outcome = Write | Later | Nothing | Closed


def decide(work: Work, key: Key, node: str, verdict: Verdict, *, now: float, hollow: bool = False) -> Outcome:
    """Returns the outcome of a verdict on an attempt, for the reporter on `node`: a change to write, or nothing where the status shows it,
    or none is due.

    Closed where the object is another one, a later attempt has followed, or Finished is written; Later while the status shows an earlier
    attempt or another reporter. `now` in seconds since the epoch; `hollow`: the status says so.
    """
    status = work.status
    if work.metadata.uid != key.uid:
        return Closed(f"{work.metadata.key} is another object now")
    if status.attempt > key.attempt:
        return Closed(f"attempt {status.attempt} has followed")
    if status.attempt < key.attempt:
        return Later(f"the status shows attempt {status.attempt}")
    if is_true(status.conditions, FINISHED):
        return Closed("Finished is written")
    if status.reporter != node:
        return Later(f"the status names {status.reporter or 'nobody'} as reporter")
    match verdict:
        case Begun() if not is_true(status.conditions, STARTED):
            return Write(_change(work, key, node, verdict, now, hollow), settles=False)
        case Surviving() if not _shows(status.conditions, verdict):
            return Write(_change(work, key, node, verdict, now, hollow), settles=False)
        case Over():
            return Write(_change(work, key, node, verdict, now, hollow), settles=True)
        case _:
            return Nothing()


def _shows(conditions: tuple[Condition, ...], verdict: Surviving) -> bool:
    """Tells whether the conditions show these surviving processes already."""
    finished = condition(conditions, FINISHED)
    return finished is not None and (finished.reason, finished.message) == (UNKILLABLE, verdict.message)


def _change(work: Work, key: Key, node: str, verdict: Begun | Surviving | Over, now: float, hollow: bool) -> dict[str, Any]:
    """Returns the merge patch of the status for a verdict: conditions, phase, times, exit, and which node reports.

    Started is set once all nodes had begun, no earlier than the nodes were given; Finished and the end only for `Over`, the exit only
    where it is known. `hollow`: the status says so.
    """
    status, at, generation = work.status, format_time(now), work.metadata.generation
    change: dict[str, Any] = {"report": {"attempt": key.attempt, "by": node}, "observedGeneration": generation}
    conditions = status.conditions
    begun = isinstance(verdict, Begun) or verdict.begun
    if begun and not is_true(conditions, STARTED):
        nodes = verdict.nodes if isinstance(verdict, Begun) else status.node_count
        message = f"all of its {nodes} nodes have started" if nodes != 1 else f"node {status.head or node} has started"
        conditions = with_condition(conditions, STARTED, TRUE, "TasksStarted", message, generation=generation, now=at)
        if status.software and not hollow:
            conditions = with_condition(conditions, STAGED, TRUE, "SoftwareStaged", _brought(work), generation=generation, now=at)
        elif condition(conditions, STAGED) is not None:
            conditions = with_condition(conditions, STAGED, TRUE, "NodesPrepared", message, generation=generation, now=at)
    if verdict.start and not status.start_time:
        change["startTime"] = format_time(max(verdict.start, _moment(status.scheduled_time)))
    again = False
    if isinstance(verdict, Surviving):
        conditions = with_condition(conditions, FINISHED, FALSE, UNKILLABLE, verdict.message, generation=generation, now=at)
    if isinstance(verdict, Over):
        conditions = with_condition(conditions, FINISHED, TRUE, verdict.reason, verdict.message, generation=generation, now=at)
        again = may_requeue(
            work.spec.lifecycle, verdict.reason, status.requeues, cancelled=work.spec.cancel is not None,
            asked=requeue_asked(work.spec.requeue_attempt, key.attempt), sensitive=work.spec.sensitive,
        )  # fmt: skip
        begun_at = _moment(change.get("startTime") or status.start_time or status.scheduled_time)
        change["endTime"] = format_time(max(verdict.end or now, begun_at))
        if verdict.node:
            change["report"]["failed"] = verdict.node
        if verdict.exit_known:
            change["exit"] = _exit(verdict)
        if verdict.launches is not None:
            change["launches"] = msgspec.to_builtins(verdict.launches)
    settled = settle(
        conditions, lifecycle_type=work.spec.lifecycle.type, may_requeue=again, generation=generation, now=at, phase_before=status.phase
    )
    change |= {"conditions": encode(settled.conditions), "phase": settled.phase}
    if hollow:
        change["hollow"] = True
    return change


def _brought(work: Work) -> str:
    """Returns the sentence that every node of the attempt has the images of the site's registry that the work asks for."""
    count, nodes = len(work.status.software), work.status.node_count
    size = sum(image.size for image in work.status.software)
    shown = f"{size / (1 << 20):.1f}Mi"
    images = f"image of {shown}" if count == 1 else f"{count} images of {shown} in all"
    return f"each of its {nodes} nodes has its {images}" if nodes > 1 else f"node {work.status.head} has its {images}"


def _moment(text: str | None) -> float:
    """Returns a time in seconds since the epoch; 0 for none."""
    return parse_time(text) if text else 0.0


def _exit(over: Over) -> dict[str, Any]:
    """Returns the field `status.exit`: the first failure's code, or 0, and the used resources."""
    used = _used(over.use)
    if over.failure is None:
        return {"code": 0, "signal": 0} | used
    task = over.failure.task
    return {"code": task.code, "signal": task.signal, "node": over.failure.node, "rank": task.rank} | used


def _used(use: ResourceUse) -> dict[str, Any]:
    """Returns the fields of `status.exit` that show used resources, without those of which nothing is known."""
    known = {
        "cpuSeconds": f"{round(use.cpu_seconds * 1000)}m" if use.cpu_seconds else None,
        "peakMemory": f"{use.peak_memory >> 10}Ki" if use.peak_memory else None,
        "oomKills": use.oom_kills or None,
    }
    return {name: value for name, value in known.items() if value is not None}
