"""Carries out the steps of an attempt's prologue in order, and undoes them in reverse: after a stop, a failure, a restart, a reboot.

Each step is noted before it begins. A step that had begun when the agent was killed is undone before it begins again, so that no step
is ever repeated on top of a half of itself; to undo one twice does no more than once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from lattice.daemon.clock import Clock
from lattice.errors import Rejected
from lattice_agent.attempts import BroughtBytes, Key, NodeWork, StepProgress
from lattice_agent.host.threads import Threads, whole
from lattice_agent.state.step_journal import BEGUN, DONE, UNDOING, UNDONE, Note, StepJournal, following

Variables = Mapping[str, str]


async def nothing(_: Key) -> None:
    """Does nothing: the undo of a step that leaves nothing behind on the node."""


@dataclass(frozen=True)
class PrologueStep:
    """One step of the prologue: its name, the function that carries it out, and the one that undoes it; either may be interrupted.

    `lasting`: its effect outlives a reboot. `again`: a restarted agent carries out a finished step once more, which
    changes nothing; of any other finished step it reuses the noted variables. `wanted` tells whether the step applies to this work
    (None: to all work); it is undone in any case.
    """

    name: str
    carry_out: Callable[[NodeWork], Awaitable[Variables]]
    undo: Callable[[Key], Awaitable[None]] = nothing
    lasting: bool = False
    again: bool = False
    wanted: Callable[[NodeWork], bool] | None = None
    brought: Callable[[Key], BroughtBytes] | None = None
    """Returns how far the step is with what it brings now; None: it brings nothing."""


class StepObserver(Protocol):
    """Is told how steps end, so that they are counted; `AgentMetrics` is the implementation."""

    def step_ended(self, step: str, result: str, seconds: float) -> None:
        """Counts a step: done, refused, failed, interrupted; or its undoing: undone, unclean."""
        ...

    def prologue_ended(self, seconds: float) -> None:
        """Counts a whole prologue that was done."""
        ...


class Prologue:
    """Carries out and undoes the prologue's steps of a node's attempts, and notes each step in the journal before and after it."""

    def __init__(self, steps: Sequence[PrologueStep], notes: StepJournal, disk: Threads, clock: Clock) -> None:
        self.steps = tuple(steps)
        self._notes, self._disk, self._clock = notes, disk, clock
        self.observer: StepObserver | None = None
        self._progress: dict[Key, dict[str, StepProgress]] = {}
        """By attempt and name, the steps that this agent has seen begin and not be undone."""

    async def carry_out(self, work: NodeWork) -> dict[str, str]:
        """Carries out the steps of an attempt that are not done yet, in order; returns the variables that all of them give the work.

        A step that is half done is undone first, one with `again` is carried out even when done, one that is not `wanted` is passed over.
        Raises what a step raises.
        """
        begun = self._clock.monotonic()
        standing = await self._disk.call(self._notes.standing, work.key)
        variables: dict[str, str] = {}
        for step in self.steps:
            found = standing.get(step.name)
            if step.wanted is not None and not await self._disk.call(step.wanted, work):
                continue
            if found is None or found.state != DONE or step.again:
                found = await self._carry_out_one(step, work, half=found is not None and found.state != DONE)
            else:
                self._show(StepProgress(step.name, DONE), work.key)
            variables |= found.variables
        if self.observer is not None:
            self.observer.prologue_ended(self._clock.monotonic() - begun)
        return variables

    async def _carry_out_one(self, step: PrologueStep, work: NodeWork, *, half: bool) -> Note:
        """Carries out one step, noted before and after it, and returns the note; `half`: what an earlier try has left is undone first."""
        if half:
            await step.undo(work.key)
        await self._note(step, work.key, BEGUN)
        with self._counted(step.name, DONE, "failed"):
            variables = await step.carry_out(work)
        await self._note(step, work.key, DONE, variables)
        return Note(step.name, DONE, dict(variables))

    def progress(self, key: Key) -> list[StepProgress]:
        """Returns the progress of each step that this agent has begun, or found done, for an attempt, in order; not of undone ones."""
        shown = self._progress.get(key, {})
        return [_with_bytes(shown[step.name], step, key) for step in self.steps if step.name in shown]

    def _show(self, found: StepProgress, key: Key) -> None:
        """Keeps the progress of a step of an attempt in memory; an undone step is dropped."""
        shown = self._progress.setdefault(key, {})
        if found.state == UNDONE:
            shown.pop(found.name, None)
        else:
            shown[found.name] = found
        if not shown:
            del self._progress[key]

    def begun(self, key: Key) -> bool:
        """Tells whether any step of an attempt has begun and is not undone yet; reads the journal from disk."""
        return not self._notes.standing(key).keys().isdisjoint({step.name for step in self.steps})

    async def undo(self, key: Key) -> None:
        """Undoes every begun step of an attempt, the last one first; an error of a step is raised, and the next call repeats that step."""
        standing = await self._disk.call(self._notes.standing, key)
        for step in reversed(self.steps):
            if step.name in standing:
                await self._note(step, key, UNDOING)
                with self._counted(step.name, UNDONE, "unclean"):
                    await step.undo(key)
                await self._note(step, key, UNDONE)

    @contextmanager
    def _counted(self, step: str, good: str, bad: str) -> Iterator[None]:
        """Tells the observer how the block ends: `good`, refused (Rejected), interrupted (cancelled), else `bad`."""
        begun, result = self._clock.monotonic(), good
        try:
            yield
        except BaseException as error:
            result = "refused" if isinstance(error, Rejected) else bad if isinstance(error, Exception) else "interrupted"
            raise
        finally:
            if self.observer is not None:
                self.observer.step_ended(step, result, self._clock.monotonic() - begun)

    async def _note(self, step: PrologueStep, key: Key, state: str, variables: Variables | None = None) -> None:
        """Notes the state of a step in memory and in the journal; raises Retry where the disk does not take it."""
        now = self._clock.now()
        self._show(following(self._progress.get(key, {}).get(step.name), step.name, state, now), key)
        await whole(self._disk.call(self._notes.note, key, step.name, state, durable=step.lasting, variables=variables, at=now))


def _with_bytes(found: StepProgress, step: PrologueStep, key: Key) -> StepProgress:
    """Returns the progress of a step with the bytes that it has brought so far, and what keeps it; unchanged for a step that brings
    nothing, or is not under way.
    """
    if step.brought is None or found.state != BEGUN:
        return found
    far = step.brought(key)
    return replace(found, bytes=far.bytes, size=far.size, waits=far.waits, waits_since=far.waits_since)
