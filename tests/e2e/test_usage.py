"""Usage through the daemons: what ran is charged once and stays known after its object is gone; budgets make work wait and let it go."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lattice.accounting.charges import Charge, charges_of
from lattice.accounting.records import read_rows, record_name, rows_text
from lattice.errors import Denied, Rejected
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS, EVENTS, LEDGERS, TENANTS, USAGE_RECORDS
from lattice.units import encode_uid, format_time, parse_time
from lattice.views import Allocation
from lattice_dev import install
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until

pytestmark = pytest.mark.usefixtures("quick_retries")


def recorded(admin: BlockingCluster, tenant: str) -> list[Charge]:
    """Every row of a tenant's records."""
    rows: list[Charge] = []
    for item in admin.list(USAGE_RECORDS, labels=f"lattice.dev/tenant={tenant}").items:
        rows += read_rows(item["spec"]["rows"], tenant)
    return rows


def told(admin: BlockingCluster, tenant: Room) -> dict[str, tuple[int, int]]:
    """(attempts, node-seconds) of each allocation, by its object alone."""
    objects = admin.list(ALLOCATIONS, tenant.namespace, type=Allocation).items
    return {one.metadata.uid: (len(charges_of(one)), sum(charge.node_seconds for charge in charges_of(one))) for one in objects}


def asked(who: Person, *words: str) -> dict[str, Any]:
    """The document of a verb."""
    answer: dict[str, Any] = json.loads(who.lattice(*words, "-o", "json").stdout)
    return answer


def exhausted(admin: BlockingCluster, tenant: Room, hours: int, ended: int = 0) -> None:
    """Have the records say that one node worked so many hours up to a time, else yesterday: the operator's part, played with its identity."""
    ended = ended or int(time.time()) - 86400
    month = format_time(ended)[:7]
    charge = Charge(
        "00000000-0000-4000-8000-000000000001", 1, 1, 1, tenant.name, tenant.namespace, "past", "", "bob", "", "hpc-batch", 1, 0, ended - 3600 * hours,
        ended - 3600 * hours, ended - 3600 * hours, ended, "Completed", "Completed", 0, 3600 * hours, 0, 5,
    )  # fmt: skip
    body = {
        "metadata": {"name": record_name(tenant.name, month, 0), "labels": {"lattice.dev/tenant": tenant.name}},
        "spec": {"tenant": tenant.name, "month": month, "part": 0, "rows": rows_text([charge])},
    }
    admin.create(USAGE_RECORDS, {"apiVersion": "lattice.dev/v1alpha1", "kind": "UsageRecord", **body})


def test_hours_stay_right_after_requeues_deletion_and_kills_and_history_knows_what_is_gone(
    control_plane: Instance, admin: BlockingCluster, tenant: Room, me: Person
) -> None:
    me.apply("plain", nodes=2, entrypoint="sleep 1.5", tags={"name": "first-run"}, project="lhc")
    me.apply("again", entrypoint="sh -c 'sleep 0.5; exit 3'", lifecycle={"requeue": {"policy": "Always", "max": 2}})
    me.apply("never", nodes=1, hold=True, entrypoint="true")
    assert me.ended("plain")["phase"] == "Completed"
    me.lattice("cancel", "never")
    for program in ("operator", "scheduler"):
        control_plane.kill(program)
        control_plane.start(program, wait=False)
    assert me.ended("again", within=60)["phase"] == "Failed"
    assert me.ended("never")["phase"] == "Cancelled"
    objects = told(admin, tenant)
    for name in ("plain", "again", "never"):
        me.kubectl("delete", "alloc", name, "-n", me.namespace, "--wait=false")
    until(lambda: not admin.list(ALLOCATIONS, tenant.namespace).items, within=30, what="the objects to go")
    rows = recorded(admin, tenant.name)
    found: dict[str, tuple[int, int]] = dict.fromkeys(objects, (0, 0))
    for row in rows:
        attempts, seconds = found[row.uid]
        found[row.uid] = (attempts + row.attempt - row.first + 1, seconds + row.node_seconds)
    assert found == objects
    assert sorted(row.state for row in rows) == ["Cancelled", "Completed", "Failed", "Requeued", "Requeued"]
    history = asked(me, "history", "--tenant", tenant.name)
    assert [(row["name"], row["attempt"], row["state"]) for row in history["rows"] if row["name"] == "again"] == [
        ("again", 3, "Failed"), ("again", 2, "Requeued"), ("again", 1, "Requeued"),
    ]  # fmt: skip
    first = next(row for row in history["rows"] if row["name"] == "plain")
    assert (first["job"], first["project"], first["nodes"], first["exit"], first["user"]) == ("first-run", "lhc", 2, 0, "alice")
    usage = asked(me, "usage", "--tenant", tenant.name)
    assert usage["nodeHours"] == pytest.approx(sum(seconds for _, seconds in objects.values()) / 3600, abs=1e-3)


def test_a_used_up_budget_makes_work_wait_tells_the_tenant_and_lets_go_when_it_is_raised(
    control_plane: Instance, admin: BlockingCluster, tenant: Room, me: Person
) -> None:
    with control_plane.cluster("operator") as operator:
        exhausted(operator, tenant, 2)
    admin.patch(TENANTS, tenant.name, {"spec": {"budget": {"nodeHours": 2, "onExhausted": "Queue"}}})
    me.apply("waits", entrypoint="true")
    until(lambda: reason(me.get("waits").get("status", {}), "Scheduled") == "BudgetExhausted", within=20, what="BudgetExhausted")
    why = me.lattice("why", "waits").stdout
    assert f'tenant "{tenant.name}" has used 2 of 2 node-hours in the last 90 days' in why
    events = until(
        lambda: [one for one in admin.list(EVENTS, tenant.namespace).items if one["reason"] == "BudgetExhausted"],
        within=20,
        what="the event",
    )
    assert len(events) == 1
    assert "100 % of a budget" in events[0]["note"]
    status = until(lambda: admin.get(TENANTS, tenant.name)["status"].get("usage"), within=10, what="the usage in the tenant's status")
    assert (status["nodeHours"], status["budgets"][0]["fraction"], status["budgets"][0]["source"]) == ("2", "1000m", "Internal")
    shown = me.lattice("usage", "--tenant", tenant.name).stdout
    assert "used up" in shown
    assert "work waits" in shown
    admin.patch(TENANTS, tenant.name, {"spec": {"budget": {"nodeHours": 200}}})
    assert me.ended("waits")["phase"] == "Completed"


def test_work_that_waits_for_a_rolling_budget_starts_by_itself_once_enough_has_left_the_window(
    control_plane: Instance, admin: BlockingCluster, tenant: Room, me: Person
) -> None:
    lets_go = int(time.time()) + 12
    with control_plane.cluster("operator") as operator:
        exhausted(operator, tenant, 2, ended=lets_go - 86400 + 3600)  # one of the two hours lies within the last day, and less from then on
    admin.patch(TENANTS, tenant.name, {"spec": {"budget": {"nodeHours": 1, "periodDays": 1, "onExhausted": "Queue"}}})
    usage = until(lambda: admin.get(TENANTS, tenant.name)["status"].get("usage"), within=20, what="the budget in the tenant's status")
    assert [one["nodeHoursLimit"] for one in usage["budgets"]] == ["1"]
    me.apply("waits", entrypoint="true")
    ended = me.ended("waits", within=60)
    assert ended["phase"] == "Completed"
    assert parse_time(ended["scheduledTime"]) >= lets_go


def test_an_outside_source_takes_precedence_while_it_is_fresh(admin: BlockingCluster, tenant: Room, me: Person) -> None:
    told_by = {"source": "waldur", "nodeHours": {"used": "120.5", "limit": 100}, "observed": format_time(time.time()), "validFor": "1h"}
    admin.patch(TENANTS, tenant.name, {"spec": {"budget": {"nodeHours": 1000, "onExhausted": "Queue"}}})
    admin.patch(TENANTS, tenant.name, {"status": {"externalBudget": told_by}}, subresource="status")
    me.apply("waits", entrypoint="true")
    until(lambda: reason(me.get("waits").get("status", {}), "Scheduled") == "BudgetExhausted", within=20, what="BudgetExhausted")
    assert "has used 120.5 of 100 node-hours in the last 90 days (told by waldur)" in me.lattice("why", "waits").stdout
    admin.patch(TENANTS, tenant.name, {"status": {"externalBudget": {"observed": "2026-01-01T00:00:00Z"}}}, subresource="status")
    assert me.ended("waits")["phase"] == "Completed"


def test_an_ordinary_user_reads_his_own_rows_and_the_tenants_sums_and_its_admin_names(
    control_plane: Instance, admin: BlockingCluster, tenant: Room, me: Person
) -> None:
    install.grant(admin, tenant.name, "carol", admin=True)
    control_plane.add_user("carol", tenant.name, "admin")
    bob, carol = person(control_plane, "bob", tenant.namespace), person(control_plane, "carol", tenant.namespace)
    me.apply("of-alice", entrypoint="sleep 1.2")
    bob.apply("of-bob", entrypoint="sleep 1.2")
    assert (me.ended("of-alice")["phase"], bob.ended("of-bob")["phase"]) == ("Completed", "Completed")
    assert {row["user"] for row in asked(me, "history", "--tenant", tenant.name)["rows"]} == {"alice"}
    assert {part["name"] for part in asked(me, "usage", "--tenant", tenant.name)["users"]} == {"alice", "others"}
    refused = me.lattice("history", "--user", "bob", ok=False)
    assert (refused.returncode, "admins of the tenant" in refused.stderr) == (5, True), refused.stderr
    until(Seen(lambda: asked(carol, "history", "--tenant", tenant.name)["rows"], lambda rows: {row["user"] for row in rows} == {"alice", "bob"}),
          within=20, what="what the tenant's admin reads")  # fmt: skip
    assert {part["name"] for part in asked(carol, "usage", "--tenant", tenant.name)["users"]} == {"alice", "bob"}


def test_usage_records_are_appended_to_by_the_operator_alone_and_deleted_by_nobody(
    control_plane: Instance, admin: BlockingCluster, tenant: Room
) -> None:
    with control_plane.cluster("operator") as operator:
        exhausted(operator, tenant, 1)
        name = operator.list(USAGE_RECORDS, labels=f"lattice.dev/tenant={tenant.name}").items[0]["metadata"]["name"]
        with pytest.raises(Rejected, match="only appended to"):
            operator.patch(USAGE_RECORDS, name, {"spec": {"rows": "1\n"}})
        operator.patch(USAGE_RECORDS, name, {"spec": {"sealed": True}})
        rows = operator.get(USAGE_RECORDS, name)["spec"]["rows"]
        with pytest.raises(Rejected, match="the part is sealed"):
            operator.patch(USAGE_RECORDS, name, {"spec": {"rows": rows + "more\n"}})
    with pytest.raises(Denied, match="is never deleted"):
        admin.delete(USAGE_RECORDS, name)
    with pytest.raises(Denied, match="by the operator alone"):
        admin.patch(USAGE_RECORDS, name, {"metadata": {"labels": {"a": "b"}}})


def test_hours_of_work_whose_object_is_removed_by_force_are_charged_also_after_the_operator_is_killed(
    control_plane: Instance, admin: BlockingCluster, tenant: Room, me: Person
) -> None:
    me.apply("forced", nodes=2, walltime="10m", entrypoint="sleep 300", tasks={"on": "EveryNode"})
    me.phase("forced", "Running")
    time.sleep(4)
    uid = me.get("forced")["metadata"]["uid"]
    unhold = {"metadata": {"finalizers": None}}
    with pytest.raises(Denied, match="is removed by Lattice once the nodes are free"):
        admin.patch(ALLOCATIONS, "forced", unhold, tenant.namespace)
    with control_plane.cluster("scheduler") as scheduler:  # who has its certificate, or edits the policy, may
        scheduler.patch(ALLOCATIONS, "forced", unhold, tenant.namespace)
    admin.delete(ALLOCATIONS, "forced", tenant.namespace)
    until(lambda: [row for row in recorded(admin, tenant.name) if row.uid == uid], within=20, what="the row of what was removed")
    control_plane.kill("operator")
    control_plane.start("operator")
    (row,) = [row for row in recorded(admin, tenant.name) if row.uid == uid]
    assert (row.nodes, row.user, row.reason) == (2, "alice", "Removed")
    assert row.node_seconds >= 2 * 4
    used = Seen(lambda: asked(me, "usage", "--tenant", tenant.name), lambda found: found["nodeHours"] >= round(2 * 4 / 3600, 4))
    until(used, within=30, every=0.5, what="the hours in usage")
    assert [one["name"] for one in asked(me, "history", "--tenant", tenant.name)["rows"]] == ["forced"]
    held = encode_uid(uid)
    until(lambda: held not in str(admin.list(LEDGERS).items), within=60, what="the end of its ledger row")
