"""How the state machine ends work, by its walltime or otherwise, and what it tells of the end."""

from __future__ import annotations

import pytest

from lattice_agent.attempts import EarlySignal, Ordered, Seen
from lattice_agent.lifecycle.events import (
    Directed,
    Exited,
    Missed,
    PlanRead,
    Prepared,
    Started,
    Survived,
    TermsRead,
    Tick,
)
from lattice_agent.lifecycle.instructions import Kill, Read, Remember, Signal, Terminate
from lattice_agent.members import Direction, Order, Phase
from tests.unit.agent.lifecycle.machines import START, feed, machine, started, states
from tests.unit.agent.rows import key, known, record, run, running, stop, terms


def test_walltime_is_term_then_grace_then_kill_and_stays_walltime_whatever_the_exit() -> None:
    node = machine()
    started(node)
    assert node.deadline() == 110.0
    assert feed(node, Tick(), boottime=109.9) == []
    assert feed(node, Tick(), boottime=110.0) == [Terminate(key(), Ordered("walltime", 110.0))]
    assert states(node) == ["t"]
    assert feed(node, Tick(), boottime=139.9) == []
    assert feed(node, Tick(), boottime=140.0) == [Kill(key())]
    feed(node, Exited(key(), record(1, 1, 0, end=1130.0)), boottime=140.0)
    told = node.member(key())
    assert told is not None
    assert (told.phase, told.walltime, states(node)) == (Phase.GONE, True, ["e0"])


def test_work_that_ended_before_its_walltime_keeps_its_own_end_however_late_it_is_seen() -> None:
    node = machine()
    started(node)
    feed(node, Tick(), boottime=110.0)
    feed(node, Exited(key(), record(1, 1, 3, end=1050.0)), boottime=139.0)
    told = node.member(key())
    assert told is not None
    assert (told.walltime, told.reason, states(node)) == (False, "", ["e3"])


def test_work_that_ended_before_its_stop_row_is_no_confirmed_stop() -> None:
    node = machine()
    started(node)
    feed(node, PlanRead(3, (stop(),)), boottime=60.0)
    feed(node, Exited(key(), record(1, 1, 3, end=1049.0)), boottime=61.0)
    told = node.member(key())
    assert told is not None
    assert (told.ordered, states(node)) == (False, ["e3"])


@pytest.mark.parametrize(("codes", "state"), [((5,), "e5"), ((), "x")], ids=["reaped late", "never reaped"])
def test_what_term_found_gone_was_not_ended_by_it(codes: tuple[int, ...], state: str) -> None:
    node = machine()
    started(node)
    feed(node, Tick(), boottime=110.0)
    feed(node, Missed(key()), boottime=110.0)
    feed(node, Exited(key(), record(1, 1, *codes, end=1130.0) if codes else None), boottime=140.0)
    told = node.member(key())
    assert told is not None
    assert (told.walltime, states(node)) == (False, [state])


def test_what_survives_kill_says_so_until_it_is_gone() -> None:
    node = machine()
    started(node)
    feed(node, Tick(), boottime=110.0)
    feed(node, Tick(), boottime=140.0)
    feed(node, Survived(key(), "a process has survived KILL: 7 (cp, state D)"), boottime=150.0)
    told = node.member(key())
    assert told is not None
    assert (told.phase, told.reason, states(node)) == (Phase.ENDING, "Unkillable", ["t"])
    feed(node, Exited(key(), record(1, 1, 137, end=1190.0)), boottime=200.0)
    told = node.member(key())
    assert told is not None
    assert (told.phase, told.reason, told.message, told.walltime) == (Phase.GONE, "walltime", "", True)


def test_a_new_generation_is_read_and_moves_the_walltime() -> None:
    node = machine()
    started(node)
    assert feed(node, PlanRead(3, (run(generation=2),))) == [Remember(Seen(3)), Read(key())]
    feed(node, TermsRead(key(), terms(generation=2, walltime_seconds=500.0)))
    assert feed(node, Tick(), boottime=200.0) == []
    assert node.deadline() == 510.0


EARLY = EarlySignal("USR2", 30.0, "launches")


def test_the_signal_before_the_end_is_ordered_once_and_moves_with_the_walltime() -> None:
    node = machine()
    started(node, signal=EARLY)
    assert node.deadline() == 80.0
    feed(node, PlanRead(3, (run(generation=2),)), TermsRead(key(), terms(generation=2, walltime_seconds=500.0, signal=EARLY)))
    assert (node.deadline(), feed(node, Tick(), boottime=100.0)) == (480.0, [])
    assert feed(node, Tick(), boottime=480.0) == [Signal(key(), EARLY)]
    assert (node.deadline(), feed(node, Tick(), boottime=481.0)) == (510.0, [])
    feed(node, PlanRead(4, (run(generation=3),)), TermsRead(key(), terms(generation=3, walltime_seconds=900.0, signal=EARLY)))
    assert feed(node, Tick(), boottime=890.0) == []
    assert feed(node, Tick(), boottime=910.0) == [Terminate(key(), Ordered("walltime", 910.0))]


@pytest.mark.parametrize("sent", [True, False])
def test_an_agent_that_is_started_again_signals_what_was_not_signalled_before(sent: bool) -> None:
    node = machine(known(alive=True, populated=True, signalled=sent))
    orders = feed(node, PlanRead(2, (run(),)), TermsRead(key(), terms(walltime_seconds=100.0, signal=EARLY)), boottime=90.0)
    assert (Signal(key(), EARLY) in orders) is not sent
    assert Signal(key(), EARLY) not in feed(node, Tick(), boottime=91.0)


def test_it_ends_at_the_admitted_walltime_whatever_its_spec_says() -> None:
    node = machine()
    started(node, walltime_seconds=100.0)
    feed(node, PlanRead(3, (run(generation=2, walltime=100),)), TermsRead(key(), terms(generation=2, walltime_seconds=1e6)))
    assert node.deadline() == 110.0  # a longer spec that nobody admitted
    feed(node, PlanRead(4, (run(generation=2, walltime=300),)))
    assert node.deadline() == 310.0  # admitted, after the spec was read
    feed(node, PlanRead(5, ()))
    assert node.deadline() == 310.0  # a lost plan admits nothing
    feed(node, PlanRead(6, (run(generation=3, walltime=300),)), TermsRead(key(), terms(generation=3, walltime_seconds=50.0)))
    assert feed(node, Tick(), boottime=60.0) == [Terminate(key(), Ordered("walltime", 60.0))]  # a shorter one is the owner's


def test_work_without_a_walltime_of_its_own_ends_at_the_admitted_one() -> None:
    node = machine()
    started(node, walltime_seconds=None)
    assert node.deadline() is None
    feed(node, PlanRead(3, (run(walltime=60),)))
    assert node.deadline() == 70.0


def test_the_walltime_holds_also_where_the_work_has_no_tasks_since_its_launches_may_have_ranks_there() -> None:
    node = machine()
    started(node, tasks=0)
    assert (node.deadline(), feed(node, Tick(), boottime=109.0)) == (110.0, [])
    assert feed(node, Tick(), boottime=110.0) == [Terminate(key(), Ordered("walltime", 110.0))]
    assert feed(node, Tick(), boottime=140.0) == [Kill(key())]


def test_a_failure_that_its_reporter_does_not_answer_within_two_seconds_is_told_of() -> None:
    node = machine()
    feed(node, PlanRead(2, (run(nodes=("n0", "n1")),)), TermsRead(key(), terms()), Prepared(key()), Directed(key(), START))
    feed(node, Started(key(), running()), Exited(key(), record(1, 1, 7)))
    assert (node.silent_reporters(), node.deadline()) == ([], 12.0)
    feed(node, Tick(), boottime=12.0)
    assert (node.silent_reporters(), node.deadline()) == (["n0"], None)
    feed(node, Directed(key(), Direction(Order.END, "TaskFailed")), boottime=13.0)
    assert node.silent_reporters() == []


@pytest.mark.parametrize("code", [0, 7])
def test_an_end_of_ones_own_reporter_or_without_failure_waits_for_no_answer(code: int) -> None:
    node = machine()
    nodes = ("n1", "n2") if code else ("n0", "n1")
    feed(node, PlanRead(2, (run(nodes=nodes),)), TermsRead(key(), terms()), Prepared(key()), Directed(key(), START))
    feed(node, Started(key(), running()), Exited(key(), record(1, 1, code)), Tick(), boottime=10.0)
    feed(node, Tick(), boottime=60.0)
    assert (node.silent_reporters(), node.deadline()) == ([], None)


def test_a_shim_that_was_killed_leaves_an_unknown_exit() -> None:
    node = machine()
    started(node)
    feed(node, Exited(key(), None))
    assert states(node) == ["x"]
