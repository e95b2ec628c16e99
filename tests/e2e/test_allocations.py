"""From `kubectl apply` to an exit code: real Allocations, real daemons, real processes on several nodes."""

from __future__ import annotations

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import LEDGERS, NAMESPACES, NODE_INDEXES
from lattice.ledger.verify import verify
from lattice.units import expand_nodes, parse_time
from lattice.views.ledger import Ledger, NodeIndex
from lattice_dev.instance import Instance
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import until
from tests.e2e.work import processes_with


def test_one_node_runs_as_the_user_and_ends_with_its_exit_code(me: Person) -> None:
    me.apply("one", entrypoint="sh -c 'id -un; exit 7'")
    status = me.ended("one")
    assert (status["phase"], status["exit"]["code"], reason(status)) == ("Failed", 7, "TaskFailed")
    assert me.lattice("logs", "one").stdout == "alice\n"


def test_four_nodes_run_one_task_each_with_their_rank(me: Person) -> None:
    me.apply("four", nodes=4, entrypoint="sh -c 'echo $LATTICE_NODE_RANK of $LATTICE_NNODES on $(hostname), head $LATTICE_HEAD_NODE'")
    status = me.ended("four")
    assert (status["phase"], status["nodeCount"], status["nodes"]) == ("Completed", 4, "nid[001-004]")
    printed = {line.partition(": ")[2] for line in me.lattice("logs", "four").stdout.splitlines()}
    assert printed == {f"{rank} of 4 on nid00{rank + 1}, head nid001" for rank in range(4)}


def test_a_script_runs_once_on_the_head_node(me: Person) -> None:
    me.apply("script", nodes=2, script="#!/bin/bash\necho once on $LATTICE_NODENAME of $LATTICE_NODELIST\n")
    status = me.ended("script")
    head, other = status["head"], status["nodes"]
    assert me.lattice("logs", "script").stdout.splitlines()[0].endswith(f"once on {head} of {','.join(expand_nodes(other))}")


def test_one_failed_node_ends_the_others_and_decides_the_exit(me: Person, control_plane: Instance) -> None:
    me.apply("onefails", nodes=3, entrypoint="sh -c 'test $LATTICE_NODE_RANK = 1 && exit 9; exec sleep 4242.1'")
    status = me.ended("onefails")
    assert (status["phase"], status["exit"]["code"], status["exit"]["rank"]) == ("Failed", 9, 1)
    assert processes_with(control_plane, "4242.1") == []


def test_a_signal_is_shown_as_128_and_its_number(me: Person) -> None:
    me.apply("signal", entrypoint="sh -c 'kill -SEGV $$'")
    ended = me.ended("signal")["exit"]
    assert (ended["code"], ended["signal"], ended["rank"]) == (139, 11, 0)


def test_at_its_walltime_it_gets_term_grace_and_kill(me: Person, control_plane: Instance) -> None:
    me.apply("wall", walltime="1s", entrypoint="sh -c 'trap \"\" TERM; while :; do sleep 4242.2; done'", lifecycle={"gracePeriod": "1s"})
    status = me.ended("wall")
    assert (status["phase"], reason(status)) == ("Failed", "WalltimeExceeded")
    assert status["exit"]["signal"] == 9
    assert parse_time(status["endTime"]) - parse_time(status["startTime"]) >= 2
    assert processes_with(control_plane, "4242.2") == []


def test_cancelled_while_it_runs_it_ends_and_its_object_stays(me: Person, control_plane: Instance) -> None:
    me.apply("stay", nodes=2, entrypoint="sleep 4242.3")
    me.phase("stay", "Running")
    me.lattice("cancel", "stay")
    status = me.ended("stay")
    assert (status["phase"], reason(status), status["exit"]["signal"]) == ("Cancelled", "Cancelled", 15)
    assert processes_with(control_plane, "4242.3") == []


def test_deleted_while_it_runs_it_is_gone_only_when_nothing_runs(me: Person, control_plane: Instance) -> None:
    me.apply("gone", entrypoint="sleep 4242.4")
    me.phase("gone", "Running")
    me.kubectl("delete", "alloc", "gone", "-n", me.namespace, "--wait=true", "--timeout=300s")
    assert processes_with(control_plane, "4242.4") == []


def test_a_namespace_with_running_work_goes_when_its_work_has_ended(me: Person, admin: BlockingCluster, control_plane: Instance) -> None:
    me.apply("inside", nodes=2, entrypoint="sleep 4242.5")
    me.phase("inside", "Running")
    admin.delete(NAMESPACES, me.namespace)
    until(lambda: processes_with(control_plane, "4242.5") == [], within=30, what="the end of the work")
    until(lambda: me.namespace not in {item["metadata"]["name"] for item in admin.list(NAMESPACES).items
                                       if item["metadata"].get("deletionTimestamp")}, within=60, what="the end of the namespace")  # fmt: skip


def test_a_manifest_applied_twice_shows_no_difference(me: Person) -> None:
    me.apply("twice", entrypoint="true")
    me.ended("twice")
    version = me.get("twice")["metadata"]["resourceVersion"]
    again = me.apply("twice", entrypoint="true")
    assert "unchanged" in again.stdout
    assert me.get("twice")["metadata"]["resourceVersion"] == version


def test_bob_may_see_and_may_not_cancel_delete_or_read_the_logs_of_alices_work(control_plane: Instance, me: Person) -> None:
    me.apply("private", entrypoint="sh -c 'echo secret; sleep 4242.6'")
    me.phase("private", "Running")
    bob = person(control_plane, "bob", me.namespace)
    assert "private" in bob.kubectl("get", "alloc", "-n", me.namespace).stdout
    for words in (("cancel", "private"), ("logs", "private")):
        refused = bob.lattice(*words, ok=False)
        assert refused.returncode not in (0, 2), words
        assert "secret" not in refused.stdout
        assert "alice" in refused.stderr or "not the work of" in refused.stderr, refused.stderr
    assert bob.kubectl("delete", "alloc", "private", "-n", me.namespace, ok=False).returncode != 0
    assert me.get("private")["status"]["phase"] == "Running"


def test_held_it_waits_and_released_it_runs(me: Person) -> None:
    me.apply("held", entrypoint="true", hold=True)
    status = me.phase("held", "Pending")
    until(lambda: reason(me.get("held")["status"], "Scheduled") == "Held", within=10)
    me.lattice("release", "held")
    assert me.ended("held")["phase"] == "Completed"
    assert status.get("exit") is None


def test_what_never_fits_is_accepted_and_says_so_with_numbers(me: Person) -> None:
    applied = me.apply("wide", nodes=400, entrypoint="true")
    assert "400" in applied.stderr + applied.stdout
    until(lambda: reason(me.get("wide").get("status", {}), "Scheduled") == "NeverFits", within=10)
    shown = me.lattice("why", "wide").stdout
    assert "NeverFits" in shown
    assert "needs 400 nodes" in shown


def test_more_than_is_free_waits_and_starts_as_soon_as_it_fits(me: Person) -> None:
    me.apply("first", nodes=3, entrypoint="sleep 4242.7")
    me.phase("first", "Running")
    me.apply("second", nodes=2, entrypoint="true")
    until(lambda: reason(me.get("second").get("status", {}), "Scheduled") == "WaitingForNodes", within=10)
    me.lattice("cancel", "first")
    first, second = me.ended("first"), me.ended("second")
    assert second["startTime"] >= first["endTime"]


def test_the_ledger_is_sound_after_all_of_this(admin: BlockingCluster, me: Person) -> None:
    me.apply("last", nodes=4, entrypoint="true")
    me.ended("last")
    ledger = admin.get(LEDGERS, "lattice", type=Ledger)
    index = admin.get(NODE_INDEXES, "lattice", type=NodeIndex)
    assert ledger.status is not None
    assert verify(ledger.status, {int(number): name for number, name in index.spec.names.items()}) == []
