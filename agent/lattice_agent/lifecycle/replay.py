"""Replays a stimulus log: a fresh machine receives every event at its recorded time, and must give the recorded instructions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lattice_agent.lifecycle.instructions import Instruction
from lattice_agent.lifecycle.machine import Lifecycle
from lattice_agent.lifecycle.stimulus_log import Stimulus
from lattice_agent.lifecycle.stimulus_text import CheckpointLine, Header, Line, checkpoint_line, header_line, stimulus_line


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the log beside the line that the fresh machine produces, both as bytes with the line's end."""

    line: Line
    recorded: bytes
    replayed: bytes
    instructions: Sequence[Instruction] = ()
    flaw: str = ""
    """A sentence on an invariant that is broken after the event; empty: all hold."""

    @property
    def same(self) -> bool:
        """Tells whether the fresh machine decided as recorded and no invariant is broken after the event (`flaw` is empty).

        An event whose handling was not recorded to its end is not compared; only its flaw counts.
        """
        if isinstance(self.line, Stimulus) and self.line.instructions is None:
            return not self.flaw
        return self.recorded == self.replayed and not self.flaw


def replay(lines: Iterable[Line]) -> Iterator[Step]:
    """Replays the lines of a log on a fresh machine and yields a step for each, in order; passes on what the machine raises over an event.

    A checkpoint is compared with the machine so far; the first one, one behind a gap, and one after a header (of a process that
    continued the file) starts a new machine. An event before any checkpoint yields no step.
    """
    machine: Lifecycle | None = None
    for line in lines:
        match line:
            case Header():
                machine = None  # a file that was continued by another process
                yield Step(line, header_line(line), header_line(line))
            case CheckpointLine():
                found = line
                if machine is not None and not line.gap:
                    found = replace(line, checkpoint=machine.checkpoint())
                yield Step(line, checkpoint_line(line), checkpoint_line(found))
                machine = Lifecycle.resumed(line.checkpoint)
            case Stimulus() if machine is not None:
                ordered = machine.handle(line.event, line.boottime)
                again = Stimulus(line.boottime, line.event, ordered)
                yield Step(line, stimulus_line(line), stimulus_line(again), ordered, machine.flaw())
            case Stimulus():
                pass  # an event without a checkpoint before it: nothing is known of the machine that it came to
