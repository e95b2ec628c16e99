"""What tests of every room ask of a machine that kept its stimuli: written down, read and replayed, it decides the same."""

from __future__ import annotations

from lattice_agent.lifecycle.replay import replay
from lattice_agent.lifecycle.stimulus_log import StimulusLog
from lattice_agent.lifecycle.stimulus_text import Header, decode, encode

HEADER = Header(2, "n1", "0.0", "2026-01-01T00:00:00Z", 1.0)


def assert_replays(stimuli: StimulusLog) -> bytes:
    """The text of the log, which a fresh machine leads to again byte for byte."""
    text = encode(HEADER, stimuli.segments())
    steps = list(replay(decode(text, "the log")))
    assert [(step.recorded, step.replayed) for step in steps if not step.same] == []
    assert b"".join(step.recorded for step in steps) == text
    assert b"".join(step.replayed for step in steps) == text
    return text
