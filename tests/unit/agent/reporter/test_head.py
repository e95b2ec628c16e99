"""The reporter's view: when it says START and END, and what it concludes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.views.allocation import FailedLaunch, LaunchTotals
from lattice_agent.attempts import ResourceUse
from lattice_agent.members import FINAL, Member, Order, Phase, TaskEnd
from lattice_agent.reporter.head import AttemptView, Begun, NothingYet, Over, Surviving
from tests.unit.agent.rows import key, member, run, stop

NODES = ("n1", "n2", "n3")
OK = TaskEnd(0, 0, 0, ended=20.0)


def head(*members: Member, on_head_only: bool = False, is_launched: bool = False) -> AttemptView:
    made = AttemptView(key())
    made.follow_row(run(nodes=NODES))
    made.describe(on_head_only=on_head_only, walltime_seconds=60.0, is_launched=is_launched)
    for each in members:
        made.hear(each)
    return made


def gone(node: str, *exits: TaskEnd, **fields: Any) -> Member:
    return member(node, Phase.GONE, *(exits or (OK,)), started=10.0, **fields)


def test_start_is_said_when_the_last_node_is_ready_and_not_before() -> None:
    case = head(*(member(node, Phase.READY) for node in NODES[:2]))
    assert case.direction().order is Order.WAIT
    assert case.missing() == ["n3"]
    case.hear(member("n3", Phase.PREPARING))
    assert case.direction().order is Order.WAIT
    case.hear(member("n3", Phase.READY))
    assert case.direction().order is Order.START


def test_start_stands_while_nodes_go_on_and_end_well() -> None:
    case = head(*(member(node, Phase.READY) for node in NODES))
    case.hear(member("n1", Phase.RUNNING, started=10.0))
    case.hear(gone("n1"))
    assert case.direction().order is Order.START


def test_a_new_reporter_knows_from_one_running_node_that_start_was_said() -> None:
    assert head(member("n2", Phase.RUNNING, started=10.0)).direction().order is Order.START


def test_started_is_told_with_the_earliest_start_once_all_run() -> None:
    case = head(member("n1", Phase.RUNNING, started=12.0), member("n2", Phase.RUNNING, started=11.0))
    assert case.verdict() == NothingYet()
    case.hear(member("n3", Phase.RUNNING, started=13.0))
    assert case.verdict() == Begun(11.0, 3)


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        pytest.param(gone("n2", TaskEnd(1, 7, ended=15.0)), "TaskFailed", id="a task failed"),
        pytest.param(gone("n2", TaskEnd(unknown=True)), "TaskFailed", id="an exit is unknown"),
        pytest.param(member("n2", Phase.START_FAILED, reason="UserUnknown", message="no alice"), "StartFailed", id="a start failed"),
        pytest.param(
            member("n2", Phase.ENDING, reason="PrologueFailed", message="a hook"), "StartFailed", id="a prologue failed, its epilogue runs"
        ),
        pytest.param(
            member("n2", Phase.ENDING, TaskEnd(0, 3, ended=20.0), started=10.0), "TaskFailed", id="a task failed, its epilogue runs"
        ),
        pytest.param(member("n2", Phase.LOST, message="it rebooted"), "NodeLost", id="a node lost it"),
    ],
)
def test_one_failed_node_ends_the_others(bad: Member, cause: str) -> None:
    case = head(member("n1", Phase.RUNNING, started=10.0), bad)
    assert (case.direction().order, case.direction().cause) == (Order.END, cause)


@pytest.mark.parametrize("fields", [{"walltime": True}, {"ordered": True}], ids=["walltime", "stop row"])
def test_a_node_that_its_own_order_ended_ends_nobody_else(fields: dict[str, bool]) -> None:
    assert head(gone("n2", TaskEnd(1, 143, 15, ended=15.0), **fields)).direction().order is not Order.END


def test_the_heads_end_ends_the_taskless() -> None:
    case = head(gone("n1"), on_head_only=True)
    assert (case.direction().order, case.direction().cause) == (Order.END, "HeadEnded")
    assert head(gone("n1")).direction().order is not Order.END


def over(*members: Member, **fields: bool) -> Over:
    verdict = head(*members, **fields).verdict()
    assert isinstance(verdict, Over)
    return verdict


def test_all_zero_is_completed() -> None:
    ended = over(*(gone(node) for node in NODES))
    assert (ended.reason, ended.failure, ended.begun, ended.start, ended.end) == ("Completed", None, True, 10.0, 20.0)


def test_the_first_failure_is_the_one_that_came_by_itself() -> None:
    ended = over(
        gone("n1", TaskEnd(0, 143, 15, ended=14.0), reason="TaskFailed"),
        gone("n2", TaskEnd(3, 139, 11, ended=15.0)),
        gone("n3", TaskEnd(5, 9, ended=16.0)),
    )
    assert ended.reason == "TaskFailed"
    assert ended.failure is not None
    assert (ended.failure.node, ended.failure.task.rank, ended.failure.task.signal) == ("n2", 3, 11)
    assert ended.message == "task 3 on n2 ended by signal 11"


def test_walltime_wins_even_over_an_exit_with_zero() -> None:
    ended = over(gone("n1", walltime=True), gone("n2", TaskEnd(1, 143, 15, ended=70.0), walltime=True), gone("n3"))
    assert ended.reason == "WalltimeExceeded"
    assert "1m" in ended.message


def test_a_failure_before_the_walltime_stays_a_failure() -> None:
    ended = over(gone("n1", TaskEnd(0, 7, ended=15.0)), gone("n2", walltime=True), gone("n3", walltime=True))
    assert ended.reason == "TaskFailed"


@pytest.mark.parametrize("reason", ["StartFailed", "UserUnknown", "UserRefused"])
def test_a_refused_start_names_the_node_and_the_sentence(reason: str) -> None:
    refused = member("n2", Phase.START_FAILED, reason=reason, message="no user alice")
    ended = over(member("n1", Phase.GONE), refused, member("n3", Phase.GONE))
    assert (ended.reason, ended.message, ended.begun) == (reason, "node n2: no user alice", False)


def test_a_lost_node_is_lost_and_its_exit_unknown() -> None:
    ended = over(gone("n1"), member("n2", Phase.LOST, message="it rebooted"), gone("n3"))
    assert (ended.reason, ended.exit_known) == ("Lost", False)


def test_an_unknown_exit_is_said_to_be_unknown() -> None:
    ended = over(gone("n1"), gone("n2", TaskEnd(unknown=True)), gone("n3"))
    assert (ended.reason, ended.exit_known) == ("ExitUnknown", False)


@pytest.mark.parametrize(
    "members",
    [
        pytest.param(
            (gone("n1", TaskEnd(unknown=True)), gone("n2", TaskEnd(1, 99, ended=15.0), ordered=True), gone("n3", ordered=True)), id="stop"
        ),
        pytest.param(
            (gone("n1", TaskEnd(unknown=True), walltime=True), gone("n2", walltime=True), gone("n3", walltime=True)), id="walltime"
        ),
        pytest.param((gone("n1", TaskEnd(unknown=True)), gone("n2"), member("n3", Phase.LOST, message="it rebooted")), id="lost"),
        pytest.param(
            (gone("n1", TaskEnd(unknown=True)), gone("n2"), member("n3", Phase.START_FAILED, reason="StartFailed", message="no")),
            id="refused",
        ),
        pytest.param((gone("n1", ordered=True), gone("n2", ordered=True), member("n3", Phase.GONE, ordered=True)), id="one never began"),
    ],
)
def test_no_end_makes_a_zero_of_an_unknown_exit(members: tuple[Member, ...]) -> None:
    assert not over(*members).exit_known


def test_a_stop_that_came_after_every_task_ended_with_zero_keeps_the_zero() -> None:
    ended = over(*(gone(node, ordered=True) for node in NODES))
    assert (ended.reason, ended.exit_known, ended.failure) == ("Stopped", True, None)


def test_the_taskless_nodes_of_work_on_its_head_do_not_make_its_exit_unknown() -> None:
    idle = [member(node, Phase.GONE, ordered=True) for node in NODES[1:]]
    assert over(gone("n1", ordered=True), *idle, on_head_only=True).exit_known


def test_a_stop_is_over_once_every_node_confirmed_also_those_whose_row_went_before() -> None:
    case = AttemptView(key())
    case.follow_row(run(nodes=NODES))
    case.follow_row(stop(nodes=NODES))
    case.hear(gone("n1", TaskEnd(0, 143, 15, ended=20.0), ordered=True))
    assert case.verdict() == NothingYet()
    case.follow_row(stop(nodes=("n1", "n3")))
    assert case.verdict() == NothingYet()
    case.hear(member("n3", Phase.GONE, ordered=True))
    verdict = case.verdict()
    assert isinstance(verdict, Over)
    assert verdict.reason == "Stopped"


def test_who_survives_kill_is_told_and_its_end_waited_for() -> None:
    stuck = member("n2", Phase.ENDING, reason="Unkillable", message="a process has survived KILL: 7 (cp, state D)", started=10.0)
    case = head(gone("n1"), stuck, gone("n3"))
    assert case.verdict() == Surviving("n2: a process has survived KILL: 7 (cp, state D)", begun=True, start=10.0)
    case.hear(gone("n2", TaskEnd(1, 137, 9, ended=90.0), walltime=True))
    assert isinstance(case.verdict(), Over)


def test_a_node_of_another_attempt_is_not_heard() -> None:
    case = head()
    assert not case.hear(member("n9", Phase.READY))
    assert not case.hear(member("n1", Phase.READY, number=2))


phases = st.sampled_from([Phase.PREPARING, Phase.READY, Phase.RUNNING, Phase.ENDING, Phase.GONE, Phase.START_FAILED, Phase.LOST])


@given(words=st.lists(st.tuples(st.sampled_from(NODES), phases, st.sampled_from([0, 1])), max_size=20))
def test_whatever_is_heard_end_is_never_taken_back_and_over_means_that_every_node_is_final(words: list[tuple[str, Phase, int]]) -> None:
    case, ended = head(), False
    for node, phase, code in words:
        started = 10.0 if phase in (Phase.RUNNING, Phase.ENDING, Phase.GONE) else 0.0
        exits = (TaskEnd(0, code, ended=20.0),) if phase is Phase.GONE else ()
        case.hear(member(node, phase, *exits, started=started))
        order = case.direction().order
        assert not (ended and order is not Order.END), "END was taken back"
        ended = order is Order.END
        if isinstance(case.verdict(), Over):
            assert {case.members[name].phase for name in NODES} <= FINAL


@given(st.permutations(NODES))
def test_the_order_in_which_nodes_are_heard_does_not_change_the_verdict(order: tuple[str, ...]) -> None:
    said = {
        "n1": gone("n1"),
        "n2": gone("n2", TaskEnd(1, 7, ended=15.0)),
        "n3": gone("n3", TaskEnd(2, 143, 15, ended=14.0), reason="TaskFailed"),
    }
    assert head(*(said[node] for node in order)).verdict() == head(*said.values()).verdict()


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        pytest.param(
            ResourceUse(1.0, 999 << 20, 1000 << 20, 1),
            "the kernel killed a process on n2: its memory is limited to 1000 MiB, and it held 999 MiB at the most",
            id="by its limit",
        ),
        pytest.param(
            ResourceUse(1.0, 100 << 20, 1000 << 20, 2),
            "the kernel killed 2 processes on n2, which was short of memory itself, and it held 100 MiB at the most,"
            " below its limit of 1000 MiB",
            id="by the node",
        ),
        pytest.param(ResourceUse(0.0, 0, 0, 1), "the kernel killed a process on n2, which was short of memory itself", id="nothing known"),
    ],
)
def test_work_that_failed_where_memory_was_short_is_out_of_memory(use: ResourceUse, sentence: str) -> None:
    killed = gone("n2", TaskEnd(1, 137, 9, ended=15.0), use=use)
    over = head(gone("n1"), killed, gone("n3")).verdict()
    assert isinstance(over, Over)
    assert (over.reason, over.message) == ("OutOfMemory", f"{sentence}; task 1 ended by signal 9")


def test_kills_that_the_work_got_over_are_no_failure_and_use_is_summed() -> None:
    uses = [ResourceUse(1.5, 3 << 30, 4 << 30, 1), ResourceUse(2.0, 5 << 30, 8 << 30, 0), ResourceUse(0.5, 0, 0, 0)]
    over = head(*(gone(node, use=use) for node, use in zip(NODES, uses, strict=True))).verdict()
    assert isinstance(over, Over)
    assert (over.reason, over.use) == ("Completed", ResourceUse(4.0, 5 << 30, 8 << 30, 1))


def test_a_failure_elsewhere_is_not_for_want_of_memory() -> None:
    over = head(gone("n1", use=ResourceUse(oom_kills=1)), gone("n2", TaskEnd(1, 3, ended=15.0)), gone("n3")).verdict()
    assert isinstance(over, Over)
    assert over.reason == "TaskFailed"


def test_an_epilogue_of_work_that_ended_with_0_ends_nobody_and_is_no_end_yet() -> None:
    view = head(gone("n1"), gone("n3"), member("n2", Phase.ENDING, OK, started=10.0))
    assert view.direction().order is Order.START
    assert not isinstance(view.verdict(), Over)


def test_a_failed_prologue_names_its_node() -> None:
    failed = member("n2", Phase.START_FAILED, reason="PrologueFailed", message="node n2: a hook")
    found = head(member("n1", Phase.GONE), failed, member("n3", Phase.GONE)).verdict()
    assert isinstance(found, Over)
    assert (found.reason, found.message, found.node, found.begun) == ("PrologueFailed", "node n2: a hook", "n2", False)


def test_a_failed_task_of_a_launched_entrypoint_is_named_with_its_node() -> None:
    failures = (
        FailedLaunch("7.10", "Failed", 3, 0, "n1", "task 0 exited with code 3"),
        FailedLaunch("7.0", "Failed", 139, 11, "n3", "task 5 was ended by signal 11"),
    )
    first = gone("n1", TaskEnd(0, 139, 0, ended=20.0), launches=LaunchTotals(total=11, failed=2, failures=failures))
    idle = [member(node, Phase.GONE, started=10.0) for node in NODES[1:]]
    ended = over(first, *idle, on_head_only=True, is_launched=True)
    assert (ended.reason, ended.message) == ("TaskFailed", "n3: task 5 was ended by signal 11")
    assert over(first, *idle, on_head_only=True).message == "task 0 on n1 ended with exit code 139"
