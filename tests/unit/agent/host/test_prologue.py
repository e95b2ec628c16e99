"""The prologue's list of steps: order, notes, interruption; killed between any two moments, what has begun is undone in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.daemon.clock import SystemClock
from lattice.errors import Rejected
from lattice_agent.attempts import BroughtBytes, Key, NodeWork
from lattice_agent.host.prologue import Prologue, PrologueStep
from lattice_agent.host.threads import Threads
from lattice_agent.state.journal import Journal
from lattice_agent.state.step_journal import STEPS, StepJournal
from tests.unit.agent.rows import key, work

NAMES = ("mounts", "scope", "hooks")


class Killed(Exception):
    """The process ends at this moment."""


class Effects:
    """What the steps have made on the machine, and the moment at which the process is killed."""

    def __init__(self, kill_at: int = -1) -> None:
        self.made: list[str] = []
        self.undone: list[str] = []
        self.runs: list[str] = []
        self.kill_at = kill_at

    def moment(self) -> None:
        """One moment between two writes, effects or notes."""
        self.kill_at -= 1
        if self.kill_at == -1:
            raise Killed

    def steps(self) -> tuple[PrologueStep, ...]:
        """Three steps, of which one may be carried out over itself, and the last one lasts."""
        return tuple(
            PrologueStep(name, self._maker(name), self._remover(name), lasting=name == "hooks", again=name == "scope") for name in NAMES
        )

    def _maker(self, name: str) -> Callable[[NodeWork], Awaitable[Mapping[str, str]]]:
        async def make(_: NodeWork) -> Mapping[str, str]:
            self.moment()
            self.runs.append(name)
            assert name not in self.made or name == "scope", f"{name} on top of itself"
            if name not in self.made:
                self.made.append(name)
            self.moment()
            return {f"FROM_{name}": "1"}

        return make

    def _remover(self, name: str) -> Callable[[Key], Awaitable[None]]:
        async def remove(_: Key) -> None:
            self.moment()
            if name in self.made:
                assert self.made[-1] == name, "undone out of order"
                self.made.remove(name)
                self.undone.append(name)
            self.moment()

        return remove


class DyingNotes(StepJournal):
    """Notes of a process that may be killed before and after each of them."""

    def __init__(self, journal: Journal, effects: Effects) -> None:
        super().__init__(journal)
        self._effects = effects

    def note(self, key: Key, step: str, state: str, *, durable: bool, variables: Mapping[str, str] | None = None, at: float = 0.0) -> None:
        self._effects.moment()
        super().note(key, step, state, durable=durable, variables=variables, at=at)
        self._effects.moment()


def journal_in(directory: Path) -> Journal:
    journal = Journal(directory / "state", directory / "run")
    journal.open()
    journal.write_journal(work(), "boot-1")
    return journal


def prologue(journal: Journal, effects: Effects) -> Prologue:
    return Prologue(effects.steps(), DyingNotes(journal, effects), Threads("the disk", count=1, within=120.0), SystemClock())


async def test_steps_run_in_order_give_variables_and_are_undone_in_reverse(tmp_path: Path) -> None:
    effects = Effects()
    steps = prologue(journal_in(tmp_path), effects)
    assert await steps.carry_out(work()) == {"FROM_mounts": "1", "FROM_scope": "1", "FROM_hooks": "1"}
    assert effects.made == list(NAMES)
    assert steps.begun(key())
    await steps.undo(key())
    assert effects.undone == ["hooks", "scope", "mounts"]
    assert not steps.begun(key())
    await steps.undo(key())
    assert effects.undone == ["hooks", "scope", "mounts"], "undone once"


async def test_each_moment_shows_the_steps_that_have_begun_with_the_bytes_that_stand(tmp_path: Path) -> None:
    seen: list[list[tuple[str, str, int, int]]] = []

    def shown() -> list[tuple[str, str, int, int]]:
        return [(one.name, one.state, one.bytes, one.size) for one in steps.progress(key())]

    async def bring(_: NodeWork) -> Mapping[str, str]:
        seen.append(shown())
        return {}

    async def leave(_: Key) -> None:
        seen.append(shown())

    images = PrologueStep("images", bring, leave, brought=lambda _: BroughtBytes(3, 10))
    journal = journal_in(tmp_path)
    steps = Prologue(
        [PrologueStep("scope", bring, leave), images], StepJournal(journal), Threads("the disk", count=1, within=120.0), SystemClock()
    )
    assert shown() == []
    await steps.carry_out(work())
    assert shown() == [("scope", "done", 0, 0), ("images", "done", 0, 0)]
    follower = Prologue(steps.steps, StepJournal(journal), Threads("the disk", count=1, within=120.0), SystemClock())
    await follower.carry_out(work())
    assert [one.state for one in follower.progress(key())] == ["done", "done"], "what an earlier agent has done is shown, too"
    await steps.undo(key())
    assert seen == [
        [("scope", "begun", 0, 0)],
        [("scope", "done", 0, 0), ("images", "begun", 3, 10)],
        [("scope", "done", 0, 0), ("images", "undoing", 0, 0)],
        [("scope", "undoing", 0, 0)],
    ]
    assert shown() == []


async def test_an_agent_that_follows_does_not_repeat_what_is_done_once_and_keeps_its_variables(tmp_path: Path) -> None:
    journal, effects = journal_in(tmp_path), Effects()
    await prologue(journal, effects).carry_out(work())
    assert (await prologue(journal, effects).carry_out(work()))["FROM_hooks"] == "1"
    assert effects.runs == [*NAMES, "scope"]


async def test_a_step_that_is_interrupted_is_undone_and_nothing_is_noted_after_that(tmp_path: Path) -> None:
    begun = asyncio.Event()
    undone: list[str] = []

    async def hang(_: NodeWork) -> Mapping[str, str]:
        begun.set()
        await asyncio.Event().wait()
        return {}

    async def undo(_: Key) -> None:
        undone.append("hang")

    journal = journal_in(tmp_path)
    steps = Prologue([PrologueStep("hang", hang, undo)], StepJournal(journal), Threads("the disk", count=1, within=120.0), SystemClock())
    call = asyncio.get_running_loop().create_task(steps.carry_out(work()))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await steps.undo(key())
    assert undone == ["hang"]
    assert not steps.begun(key())


async def test_a_step_that_is_refused_leaves_the_later_ones_alone(tmp_path: Path) -> None:
    effects = Effects()

    async def refuse(_: NodeWork) -> Mapping[str, str]:
        raise Rejected("no", reason="PrologueFailed")

    first, _, last = effects.steps()
    steps = Prologue(
        [first, PrologueStep("refused", refuse), last],
        StepJournal(journal_in(tmp_path)),
        Threads("d", count=1, within=120.0),
        SystemClock(),
    )
    with pytest.raises(Rejected):
        await steps.carry_out(work())
    assert effects.made == ["mounts"]
    await steps.undo(key())
    assert effects.undone == ["mounts"]


async def test_a_reboot_leaves_the_notes_of_what_lasts(tmp_path: Path) -> None:
    journal, effects = journal_in(tmp_path), Effects()
    await prologue(journal, effects).carry_out(work())
    (journal.run_directory(key()) / STEPS).unlink()
    effects.made = ["hooks"]
    await prologue(journal, effects).undo(key())
    assert effects.undone == ["hooks"]


def test_a_torn_line_is_no_note_and_hides_none_that_follows(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    notes = StepJournal(journal)
    notes.note(key(), "scope", "begun", durable=False)
    path = journal.run_directory(key()) / STEPS
    path.write_bytes(path.read_bytes() + b'{"step":"sco')
    notes.note(key(), "mounts", "begun", durable=False)
    assert set(notes.standing(key())) == {"scope", "mounts"}


@settings(max_examples=120, deadline=None)
@given(kills=st.lists(st.integers(0, 24), max_size=4), prepares=st.booleans())
def test_killed_between_any_two_moments_nothing_is_left_and_no_step_stands_on_a_half_of_itself(kills: list[int], prepares: bool) -> None:
    with TemporaryDirectory() as directory:
        journal, effects = journal_in(Path(directory)), Effects()

        async def live(kill_at: int, *, undo: bool) -> bool:
            """One process of the agent, killed at that moment (-1: never). Tells whether it came to its end."""
            effects.kill_at = kill_at
            steps = prologue(journal, effects)
            try:
                await (steps.undo(key()) if undo else steps.carry_out(work()))
            except Killed:
                return False
            return True

        async def story() -> None:
            for number, kill_at in enumerate(kills):
                await live(kill_at, undo=number % 2 == 1)
            if prepares:
                await live(-1, undo=True)
                await live(-1, undo=False)
                assert effects.made == list(NAMES)
            await live(-1, undo=True)

        asyncio.run(story())
        assert effects.made == []
        assert not prologue(journal, effects).begun(key())
