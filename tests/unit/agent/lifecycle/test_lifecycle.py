"""How rows of plans lead the node's state machine: from reading to the start, and to a stop."""

from __future__ import annotations

import pytest

from lattice_agent.attempts import Ordered, Seen
from lattice_agent.lifecycle.attempt import Stage
from lattice_agent.lifecycle.events import (
    Directed,
    Event,
    Exited,
    PlanRead,
    Prepared,
    Started,
    TermsRead,
)
from lattice_agent.lifecycle.instructions import Forget, Prepare, Read, Remember, Start, Terminate
from lattice_agent.lifecycle.machine import Lifecycle
from lattice_agent.members import Direction, Order, Phase
from tests.unit.agent.lifecycle.machines import START, feed, machine, order, started, states
from tests.unit.agent.rows import key, known, record, run, running, stop, terms


def test_a_row_leads_through_reading_preparing_and_the_reporters_word_to_the_start() -> None:
    node = machine()
    assert feed(node, PlanRead(2, (run(),))) == [Remember(Seen(2)), Read(key())]
    assert feed(node, TermsRead(key(), terms())) == [Prepare(key())]
    assert states(node) == ["p"]
    assert feed(node, Prepared(key())) == []
    assert states(node) == ["pr"]
    assert feed(node, Directed(key(), START)) == [Start(key())]
    assert feed(node, Started(key(), running())) == []
    assert states(node) == ["r"]


def test_the_same_plan_read_twice_orders_nothing_twice() -> None:
    node = machine()
    started(node)
    assert feed(node, PlanRead(2, (run(),))) == []
    assert feed(node, PlanRead(3, (run(),))) == [Remember(Seen(3))]


def test_an_older_plan_is_ignored_and_counted() -> None:
    node = machine(seen_seq=9)
    assert feed(node, PlanRead(8, (run(),))) == []
    assert (node.ignored_plans, node.attempts) == (1, {})


@pytest.mark.parametrize(
    ("plan", "taken"),
    [
        pytest.param(PlanRead(9, (), 5, "a", 3), True, id="the same"),
        pytest.param(PlanRead(10, (), 5, "a", 3), True, id="a later one of the same term"),
        pytest.param(PlanRead(10, (), 6, "b", 10), True, id="of the term that followed"),
        pytest.param(PlanRead(10, ()), True, id="of a scheduler that tells no epoch"),
        pytest.param(PlanRead(40, (), 5, "b", 3), False, id="of another term of the same epoch"),
        pytest.param(PlanRead(40, (), 6, "b", 9), False, id="of a term that began where this node had been"),
        pytest.param(PlanRead(40, (), 4, "c", 2), False, id="of an epoch that was over"),
    ],
)
def test_a_plan_of_a_ledger_that_went_back_is_not_acted_on_however_far_it_has_come(plan: PlanRead, taken: bool) -> None:
    node = Lifecycle("n1", seen=Seen(9, 5, "a"), known=())
    feed(node, plan)
    assert (node.ignored_plans == 0) is taken
    assert node.seen == (plan.seen if taken and plan.seq > 9 else Seen(9, 5, "a"))


def test_a_stop_row_is_term_and_grace_and_confirmed_as_gone() -> None:
    node = machine()
    started(node)
    assert feed(node, PlanRead(3, (stop(),))) == [Remember(Seen(3)), Terminate(key(), Ordered("stop", 10.0))]
    feed(node, Exited(key(), record(1, 1, 143)))
    told = node.member(key())
    assert told is not None
    assert (told.phase, told.ordered, states(node)) == (Phase.GONE, True, ["gb"])
    assert feed(node, PlanRead(4, ())) == [Remember(Seen(4)), Forget(key(), 4)]
    assert states(node) == []


def test_a_stop_row_for_what_ended_by_itself_keeps_its_exit_code() -> None:
    node = machine()
    started(node)
    feed(node, Exited(key(), record(1, 1, 3)), PlanRead(3, (stop(),)))
    assert states(node) == ["e3"]


@pytest.mark.parametrize("before", ["nothing", "reading", "preparing", "ready"])
def test_a_stop_row_before_the_start_means_it_never_starts(before: str) -> None:
    node = machine()
    events: list[Event] = [PlanRead(2, (run(),)), TermsRead(key(), terms()), Prepared(key())]
    feed(node, *events[: ["nothing", "reading", "preparing", "ready"].index(before)])
    ordered = feed(node, PlanRead(3, (stop(),)))
    if before == "preparing":
        assert ordered == [Remember(Seen(3)), Terminate(key(), Ordered("stop", 10.0))]
        assert feed(node, Prepared(key())) == []
    if before in ("preparing", "ready"):
        feed(node, Exited(key(), record()))
    assert states(node) == ["g"]
    assert feed(node, Directed(key(), START)) == []


def test_a_row_that_disappears_ends_nothing_is_unnamed_and_keeps_the_node_for_itself() -> None:
    node = machine()
    started(node)
    feed(node, PlanRead(3, (run(2),)))
    assert states(node) == ["u", "p"]
    assert feed(node, TermsRead(key(2), terms())) == []
    assert feed(node, Exited(key(), record(1, 1, 0))) == [Prepare(key(2))]
    assert states(node) == ["e0", "p"], "its exit is told until a plan without it follows"
    assert feed(node, PlanRead(4, (run(2),))) == [Remember(Seen(4)), Forget(key(), 4)]


def test_an_end_from_the_reporter_is_final_even_if_a_new_reporter_says_wait() -> None:
    node = machine()
    started(node)
    assert feed(node, Directed(key(), Direction(Order.END, "TaskFailed"))) == [Terminate(key(), Ordered("TaskFailed", 10.0))]
    assert feed(node, Directed(key(), Direction(Order.WAIT))) == []
    feed(node, Exited(key(), record(1, 1, 143)))
    told = node.member(key())
    assert told is not None
    assert (told.reason, told.walltime, told.ordered) == ("TaskFailed", False, False)


def test_a_stop_leaves_the_start_at_once_and_a_late_answer_changes_nothing_but_the_times() -> None:
    node = machine()
    feed(node, PlanRead(2, (run(),)), TermsRead(key(), terms()), Prepared(key()), Directed(key(), START))
    assert order(node, PlanRead(3, (stop(),))) == [Remember(Seen(3)), Terminate(key(), Ordered("stop", 10.0))]
    assert order(node, Started(key(), running())) == []
    assert states(node) == ["t"]
    feed(node, Exited(key(), record(1, 1, 143)))
    assert states(node) == ["gb"]


def test_every_stage_has_a_phase_and_a_state() -> None:
    for stage in Stage:
        node = machine(known(alive=True, populated=True))
        node.attempts[key()].stage = stage
        assert node.member(key()) is not None
        assert node.report()
