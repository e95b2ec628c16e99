"""How the state machine orders the steps before and after the work."""

from __future__ import annotations

from lattice_agent.attempts import Seen
from lattice_agent.lifecycle.events import (
    Cleared,
    Exited,
    PlanRead,
    Refused,
    TermsRead,
    Tick,
)
from lattice_agent.lifecycle.instructions import Clear, Forget, Prepare, Remember
from lattice_agent.members import Phase
from tests.unit.agent.lifecycle.machines import feed, machine, order, started, states
from tests.unit.agent.rows import key, record, run, terms


def test_the_epilogue_precedes_the_end_and_no_other_attempt_is_prepared_before_it_is_over() -> None:
    node = machine()
    started(node)
    feed(node, PlanRead(3, (run(), run(2))), TermsRead(key(2), terms()))
    assert order(node, Exited(key(), record(1, 1, 3, end=1050.0))) == [Clear(key())]
    told = node.member(key())
    assert told is not None
    assert (told.phase, [end.code for end in told.exits], states(node)) == (Phase.ENDING, [3], ["t", "p"])
    assert order(node, Cleared(key())) == [Prepare(key(2))]
    assert states(node) == ["e3", "p"]


def test_an_epilogue_that_hangs_holds_the_end_up_no_longer_than_its_time_and_the_node_until_it_is_clean() -> None:
    node = machine()
    started(node)
    feed(node, PlanRead(3, (run(), run(2))), TermsRead(key(2), terms()))
    order(node, Exited(key(), record(1, 1, 0)), boottime=50.0)
    assert node.deadline() == 350.0
    assert order(node, Tick(), boottime=349.9) == []
    assert (states(node), node.unclean()) == (["t", "p"], [])
    assert order(node, Tick(), boottime=350.0) == []
    assert (states(node), node.unclean()) == (["e0", "p"], [key()])
    assert order(node, PlanRead(4, (run(2),)), boottime=351.0) == [Remember(Seen(4))], "it is not forgotten before it is clean"
    assert order(node, Cleared(key()), boottime=400.0) == [Forget(key(), 4), Prepare(key(2))]
    assert node.unclean() == []


def test_a_prologue_that_fails_is_undone_before_it_is_told_as_failed() -> None:
    node = machine()
    feed(node, PlanRead(2, (run(),)), TermsRead(key(), terms()))
    assert order(node, Refused(key(), "PrologueFailed", "node n1: the hook failed")) == [Clear(key())]
    told = node.member(key())
    assert told is not None
    assert (told.phase, told.reason, told.message) == (Phase.ENDING, "PrologueFailed", "node n1: the hook failed")
    order(node, Cleared(key()))
    assert states(node) == ["fPrologueFailed"]
