"""Whole lives on hollow nodes: the shell, the machines and the status, against the fake API server."""

from __future__ import annotations

import asyncio

import pytest

from lattice.errors import Rejected, Retry
from lattice.kube.resources import ALLOCATIONS, LEASES, NODES
from lattice.models.conditions import NAME_CONFLICT
from lattice_agent.cluster.registration import Registration
from tests.unit.agent.site import BEAT, Site, running

FOUR = ("n1", "n2", "n3", "n4")


def wait(seconds: float | None = None, code: int = 0) -> dict[str, object]:
    given = {} if seconds is None else {"HOLLOW_SECONDS": str(seconds)}
    return {"variables": given | {"HOLLOW_EXIT": str(code)}}


async def test_a_new_node_registers_gets_an_index_reads_its_plan_and_only_then_renews_its_lease() -> None:
    site = Site(["n1"])
    site.boot()
    try:
        await site.clock.run_for(1)
        node = site.cluster.snapshot(NODES)["n1"]
        assert node["status"]["instance"] == "first-n1"
        assert node["status"]["hollow"] is True
        assert node["status"]["formats"] == {"plan": 2, "report": 1, "exit": 2, "state": 2}
        assert node["spec"] == {"group": "g0"}
        assert site.cluster.snapshot(LEASES) == {}
        await site.index_nodes()
        await site.clock.run_for(1)
        assert site.report("n1").hb == 1
        assert site.report("n1").boot == "boot-1"
    finally:
        await site.halt()


async def test_a_roll_call_is_answered_with_one_heartbeat_at_once_and_only_once() -> None:
    async with running("n1", "n2") as site:
        await site.publish(call=1)
        await site.clock.run_for(0.2)
        before = {node: site.report(node).hb for node in ("n1", "n2")}
        await site.publish(call=2)
        await site.clock.run_for(0.2)
        assert {node: site.report(node).hb - before[node] for node in before} == {"n1": 1, "n2": 1}
        await site.publish(call=2)
        await site.clock.run_for(0.2)
        assert {node: site.report(node).hb - before[node] for node in before} == {"n1": 1, "n2": 1}


async def test_one_node_work_runs_and_completes_with_one_patch_a_transition() -> None:
    async with running("n1") as site:
        await site.submit(environment=wait(5))
        await site.place_work(1, ["n1"])
        await site.clock.run_for(2)
        started = site.status()
        assert started.phase == "Running"
        assert started.start_time
        assert started.report is not None
        assert (started.report.attempt, started.report.by) == (1, "n1")
        await site.clock.run_for(4)
        ended = site.status()
        assert (ended.phase, site.reason()) == ("Completed", "Completed")
        assert ended.exit is not None
        assert ended.exit.code == 0
        assert ended.hollow is True
        assert ended.observed_generation == 1
        assert site.status_writes() == 2


@pytest.mark.parametrize("seconds", [0, 0.4])
async def test_work_that_ends_before_started_is_written_costs_one_patch_with_both(seconds: float) -> None:
    async with running("n1") as site:
        await site.submit(environment=wait(seconds))
        await site.place_work(1, ["n1"])
        await site.clock.run_for(2)
        assert {entry.type for entry in site.status().conditions} >= {"Started", "Finished"}
        assert site.status_writes() == 1


async def test_a_start_is_shown_half_a_second_after_the_last_node_s() -> None:
    async with running(*FOUR) as site:
        await site.submit(environment=wait(5))
        await site.place_work(1, FOUR)
        await site.clock.run_for(0.45)
        assert (site.reported("n1"), site.status().phase, site.status_writes()) == ([], "Staging", 0)
        await site.clock.run_for(0.2)
        assert (site.status().phase, site.status_writes()) == ("Running", 1)


async def test_a_failing_task_shows_its_code_and_node_and_is_not_requeued() -> None:
    async with running("n1") as site:
        await site.submit(environment=wait(1, code=7))
        await site.place_work(1, ["n1"])
        await site.clock.run_for(3)
        ended = site.status()
        assert (ended.phase, site.reason()) == ("Failed", "TaskFailed")
        assert ended.exit is not None
        assert (ended.exit.code, ended.exit.node) == (7, "n1")


async def test_without_a_gateway_new_work_waits_and_what_runs_is_ended_and_reported() -> None:
    async with running("n1", "n2") as site:
        await site.submit(environment=wait(20))
        await site.submit(2, environment=wait(1))
        await site.place_work(1, ["n1"])
        await site.clock.run_for(2)
        assert site.status().phase == "Running"
        site.gateway.away = True
        await site.place_work(2, ["n2"])
        await site.clock.run_for(60)
        assert (site.status().phase, site.reason()) == ("Completed", "Completed")
        assert site.status(2).phase == "Staging"
        assert site.reported("n2") == ["pg"]
        site.gateway.away = False
        await site.clock.run_for(10)
        assert site.status(2).phase == "Completed"


async def test_work_whose_secret_cannot_be_had_ends_with_the_sentence() -> None:
    async with running("n1", "n2") as site:
        site.gateway.refusal = "there is no Secret physics/wandb (environment.variablesFrom)"
        await site.submit(environment=wait(5))
        await site.place_work(1, ["n1", "n2"])
        await site.clock.run_for(5)
        assert (site.status().phase, site.reason()) == ("Failed", "StartFailed")
        finished = next(entry for entry in site.status().conditions if entry.type == "Finished")
        assert "there is no Secret physics/wandb" in finished.message


async def test_an_end_whose_allocation_somebody_changed_meanwhile_is_reported_once_a_gateway_is_there() -> None:
    async with running("n1") as site:
        await site.submit(environment=wait(5))
        await site.place_work(1, ["n1"])
        await site.clock.run_for(2)
        site.gateway.away = True
        await site.cluster.patch(ALLOCATIONS, "job-1", {"metadata": {"labels": {"by": "alice"}}}, "physics")
        await site.clock.run_for(20)
        assert site.status().phase == "Running"
        assert site.reported("n1") == ["e0"]
        site.gateway.away = False
        await site.clock.run_for(10)
        assert site.status().phase == "Completed"


async def test_a_status_written_by_others_meanwhile_is_kept_whole() -> None:
    async with running("n1") as site:
        await site.submit(environment=wait(5))
        await site.place_work(1, ["n1"])
        await site.clock.run_for(2)
        await site.cluster.patch(ALLOCATIONS, "job-1", {"status": {"fieldOfALaterRelease": {"a": [1]}}}, "physics", subresource="status")
        await site.clock.run_for(5)
        stored = site.cluster.snapshot(ALLOCATIONS)["physics/job-1"]["status"]
        assert (stored["phase"], stored["fieldOfALaterRelease"]) == ("Completed", {"a": [1]})


async def test_four_nodes_start_together_and_the_head_writes_each_transition_once() -> None:
    async with running(*FOUR) as site:
        await site.submit(environment=wait(5))
        await site.place_work(1, FOUR)
        await site.clock.run_for(2)
        assert site.status().phase == "Running"
        await site.clock.run_for(5)
        assert site.status().phase == "Completed"
        assert site.status_writes() == 2
        await site.withdraw(1)
        await site.clock.run_for(BEAT)
        assert [site.reported(node) for node in FOUR] == [[], [], [], []]


async def test_work_of_the_head_ends_the_taskless_nodes_with_it() -> None:
    async with running(*FOUR) as site:
        await site.submit(environment=wait(5), tasks={"on": "HeadNode"})
        await site.place_work(1, FOUR)
        await site.clock.run_for(4)
        assert site.status().phase == "Running"
        await site.clock.run_for(3)
        assert (site.status().phase, site.reason()) == ("Completed", "Completed")


async def test_walltime_ends_the_work_and_says_so() -> None:
    async with running(*FOUR) as site:
        await site.submit(environment=wait(), lifecycle={"walltime": "60s", "gracePeriod": "5s"})
        await site.place_work(1, FOUR)
        await site.clock.run_for(50)
        assert site.status().phase == "Running"
        await site.clock.run_for(15)
        assert (site.status().phase, site.reason()) == ("Failed", "WalltimeExceeded")


async def test_a_clock_that_jumps_neither_shortens_nor_lengthens_a_walltime() -> None:
    async with running("n1", "n2") as site:
        for number, node in ((1, "n1"), (2, "n2")):
            await site.submit(number, environment=wait(), lifecycle={"walltime": "60s", "gracePeriod": "5s"})
            await site.place_work(number, [node])
        await site.clock.run_for(30)
        site.clock.jump(86_400.0)
        await site.clock.run_for(20)
        site.clock.jump(-2 * 86_400.0)
        await site.clock.run_for(8)
        assert [site.reported(node) for node in ("n1", "n2")] == [["r"], ["r"]]
        await site.clock.run_for(8)
        assert [site.reason(number) for number in (1, 2)] == ["WalltimeExceeded"] * 2
        before = [site.report(node).hb for node in ("n1", "n2")]
        await site.clock.run_for(3 * BEAT)
        assert all(site.report(node).hb > count for node, count in zip(("n1", "n2"), before, strict=True))


async def test_a_longer_walltime_arrives_with_the_generation() -> None:
    async with running("n1") as site:
        await site.submit(environment=wait(), lifecycle={"walltime": "60s"})
        await site.place_work(1, ["n1"])
        await site.clock.run_for(30)
        await site.cluster.patch(ALLOCATIONS, "job-1", {"spec": {"lifecycle": {"walltime": "120s"}}}, "physics")
        await site.change(1, generation=2)
        await site.clock.run_for(60)
        assert site.reason() == ""
        await site.clock.run_for(40)
        assert site.reason() == "WalltimeExceeded"


async def test_a_stop_row_ends_the_work_is_confirmed_at_once_and_written_as_stopped() -> None:
    async with running(*FOUR) as site:
        await site.submit(environment=wait())
        await site.place_work(1, FOUR)
        await site.clock.run_for(2)
        await site.change(1, order="stop", cause="c")
        await site.clock.run_for(1)
        assert [site.reported(node) for node in FOUR] == [["gb"]] * 4
        assert site.reason() == "Stopped"
        await site.withdraw(1)
        await site.clock.run_for(BEAT)
        assert site.reported("n1") == []


async def test_a_stop_row_of_an_unknown_attempt_is_confirmed_at_once() -> None:
    async with running("n1") as site:
        await site.submit(environment=wait())
        await site.place_work(1, ["n1"])
        await site.change(1, order="stop", cause="c")
        await site.clock.run_for(1)
        assert site.reported("n1") == ["g"]


async def test_a_row_that_disappears_ends_nothing_and_is_reported_unnamed_and_blocks_new_work() -> None:
    async with running("n1") as site:
        await site.submit(1, environment=wait())
        await site.place_work(1, ["n1"])
        await site.clock.run_for(2)
        row = site.rows.copy()
        await site.withdraw(1)
        await site.submit(2, environment=wait(1))
        await site.place_work(2, ["n1"])
        await site.clock.run_for(1)
        assert site.reported("n1") == ["u"], "said at once"
        await site.clock.run_for(20)
        assert sorted(site.reported("n1")) == ["p", "u"]
        assert site.status(2).phase == "Staging"
        site.rows |= row
        await site.change(1, order="stop", cause="n")
        await site.clock.run_for(5)
        assert site.status(2).phase == "Completed"


async def test_an_older_plan_is_ignored() -> None:
    async with running("n1") as site:
        await site.submit(environment=wait())
        await site.place_work(1, ["n1"])
        await site.clock.run_for(2)
        row = site.rows.copy()
        site.rows.clear()
        await site.publish(seq=0)
        await site.clock.run_for(BEAT)
        assert site.reported("n1") == ["r"]
        site.rows |= row
        assert site.agents["n1"].machine.ignored_plans == 1


async def test_a_new_reporter_takes_over_and_finishes_the_report() -> None:
    async with running(*FOUR) as site:
        await site.submit(environment=wait(20))
        await site.place_work(1, FOUR)
        await site.clock.run_for(2)
        site.peers.leave("n1")
        await site.change(1, reporter="n2", address="n2:50052")
        await site.cluster.patch(ALLOCATIONS, "job-1", {"status": {"reporter": "n2"}}, "physics", subresource="status")
        await site.clock.run_for(30)
        ended = site.status()
        assert (ended.phase, site.reason()) == ("Completed", "Completed")
        assert ended.report is not None
        assert ended.report.by == "n2"
        assert not site.agents["n1"].reporter.reports(next(iter(site.agents["n2"].machine.attempts)))


async def test_the_report_waits_for_the_projector_and_survives_a_lost_answer_and_an_absent_api_server() -> None:
    async with running("n1") as site:
        await site.submit(environment=wait(1))
        gone = site.cluster.fail(Retry("connection refused"), verb="get", resource=ALLOCATIONS, times=20)
        await site.place_work(1, ["n1"])
        site.cluster.lose_answer("patch", ALLOCATIONS, "job-1")
        await site.clock.run_for(60)
        gone.times = 0
        await site.clock.run_for(10)
        assert site.status().phase == "Completed"
        assert site.reason() == "Completed"


async def test_rows_that_a_reinstalled_node_finds_in_its_first_plan_are_lost_and_never_started() -> None:
    async with running("n1") as site:
        await site.submit(environment=wait(1))
        await site.halt()
        await site.place_work(1, ["n1"])
        site.boot("second")
        await site.clock.run_for(3 * BEAT)
        assert site.reported("n1") == ["l"]
        assert site.reason() == "Lost"
        assert site.status().phase == "Staging", "the scheduler says what follows"
        assert site.status().start_time is None


async def test_a_row_that_comes_while_the_agent_is_up_is_never_lost() -> None:
    async with running("n1") as site:
        for number in range(1, 6):
            await site.submit(number, environment=wait(1))
            await site.place_work(number, ["n1"])
            await site.clock.run_for(3)
            await site.withdraw(number)
        await site.clock.run_for(1)
        assert [site.reason(number) for number in range(1, 6)] == ["Completed"] * 5


async def test_a_second_agent_of_the_same_name_is_refused_and_shown() -> None:
    async with running("n1") as site:
        place = site.place("n1", "stranger")
        registration = Registration(site.cluster, site.clock, place.me, heartbeat_seconds=BEAT)
        second = asyncio.ensure_future(registration.register())
        await site.clock.run_for(2 * BEAT)
        with pytest.raises(Rejected, match="already reports under this name") as refused:
            await second
        assert refused.value.reason == "NameTaken"
        conditions = site.cluster.snapshot(NODES)["n1"]["status"]["conditions"]
        assert [(entry["type"], entry["status"]) for entry in conditions] == [(NAME_CONFLICT, "True")]


async def test_variables_that_are_no_numbers_fail_the_start_with_the_sentence() -> None:
    async with running(*FOUR) as site:
        await site.submit(environment={"variables": {"HOLLOW_SECONDS": "soon"}})
        await site.place_work(1, FOUR)
        await site.clock.run_for(2)
        assert (site.status().phase, site.reason()) == ("Failed", "StartFailed")
        assert any(state.startswith("fStartFailed") for state in site.reported("n1"))


async def test_a_node_that_finds_itself_unfit_says_why_and_once_more_when_it_is_well() -> None:
    async with running("n1", "n2") as site:

        def shown(node: str) -> tuple[str, list[tuple[str, str]]]:
            status = site.cluster.snapshot(NODES)[node]["status"]
            return status["health"], [(entry["status"], entry["message"]) for entry in status.get("conditions", [])]

        site.flaws["n1"] = "its state directory has 3 MiB free"
        await site.clock.run_for(BEAT)
        assert shown("n1") == ("Unhealthy", [("False", "its state directory has 3 MiB free")])
        assert shown("n2") == ("Healthy", [])
        writes = len(site.cluster.writes(NODES))
        site.flaws["n1"] = "its state directory has 2 MiB free"
        await site.clock.run_for(3 * BEAT)
        assert len(site.cluster.writes(NODES)) == writes
        site.flaws.clear()
        await site.clock.run_for(BEAT)
        assert shown("n1") == ("Healthy", [("True", "nothing is wrong with it any more")])


async def test_a_node_says_which_limits_of_work_do_not_hold_there_and_takes_work_all_the_same() -> None:
    async with running("n1", "n2") as site:

        def shown(node: str) -> tuple[str, list[tuple[str, str, str]]]:
            status = site.cluster.snapshot(NODES)[node]["status"]
            return status["health"], [(one["type"], one["status"], one["message"]) for one in status.get("conditions", [])]

        site.unlimited["n1"] = "its kernel does not serve the cgroup controllers memory"
        await site.clock.run_for(BEAT)
        assert shown("n1") == ("Healthy", [("LimitsMissing", "True", site.unlimited["n1"])])
        assert shown("n2") == ("Healthy", [])
        site.unlimited.clear()
        await site.clock.run_for(BEAT)
        assert shown("n1") == ("Healthy", [("LimitsMissing", "False", "every limit of work holds")])


async def test_a_deleted_node_object_comes_back() -> None:
    async with running("n1") as site:
        await site.cluster.delete(NODES, "n1")
        await site.clock.run_for(1)
        assert site.cluster.snapshot(NODES)["n1"]["status"]["instance"] == "first-n1"
