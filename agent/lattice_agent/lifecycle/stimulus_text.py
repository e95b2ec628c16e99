"""Writes and reads the stimulus log as JSON lines (docs/explanation/formats.md, stimulus log 2), without text of people or programs.

A header names the node; a checkpoint holds the machine's state; every other line is one event with its instructions. The machine decides
by keys, orders, times, exit codes and reasons. Sentences, and of a node's work everything but times, tasks and nodes, are left out:
they may quote commands, scripts and variables. Of a sentence its length stays, since the machine asks whether there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from lattice.errors import Corrupt
from lattice.formats import check_format
from lattice_agent.attempts import ExitRecord, Key, Known, NodeWork, Seen
from lattice_agent.lifecycle import events, instructions
from lattice_agent.lifecycle.attempt import Attempt, Stage
from lattice_agent.lifecycle.events import Event
from lattice_agent.lifecycle.instructions import Instruction
from lattice_agent.lifecycle.stimulus_log import Checkpoint, Segment, Stimulus

FORMAT = 2
_EVENTS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        events.PlanRead, events.PlanAbsent, events.TermsRead, events.Prepared, events.Refused, events.Vanished, events.Recalled,
        events.Started, events.Exited, events.Missed, events.Survived, events.Cleared, events.Directed, events.Tick,
    )
}  # fmt: skip
_INSTRUCTIONS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        instructions.Read, instructions.Prepare, instructions.Start, instructions.Terminate, instructions.Signal,
        instructions.Kill, instructions.Clear, instructions.Forget, instructions.Remember,
    )
}  # fmt: skip
_LENGTH = re.compile(r"[0-9]+ characters")


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a log: the node, the agent's version that wrote it, and one moment on two clocks.

    `written` is RFC 3339, `boottime` is CLOCK_BOOTTIME in seconds.
    """

    format: int
    node: str
    agent: str
    written: str
    boottime: float


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """A machine's state in a log; `first`: how many events came before it; `gap`: some of these are not in this text."""

    first: int
    checkpoint: Checkpoint
    gap: bool = False


Line = Header | CheckpointLine | Stimulus


def encode(header: Header, segments: Iterable[Segment]) -> bytes:
    """Returns the text of a stimulus log as JSON lines: the header, then each segment's checkpoint and events; `decode` reads it."""
    lines = [header_line(header)]
    for segment in segments:
        lines.append(checkpoint_line(CheckpointLine(segment.first, segment.checkpoint)))
        lines += map(stimulus_line, segment.stimuli)
    return b"".join(lines)


def header_line(header: Header) -> bytes:
    """Returns a log's header as one line of JSON, with the newline."""
    return msgspec.json.encode(header) + b"\n"


def checkpoint_line(line: CheckpointLine) -> bytes:
    """Returns a checkpoint of the machine as one line of JSON, with the newline."""
    point = line.checkpoint
    body = {
        "first": line.first, "gap": line.gap, "node": point.node, "seen": point.seen, "fresh": point.fresh,
        "ignoredPlans": point.ignored_plans, "attempts": [_attempt_body(attempt) for attempt in point.attempts],
        "finished": [_attempt_body(attempt) for attempt in point.finished],
    }  # fmt: skip
    return msgspec.json.encode({"checkpoint": body}) + b"\n"


def stimulus_line(stimulus: Stimulus) -> bytes:
    """Returns an event and its instructions as one line of JSON, with the newline."""
    event = without_sentences(stimulus.event)
    body = {
        "at": stimulus.boottime, "event": type(event).__name__, "with": event,
        "instructions": None if stimulus.instructions is None else [(type(one).__name__, one) for one in stimulus.instructions],
    }  # fmt: skip
    return msgspec.json.encode(body) + b"\n"


def decode(text: bytes, name: str) -> list[Line]:
    """Returns the lines of a stimulus log, header, checkpoints and events; leaves a torn last line out.

    Raises Corrupt, naming the file (`name`) and the line, for a text that is no stimulus log of this format.
    """
    found: list[Line] = []
    rows = text.split(b"\n")
    for number, row in enumerate(rows[:-1], start=1):  # behind the last line end stands nothing, or a line that is being written
        try:
            found.append(_line(row, first=not found))
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise Corrupt(f"{name}, line {number} is no line of a stimulus log: {error}", reason="StimulusLogUnreadable") from error
    if not found:
        raise Corrupt(f"{name} holds no stimulus log", reason="StimulusLogUnreadable")
    return found


def _line(row: bytes, *, first: bool) -> Line:
    """Returns one line of a log; `first`: it must be a header.

    Raises KeyError, TypeError or an error of msgspec where it is none, Corrupt for another format.
    """
    body = msgspec.json.decode(row)
    if first or "format" in body:
        check_format("stimulus log", str(body["format"]), FORMAT)
        return msgspec.convert(body, Header)
    if "checkpoint" in body:
        point = body["checkpoint"]
        parts = {part: tuple(_attempt(one) for one in point[part]) for part in ("attempts", "finished")}
        seen = msgspec.convert(point["seen"], Seen)
        return CheckpointLine(point["first"], Checkpoint(point["node"], seen, point["fresh"], point["ignoredPlans"], **parts), point["gap"])
    event: Event = msgspec.convert(body["with"], _EVENTS[body["event"]])
    ordered = body["instructions"]
    return Stimulus(body["at"], event, None if ordered is None else [_instruction(*one) for one in ordered])


def _instruction(name: str, body: Mapping[str, Any]) -> Instruction:
    """Returns the instruction of this name with these fields; raises KeyError for an unknown name."""
    found: Instruction = msgspec.convert(body, _INSTRUCTIONS[name])
    return found


def _attempt_body(attempt: Attempt) -> dict[str, Any]:
    """Returns an attempt as JSON, with its stage by name, since a stage's value is a sentence that may change."""
    body: dict[str, Any] = msgspec.to_builtins(replace(attempt, message=length_of(attempt.message)))
    return body | {"stage": attempt.stage.name, "outcome": attempt.outcome.name if attempt.outcome else None}


def _attempt(body: dict[str, Any]) -> Attempt:
    """Returns the attempt that `_attempt_body` has written; raises KeyError for an unknown stage."""
    outcome = body.get("outcome")
    return msgspec.convert(body | {"stage": Stage[body["stage"]].value, "outcome": Stage[outcome].value if outcome else None}, Attempt)


# ── what is left out ────────────────────────────────────────────────────────────────────────────────────────────────


def length_of(sentence: str) -> str:
    """Returns the text that stands for a sentence in the log, which tells its length only; an empty text or a substitute stays as it is."""
    if not sentence or _LENGTH.fullmatch(sentence):
        return sentence
    return f"{len(sentence)} characters"


def without_sentences(event: Event) -> Event:
    """Returns the event without sentences and commands that people or programs wrote; the machine decides the same by it. Namespace and
    name of an allocation stay.
    """
    match event:
        case events.Refused() | events.Vanished() | events.Survived():
            return replace(event, message=length_of(event.message))
        case events.Exited():
            return replace(event, record=_record(event.record))
        case events.Recalled():
            return events.Recalled(_known(event.known))
        case _:
            return event


def _record(record: ExitRecord | None) -> ExitRecord | None:
    """Returns an exit record without its sentence; None for None."""
    return replace(record, failure=length_of(record.failure)) if record is not None else None


def _known(known: Known) -> Known:
    """Returns what was known of an attempt without sentences and commands that people or programs wrote; namespace and name of its
    allocation stay.
    """
    return replace(known, work=_times_of(known.work) if known.work is not None else None, exit=_record(known.exit))


def _times_of(work: NodeWork) -> NodeWork:
    """Returns a copy of a node's work with key, number, namespace, name, nodes, ranks, tasks and times alone.

    User, tenant and job name are empty, and everything else that people wrote has its default.
    """
    return NodeWork(
        key=Key(*work.key), number=work.number, namespace=work.namespace, name=work.name, user="", tenant="", job_name="",
        nodes=work.nodes, node=work.node, rank_of_node=work.rank_of_node, head=work.head, tasks=work.tasks, first_rank=work.first_rank,
        total_tasks=work.total_tasks, grace_seconds=work.grace_seconds, walltime_seconds=work.walltime_seconds,
        epilogue_seconds=work.epilogue_seconds,
    )  # fmt: skip
