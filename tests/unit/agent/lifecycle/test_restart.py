"""What the state machine knows again after a restart of the agent, and what it starts no second time."""

from __future__ import annotations

import pytest

from lattice_agent.attempts import Known, Ordered, Seen
from lattice_agent.lifecycle.events import (
    Cleared,
    Directed,
    Exited,
    PlanAbsent,
    PlanRead,
    Recalled,
    TermsRead,
    Tick,
    Vanished,
)
from lattice_agent.lifecycle.instructions import Clear, Forget, Kill, Prepare, Read, Remember, Start, Terminate
from lattice_agent.lifecycle.machine import Lifecycle
from tests.unit.agent.lifecycle.machines import START, feed, machine, order, started, states
from tests.unit.agent.rows import key, known, record, run, running, stop, terms


def test_an_agent_that_finds_work_ended_knows_that_its_predecessor_had_ended_it() -> None:
    at = Ordered("stop", 60.0)
    ended = Lifecycle("n1", seen=Seen(3), known=[known(exit=record(1, 1, 143, end=1051.0), ordered=at)])
    by_itself = Lifecycle("n1", seen=Seen(3), known=[known(exit=record(1, 1, 3, end=1049.0), ordered=at)])
    for node, state, ordered in ((ended, "gb", True), (by_itself, "e3", False)):
        feed(node, PlanRead(3, (stop(),)))
        told = node.member(key())
        assert told is not None
        assert (told.ordered, states(node)) == (ordered, [state])


@pytest.mark.parametrize(
    ("found", "state"),
    [
        pytest.param(known(alive=True, populated=True), "r", id="its shim lives: adopted"),
        pytest.param(known(exit=record(1, 1, 7)), "e7", id="it ended meanwhile"),
        pytest.param(known(exit=record(1, 1, 143, end=1101.0)), "e143", id="its walltime ended it meanwhile"),
        pytest.param(known(exit=record(1, 1, failure="no such file")), "fStartFailed", id="its start had failed"),
        pytest.param(known(), "x", id="its shim was killed"),
        pytest.param(known(boot_matches=False), "l", id="the node rebooted"),
        pytest.param(known(boot_matches=False, exit=record(1, 1, 7)), "e7", id="the node rebooted after its end"),
        pytest.param(known(running=None, boot_matches=False), "l", id="prepared before a reboot"),
        pytest.param(known(work=None, running=None, boot_matches=False), "l", id="its journal is torn"),
        pytest.param(known(work=None, running=None, boot_matches=False, populated=True), "r", id="a stray scope"),
        pytest.param(known(running=None), "p", id="prepared and never started"),
    ],
)
def test_what_a_restarted_agent_finds_is_reported_as_it_is(found: Known, state: str) -> None:
    node = machine(found)
    feed(node, PlanRead(2, (run(),)))
    assert states(node) == [state]
    assert not any(isinstance(order, Start | Kill) for order in feed(node, Directed(key(), START)))


def test_the_end_by_a_walltime_is_known_again_after_a_restart() -> None:
    node = machine(known(exit=record(1, 1, 143, end=1101.0)))
    told = node.member(key())
    assert told is not None
    assert told.walltime


def test_a_prepared_attempt_is_prepared_again_after_a_restart_and_starts_once() -> None:
    node = machine(known(running=None))
    assert feed(node, PlanRead(2, (run(),))) == [Remember(Seen(2)), Read(key())]
    assert feed(node, TermsRead(key(), terms())) == [Prepare(key())]


def test_an_adopted_attempt_that_no_plan_names_is_unnamed_and_goes_on() -> None:
    node = machine(known(alive=True, populated=True))
    assert feed(node, PlanRead(2, ())) == [Remember(Seen(2))]
    assert states(node) == ["u"]


def test_a_walltime_goes_on_through_a_restart() -> None:
    node = machine(known(alive=True, populated=True))
    feed(node, PlanRead(2, (run(),)))
    assert feed(node, Tick(), boottime=110.0) == [Terminate(key(), Ordered("walltime", 110.0))]


def test_rows_of_the_first_plan_of_a_fresh_state_directory_are_lost() -> None:
    node = machine(seen_seq=0)
    feed(node, PlanRead(2, (run(), stop(2))))
    assert states(node) == ["l", "g"]
    feed(node, PlanRead(3, (run(), stop(2), run(3))))
    assert states(node) == ["l", "g", "p"]


def test_no_plan_at_all_says_nothing_about_what_is_known() -> None:
    node = machine(known(exit=record(1, 1, 7)), seen_seq=0)
    assert feed(node, PlanAbsent()) == []
    assert states(node) == ["e7"]
    feed(node, PlanRead(2, (run(2),)))
    assert states(node) == ["p"]


def test_a_settled_attempt_is_never_started_again() -> None:
    node = machine(known(exit=record(1, 1, 7), forgotten=True))
    assert states(node) == []
    feed(node, PlanRead(2, (run(),)))
    assert states(node) == ["e7"]


def test_what_was_settled_while_this_agent_ran_and_is_ordered_again_has_the_end_that_lies_on_the_disk() -> None:
    node = machine()
    started(node)
    feed(node, Exited(key(), record(1, 1, 7)), PlanRead(3, ()))
    assert node.attempts == {}
    assert feed(node, PlanRead(4, (run(),)), TermsRead(key(), terms())) == [Prepare(key())]
    found = known(exit=record(1, 1, 7), running=running(), forgotten=True)
    assert feed(node, Recalled(found)) == []
    assert states(node) == ["e7"]
    assert feed(node, Directed(key(), START)) == []


def test_what_was_started_here_before_and_left_no_record_is_lost() -> None:
    node = machine()
    feed(node, PlanRead(2, (run(),)), TermsRead(key(), terms()), Recalled(known(running=None, forgotten=True)))
    assert states(node) == ["l"]


def test_what_was_started_here_before_is_lost_not_started() -> None:
    node = machine()
    feed(node, PlanRead(2, (run(),)), TermsRead(key(), terms()), Vanished(key(), "started already"))
    assert states(node) == ["l"]


@pytest.mark.parametrize(
    ("found", "state"),
    [
        pytest.param(known(exit=record(1, 1, 7), unclean=True), "e7", id="its epilogue was under way"),
        pytest.param(known(boot_matches=False, unclean=True), "l", id="the node rebooted"),
        pytest.param(
            known(exit=record(1, 1, failure="no", reason="PrologueFailed"), unclean=True), "fPrologueFailed", id="its prologue had failed"
        ),
    ],
)
def test_an_agent_that_finds_steps_undoes_them_before_it_tells_the_end(found: Known, state: str) -> None:
    node = machine(found)
    assert order(node, PlanRead(2, (run(),)))[-1] == Clear(key())
    assert states(node) == ["t"]
    order(node, Cleared(key()))
    assert states(node) == [state]


def test_steps_of_work_that_is_not_wanted_any_more_are_undone_after_a_restart() -> None:
    node = machine(known(running=None, unclean=True))
    assert order(node, PlanRead(2, ())) == [Remember(Seen(2)), Clear(key())]
    assert order(node, Cleared(key())) == [Forget(key(), 2)]
