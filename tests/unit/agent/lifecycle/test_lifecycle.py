"""The node's state machine: tables of single promises, and random histories against a host that keeps the books."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lattice.ledger.plans import PlanRow
from lattice_agent.attempts import ExitRecord, Key, Known, Ordered, Seen
from lattice_agent.lifecycle.attempt import POPULATED, Stage
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
)
from lattice_agent.lifecycle.instructions import Clear, Forget, Instruction, Kill, Prepare, Read, Remember, Start, Terminate
from lattice_agent.lifecycle.machine import Lifecycle
from lattice_agent.lifecycle.stimulus_log import StimulusLog
from lattice_agent.members import Direction, Order, Phase
from tests.unit.agent.lifecycle.story import assert_replays
from tests.unit.agent.rows import key, known, record, run, running, stop, terms

START = Direction(Order.START)


def machine(*found: Known, seen_seq: int = 1) -> Lifecycle:
    return Lifecycle("n1", seen=Seen(seen_seq), known=found)


def feed(node: Lifecycle, *events: Event, boottime: float = 10.0) -> list[Instruction]:
    """The instructions of the last event, and of the epilogue's end where that follows at once."""
    out: list[Instruction] = []
    for event in events:
        out = order(node, event, boottime=boottime)
        for clear in [one for one in out if isinstance(one, Clear)]:
            out.remove(clear)
            out += order(node, Cleared(clear.key), boottime=boottime)
    return out


def order(node: Lifecycle, event: Event, *, boottime: float = 10.0) -> list[Instruction]:
    """The instructions of one event."""
    out = node.handle(event, boottime)
    node.validate()
    return out


def started(node: Lifecycle, **fields: float | None) -> None:
    """Leads attempt 1 to RUNNING at boottime 10."""
    feed(node, PlanRead(2, (run(),)), TermsRead(key(), terms(**fields)), Prepared(key()), Directed(key(), START))
    feed(node, Started(key(), running()))


def states(node: Lifecycle) -> list[str]:
    return [row.state + row.detail for row in node.report()]


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


def test_an_agent_that_finds_work_ended_knows_that_its_predecessor_had_ended_it() -> None:
    at = Ordered("stop", 60.0)
    ended = Lifecycle("n1", seen=Seen(3), known=[known(exit=record(1, 1, 143, end=1051.0), ordered=at)])
    by_itself = Lifecycle("n1", seen=Seen(3), known=[known(exit=record(1, 1, 3, end=1049.0), ordered=at)])
    for node, state, ordered in ((ended, "gb", True), (by_itself, "e3", False)):
        feed(node, PlanRead(3, (stop(),)))
        told = node.member(key())
        assert told is not None
        assert (told.ordered, states(node)) == (ordered, [state])


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


def test_work_without_tasks_here_has_no_walltime_of_its_own() -> None:
    node = machine()
    started(node, tasks=0)
    assert feed(node, Tick(), boottime=1e9) == []


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


def test_a_shim_that_was_killed_leaves_an_unknown_exit() -> None:
    node = machine()
    started(node)
    feed(node, Exited(key(), None))
    assert states(node) == ["x"]


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


def test_a_stop_leaves_the_start_at_once_and_a_late_answer_changes_nothing_but_the_times() -> None:
    node = machine()
    feed(node, PlanRead(2, (run(),)), TermsRead(key(), terms()), Prepared(key()), Directed(key(), START))
    assert order(node, PlanRead(3, (stop(),))) == [Remember(Seen(3)), Terminate(key(), Ordered("stop", 10.0))]
    assert order(node, Started(key(), running())) == []
    assert states(node) == ["t"]
    feed(node, Exited(key(), record(1, 1, 143)))
    assert states(node) == ["gb"]


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


@dataclass
class Books:
    """A host that keeps the books: what lives, what was started, what is on disk."""

    prepared: set[Key] = field(default_factory=set)
    alive: set[Key] = field(default_factory=set)
    starts: dict[Key, int] = field(default_factory=dict)
    ends: dict[Key, ExitRecord | None] = field(default_factory=dict)
    forgotten: set[Key] = field(default_factory=set)
    steps: set[Key] = field(default_factory=set)
    """Attempts of which steps have begun and are not undone."""


class Histories(RuleBasedStateMachine):
    """Plans, answers, exits, orders, time and restarts in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books()
        self.seq = 1
        self.rows: dict[Key, PlanRow] = {}
        self.now = 10.0
        self.pending: list[Instruction] = []
        self.allowed: set[Key] = set()
        self.told: dict[Key, str] = {}
        self.stimuli = StimulusLog(24)
        self.node = Lifecycle("n1", seen=Seen(1), known=(), stimuli=self.stimuli)

    def send(self, event: Event) -> None:
        walltimes = {
            attempt.key for attempt in self.node.attempts.values() if attempt.walltime_at is not None and self.now >= attempt.walltime_at
        }
        for order in self.node.handle(event, self.now):
            if isinstance(order, Terminate | Kill):
                assert order.key in self.allowed | walltimes, "ended without stop row, END or walltime"
                self.allowed.add(order.key)
            if isinstance(order, Prepare):
                assert not self.books.alive, "prepared beside another attempt's processes"
                assert not self.books.steps - self.unstarted() - {order.key}, "prepared beside what another attempt has left"
            self.pending.append(order)

    def unstarted(self) -> set[Key]:
        """Attempts that an agent before this one prepared, and that wait for the plan."""
        return {at for at in self.books.steps if at not in self.books.starts and at not in self.books.ends}

    @rule(number=st.integers(1, 3), attempt=st.integers(1, 2), order=st.sampled_from(["run", "stop", "none"]))
    def plan(self, number: int, attempt: int, order: str) -> None:
        at = key(number, attempt)
        if order == "none":
            self.rows.pop(at, None)
        elif order == "stop":
            self.rows[at] = stop(number, attempt)
            self.allowed.add(at)
        elif self.rows.get(at) is None or self.rows[at].order == "run":
            self.rows[at] = run(number, attempt)
        self.seq += 1
        self.send(PlanRead(self.seq, tuple(self.rows.values())))

    @rule(back=st.integers(1, 5))
    def old_plan(self, back: int) -> None:
        before = {at: attempt.stage for at, attempt in self.node.attempts.items()}
        self.send(PlanRead(self.node.seq - back, ()))
        assert {at: attempt.stage for at, attempt in self.node.attempts.items()} == before or not before

    @precondition(lambda self: self.pending)
    @rule(fail=st.booleans())
    def carry_out(self, fail: bool) -> None:
        order = self.pending.pop(0)
        match order:
            case Read():
                self.send(TermsRead(order.key, terms()))
            case Prepare() | Start() if any(isinstance(one, Terminate) and one.key == order.key for one in self.pending):
                pass  # nothing is begun that is to end
            case Prepare():
                self._prepare(order.key, fail)
            case Start():
                self._start(order.key, fail)
            case Terminate() if order.key not in self.books.alive:
                self.books.prepared.discard(order.key)
                self._end(order.key, self.books.ends.get(order.key))
            case Clear() if fail:
                self.pending.append(order)
            case Clear():
                assert order.key not in self.books.alive, "undone while it runs"
                self.books.steps.discard(order.key)
                self.send(Cleared(order.key))
            case Kill() if order.key in self.books.alive:
                self._end(order.key)
            case Forget():
                assert order.key not in self.books.alive
                self.books.steps.discard(order.key)
                self.books.prepared.discard(order.key)
                self.books.forgotten.add(order.key)
            case _:
                pass

    def _prepare(self, at: Key, fail: bool) -> None:
        if at in self.books.starts or at in self.books.ends:
            self.send(Vanished(at, "started before"))
            return
        self.books.steps.add(at)
        if fail:
            self.send(Refused(at, "UserUnknown", "nobody knows the user"))
        else:
            self.books.prepared.add(at)
            self.send(Prepared(at))

    def _start(self, at: Key, fail: bool) -> None:
        if at not in self.books.prepared or at in self.books.starts:
            return
        self.books.prepared.discard(at)
        self.books.starts[at] = 1
        if fail:
            self.books.ends[at] = record(1, 1, failure="exec format error")
            self.send(Refused(at, "StartFailed", "exec format error"))
            return
        self.books.alive.add(at)
        self.send(Started(at, running(boottime=self.now)))

    def _end(self, at: Key, found: ExitRecord | None = None) -> None:
        self.books.alive.discard(at)
        self.books.ends[at] = found or record(1, 1)
        self.send(Exited(at, self.books.ends[at]))

    @precondition(lambda self: self.books.alive)
    @rule(code=st.sampled_from([0, 7, 143]))
    def exit(self, code: int) -> None:
        self._end(min(self.books.alive), record(1, 1, code))

    @precondition(lambda self: self.node.attempts)
    @rule(order=st.sampled_from(list(Order)), pick=st.integers(0, 10))
    def direct(self, order: Order, pick: int) -> None:
        at = list(self.node.attempts)[pick % len(self.node.attempts)]
        if order is Order.END:
            self.allowed.add(at)
        self.send(Directed(at, Direction(order, "TaskFailed" if order is Order.END else "")))

    @rule(seconds=st.sampled_from([1.0, 31.0, 101.0]))
    def time(self, seconds: float) -> None:
        self.now += seconds
        self.send(Tick())

    @rule(reboot=st.booleans())
    def restart(self, reboot: bool) -> None:
        """The agent dies; what it was about to do is lost, what the host did is not."""
        if reboot:
            self.books.alive.clear()
        found = []
        for at in sorted({*self.books.prepared, *self.books.starts, *self.books.ends}):
            began = self.books.starts.get(at)
            found.append(
                Known(
                    at, None if reboot else known().work, running(boottime=self.now) if began else None, at in self.books.alive,
                    self.books.ends.get(at), not reboot, at in self.books.alive, at in self.books.forgotten,
                    unclean=at in self.books.steps,
                )
            )  # fmt: skip
        if reboot:
            self.books.prepared.clear()
        self.pending.clear()
        assert_replays(self.stimuli)
        self.stimuli = StimulusLog(24)
        self.node = Lifecycle("n1", seen=self.node.seen, known=found, stimuli=self.stimuli)
        self.send(PlanRead(self.seq, tuple(self.rows.values())))

    def teardown(self) -> None:
        assert_replays(self.stimuli)

    @invariant()
    def machine_holds(self) -> None:
        self.node.validate()
        assert len(self.books.alive) <= 1
        assert all(count == 1 for count in self.books.starts.values())

    @invariant()
    def every_end_is_reported_until_settled(self) -> None:
        reported = {Key(row.uid, row.attempt) for row in self.node.report()}
        for at in self.books.ends:
            assert at in reported or at not in self.rows or at in self.books.forgotten

    @invariant()
    def nothing_that_lives_is_called_gone(self) -> None:
        for at in self.books.alive:
            assert self.node.attempts[at].stage in POPULATED

    @invariant()
    def nothing_is_called_over_in_time_before_its_steps_are_undone(self) -> None:
        for at in self.books.steps & self.books.ends.keys() & self.node.attempts.keys():
            attempt = self.node.attempts[at]
            assert attempt.stage in POPULATED or attempt.unclean


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase


def test_every_stage_has_a_phase_and_a_state() -> None:
    for stage in Stage:
        node = machine(known(alive=True, populated=True))
        node.attempts[key()].stage = stage
        assert node.member(key()) is not None
        assert node.report()
