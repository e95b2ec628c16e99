"""The stimulus log: bounded, free of what people wrote, and replayed byte for byte."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from lattice.errors import Corrupt
from lattice_agent.attempts import Ordered, Seen
from lattice_agent.lifecycle.attempt import Stage
from lattice_agent.lifecycle.events import (
    Cleared,
    Directed,
    Event,
    Exited,
    Missed,
    PlanAbsent,
    PlanRead,
    Prepared,
    Recalled,
    Refused,
    Started,
    Survived,
    TermsRead,
    Tick,
    Vanished,
)  # fmt: skip
from lattice_agent.lifecycle.machine import Lifecycle
from lattice_agent.lifecycle.replay import replay
from lattice_agent.lifecycle.stimulus_log import StimulusLog
from lattice_agent.lifecycle.stimulus_text import CheckpointLine, checkpoint_line, decode, encode, stimulus_line
from lattice_agent.members import Direction, Order
from tests.unit.agent.lifecycle.story import HEADER, assert_replays
from tests.unit.agent.rows import key, known, record, run, running, stop, terms, work

GOLDEN = Path(__file__).parents[3] / "unit" / "formats" / "stimulus-log-2"
BEFORE = GOLDEN.with_name("stimulus-log-1")
"""Of an agent that knew no epilogue: it is read, and decided otherwise from the first end on."""
MARK = "hunter2"


def recorded(*events: Event, limit: int = 1000, found: tuple[object, ...] = ()) -> Lifecycle:
    node = Lifecycle("n1", seen=Seen(1), known=found, stimuli=StimulusLog(limit))  # type: ignore[arg-type]
    for at, event in enumerate(events, start=10):
        node.handle(event, float(at))
    return node


def kept(node: Lifecycle) -> StimulusLog:
    """The log that `recorded` gave the machine."""
    assert isinstance(node.stimuli, StimulusLog)
    return node.stimuli


def life(number: int, seq: int) -> list[Event]:
    """One attempt, from its row to the plan that settles it."""
    at = key(number)
    return [
        PlanRead(seq, (run(number),), epoch=1, term="t"), TermsRead(at, terms()), Prepared(at), Directed(at, Direction(Order.START)),
        Started(at, running()), Tick(), Exited(at, record(number, 1, 0)), Directed(at, Direction(Order.WAIT, settled=True)),
        PlanRead(seq + 1, (), epoch=1, term="t"),
    ]  # fmt: skip


def every_kind() -> list[Event]:
    """At least one event of each kind, with a sentence wherever there is room for one."""
    sentence = f"'run --password {MARK}' cannot be executed; it is not in PATH=/opt/{MARK}"
    secret_work = dataclasses.replace(
        work(3), script=f"#!/bin/sh\nexport TOKEN={MARK}\n", entrypoint=MARK, variables={"TOKEN": MARK}, workdir=f"/{MARK}",
        stdout=MARK, stderr=MARK, user=MARK, account=MARK, job_name=MARK, tenant=MARK, project=MARK,
    )  # fmt: skip
    ended = record(3, 1, failure=sentence)
    return [
        PlanAbsent(), PlanRead(2, (run(1), run(2), run(3), run(4))), *(TermsRead(key(number), terms()) for number in (1, 2, 3, 4)),
        Prepared(key(1)), Directed(key(1), Direction(Order.START)), Started(key(1), running()), PlanRead(3, (stop(1), run(2), run(3), run(4))),
        Missed(key(1)), Survived(key(1), sentence), Tick(), Exited(key(1), record(1, 1, failure=sentence)), Tick(),
        Cleared(key(1)), Refused(key(2), "StartFailed", sentence), Tick(), Cleared(key(2)), Recalled(known(3, work=secret_work, exit=ended, ordered=Ordered("stop", 3.0))), Tick(),
        Vanished(key(4), sentence), Exited(key(4), None), Cleared(key(4)), PlanRead(4, (run(5),)), TermsRead(key(5), terms()),
        Refused(key(5), "PrologueFailed", sentence),
    ]  # fmt: skip


def test_a_node_that_lived_through_every_kind_of_event_replays_byte_for_byte() -> None:
    node = recorded(*every_kind())
    assert {type(event) for event in every_kind()} == {
        PlanRead,
        PlanAbsent,
        TermsRead,
        Prepared,
        Refused,
        Vanished,
        Recalled,
        Started,
        Exited,
        Cleared,
        Missed,
        Survived,
        Directed,
        Tick,
    }
    assert Stage.EPILOGUE in {attempt.stage for attempt in node.attempts.values()}
    assert node.stimuli is not None
    assert_replays(node.stimuli)


def test_no_command_script_variable_or_sentence_stands_in_the_log() -> None:
    found = (known(5, work=dataclasses.replace(work(5), script=MARK, variables={"A": MARK}), exit=record(5, 1, failure=MARK)),)
    node = recorded(*every_kind(), limit=4, found=found)
    assert node.stimuli is not None
    text = assert_replays(node.stimuli)
    assert MARK.encode() not in text
    assert b"characters" in text, "a sentence's length stays"
    assert MARK.encode() not in encode(HEADER, kept(recorded(*every_kind(), found=found)).segments())


def test_work_is_written_by_a_list_of_what_may_stand_there_so_that_a_new_field_is_left_out() -> None:
    event = Recalled(known(work=work(script=MARK, variables={"A": MARK}, entrypoint=MARK, workdir=MARK)))
    text = encode(HEADER, kept(recorded(event)).segments())
    body = msgspec.json.decode(text.splitlines()[-1])["with"]["known"]["work"]
    body |= body.pop("asked")
    written = {name for name, value in body.items() if value not in ("", None, {}, [], 0, 0.0, False)}
    defaults = {
        "grace_seconds",
        "hook_seconds",
        "epilogue_seconds",
        "min_uid",
        "open_files",
        "log_bytes",
        "default_views",
        "user_files",
        "pull_seconds",
    }
    assert written <= defaults | {
        "key", "number", "namespace", "name", "nodes", "node", "head", "tasks", "total_tasks", "walltime_seconds"
    }  # fmt: skip


@pytest.mark.parametrize("limit", [1, 2, 7, 20])
def test_however_much_has_gone_the_rest_replays_and_is_bounded(limit: int) -> None:
    events = [event for number in range(1, 9) for event in life(number, 2 * number)]
    node = recorded(*events, limit=limit)
    assert node.stimuli is not None
    segments = node.stimuli.segments()
    kept = sum(len(segment.stimuli) for segment in segments)
    assert limit // 2 <= kept <= max(2, limit)
    assert segments[-1].first + len(segments[-1].stimuli) == len(events)
    assert_replays(node.stimuli)


def test_an_order_that_another_machine_would_not_give_is_found() -> None:
    text = encode(HEADER, kept(recorded(*life(1, 2))).segments())
    forged = text.replace(b'["Start"', b'["Kill"', 1)
    assert forged != text
    wrong = [step for step in replay(decode(forged, "forged")) if not step.same]
    assert len(wrong) == 1
    assert b'["Kill"' in wrong[0].recorded
    assert b'["Start"' in wrong[0].replayed


def test_a_state_that_another_machine_would_not_reach_is_found_at_the_next_checkpoint() -> None:
    lines = encode(HEADER, kept(recorded(*life(1, 2), *life(2, 4), limit=20)).segments()).splitlines(keepends=True)
    points = [number for number, line in enumerate(lines) if line.startswith(b'{"checkpoint"')]
    assert len(points) == 2
    lines[points[1]] = lines[points[1]].replace(b'"ignoredPlans":0', b'"ignoredPlans":3')
    assert [step.same for step in replay(decode(b"".join(lines), "forged"))].count(False) == 1


def test_behind_a_gap_the_machine_begins_anew() -> None:
    first, second = recorded(*life(1, 2)), recorded(*life(2, 9))
    assert first.stimuli is not None
    assert second.stimuli is not None
    (later,) = second.stimuli.segments()
    text = encode(HEADER, first.stimuli.segments()) + checkpoint_line(CheckpointLine(40, later.checkpoint, gap=True))
    text += b"".join(map(stimulus_line, later.stimuli))
    assert all(step.same for step in replay(decode(text, "two")))


def test_an_event_that_was_not_handled_to_its_end_is_in_the_log_and_compared_with_nothing() -> None:
    node = recorded(*life(1, 2)[:3])
    assert node.stimuli is not None
    node.stimuli.append(Tick(), 99.0, node.checkpoint)
    last = list(replay(decode(encode(HEADER, node.stimuli.segments()), "cut")))[-1]
    assert last.same
    assert last.recorded != last.replayed


def test_a_torn_last_line_is_left_out_and_one_in_between_is_named() -> None:
    text = encode(HEADER, kept(recorded(*life(1, 2))).segments())
    assert len(decode(text[:-5], "torn")) == len(decode(text, "whole")) - 1
    with pytest.raises(Corrupt, match="torn, line 3 is no line of a stimulus log"):
        decode(text.replace(b'"event"', b'"evt"', 1), "torn")


@pytest.mark.parametrize(
    ("text", "why"), [(b"", "holds no stimulus log"), (b"hello\n", "line 1"), (b'{"format":7}\n', "of format '7'"), (b"[]\n", "line 1")]
)
def test_what_is_no_stimulus_log_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode(text, "FILE")


def test_the_golden_text_is_read_and_decided_as_it_was() -> None:
    text = GOLDEN.read_bytes()
    assert all(step.same for step in replay(decode(text, "golden")))
    assert decode(text, "golden")[0] == HEADER


def test_the_text_of_the_agent_before_is_read() -> None:
    lines = decode(BEFORE.read_bytes(), "golden")
    assert lines[0] == dataclasses.replace(HEADER, format=1)
    assert list(replay(lines))
