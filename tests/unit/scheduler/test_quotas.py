"""The quota trees of the scheduler: planted as objects declare them, with the nodes' capacity; where groups stand is published once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import NotFound, Retry
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change
from lattice.kube.resources import ELASTIC_QUOTAS, KOORDINATOR_PROFILES, KOORDINATOR_QUOTAS
from lattice.quota.forest import Overuse
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views import ElasticQuota, KoordinatorProfile, KoordinatorQuota, Metadata, Node
from lattice.views.cluster import Capabilities, Config, ConfigSpec, NodeSpec, NodeStatus, QuotaTreeOptions
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.quota_status import QuotaStatus
from lattice_controllers.scheduler.quotas import ABSENT_SECONDS, Quotas
from tests.build import allocation, node
from tests.unit.scheduler.doubles import FakeLedger, Wakes, known
from tests.unit.scheduling.moments import NOW, holding, pending

PREFIX = "quota.scheduling.koordinator.sh/"


class Site:
    """Eight nodes, an API server, and the quota trees over them."""

    def __init__(self, options: QuotaTreeOptions | None = None) -> None:
        self.clock = ManualClock(NOW)
        self.cluster = FakeCluster(self.clock)
        self.state = ClusterState(policies={"hpc": Policy("hpc")})
        self.nodes: dict[str, Node] = {}
        self.rebound = 0
        for index in range(8):
            self.put(index)
        self.over: dict[str, Overuse] = {}
        self.metrics = SchedulerMetrics()
        self.wakes = Wakes()
        self.config = known(Config(metadata=Metadata(name="lattice"), spec=ConfigSpec(quota_tree=options or QuotaTreeOptions())))
        self.quotas = Quotas(self.cluster, self.clock, self.state, nodes=self.nodes, config=self.config, cycle_due=self.wakes)
        self.status = QuotaStatus(self.cluster, self.clock, self.state, self.quotas, self, FakeLedger(), self.metrics)
        self.quotas.started()

    def put(self, index: int, **fields: Any) -> None:
        facts = node(index, **{"group": f"g{index // 4}", **fields})
        self.state.node_cache.put(facts)
        self.nodes[facts.name] = Node(
            metadata=Metadata(name=facts.name), spec=NodeSpec(group=facts.group),
            status=NodeStatus(state=facts.state, capabilities=Capabilities(cpus=facts.cpus, gpus=facts.gpus, gpu_type=facts.gpu_type)),
        )  # fmt: skip

    def over_since(self) -> dict[str, str]:
        """Nobody has been over before."""
        return {}

    def refresh(self, now: float = NOW) -> float | None:
        """Brings the trees up to date as a cycle does; returns when time alone changes them next."""
        found = self.quotas.refresh_for_cycle(now)
        self.rebound += found.rebound
        return found.due

    async def declare(self, name: str, least: int = 0, most: int = 8, **spec: Any) -> None:
        body = {"min": {"nodes": least}, "max": {"nodes": most}, **spec}
        await self.cluster.create(ELASTIC_QUOTAS, {"metadata": {"name": name}, "spec": body})
        await self.seen(name)

    async def seen(self, name: str) -> None:
        """The informer tells of the object as it is now."""
        found = await self.cluster.get(ELASTIC_QUOTAS, name, type=ElasticQuota)
        before = self.quotas.ours.objects.get(name)
        self.quotas.ours.objects[name] = found
        self.quotas._on_change(Change(name, before, found))

    async def shown(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = (await self.cluster.get(ELASTIC_QUOTAS, name)).get("status", {})
        return status

    def runtime(self, name: str) -> int:
        assert self.state.quota_usage is not None
        return self.state.quota_usage.forest.standing(name).runtime["nodes"]


async def two_teams(site: Site) -> None:
    await site.declare("dept", 8, 8, isParent=True)
    await site.declare("a", 4, parent="dept", namespaces=["physics"])
    await site.declare("b", 4, parent="dept", bindings=[{"tenant": "chemistry"}])
    site.refresh(NOW)


async def test_without_a_group_there_is_no_tree() -> None:
    site = Site()
    site.refresh(NOW)
    assert site.state.quota_usage is None
    assert site.quotas.leaf(allocation()) == ""


async def test_groups_are_planted_with_the_capacity_of_the_nodes_and_gone_with_the_last() -> None:
    site = Site()
    await two_teams(site)
    assert site.state.quota_usage is not None
    assert site.state.quota_usage.forest.total()["nodes"] == 8
    assert site.quotas.leaf(allocation()) == "a"
    site.quotas.ours.objects.clear()
    site.quotas.changed()
    site.refresh(NOW)
    assert site.state.quota_usage is None


async def test_work_on_nodes_is_charged_when_a_tree_is_planted() -> None:
    site = Site()
    site.state.put_holder(holding(90, (0, 1), quota="a"))
    await two_teams(site)
    assert site.state.quota_usage is not None
    assert site.state.quota_usage.forest.standing("a").used == {"nodes": 2}
    site.state.validate()


@pytest.mark.parametrize(
    ("state", "held", "nodes"),
    [
        ("Draining", False, 8),
        ("Degraded", False, 8),
        ("Drained", False, 7),
        ("Disabled", False, 7),
        ("Disabled", True, 8),
        ("Down", False, 8),
    ],
)
async def test_a_node_counts_while_it_may_work_or_holds_work(state: str, held: bool, nodes: int) -> None:
    site = Site()
    if held:
        site.state.put_holder(holding(90, (3,), quota="a"))
    await two_teams(site)
    assert site.state.quota_usage is not None
    site.put(3, usable=False, state=state)
    due = site.refresh(NOW)
    assert site.state.quota_usage.forest.total()["nodes"] == nodes
    if state == "Down":
        assert due == NOW + 600
        site.refresh(NOW + 601)
        assert site.state.quota_usage.forest.total()["nodes"] == 7


async def test_a_tree_of_its_own_takes_its_nodes_from_the_default_tree_and_binds_its_work_to_them() -> None:
    site = Site()
    await two_teams(site)
    await site.declare("gpu-tree", 4, 4, isParent=True, tree={"nodes": {"groups": ["g1"]}, "ratio": "1"})
    await site.declare("train", 0, 4, parent="gpu-tree", namespaces=["physics-ml"])
    site.refresh(NOW)
    assert site.state.quota_usage is not None
    forest = site.state.quota_usage.forest
    assert (forest.total()["nodes"], forest.total("gpu-tree")["nodes"]) == (4, 4)
    assert site.quotas.within("train") == 0b11110000
    assert site.quotas.within("a") is None
    site.put(2, group="g1")
    site.refresh(NOW)
    assert (forest.total()["nodes"], forest.total("gpu-tree")["nodes"]) == (3, 5)


async def test_an_object_that_is_left_out_says_why_and_stalls() -> None:
    site = Site()
    await two_teams(site)
    await site.declare("lost", parent="nowhere")
    site.refresh(NOW)
    await site.status.publish()
    conditions = {entry["type"]: (entry["status"], entry["reason"]) for entry in (await site.shown("lost"))["conditions"]}
    assert conditions == {"Ready": ("False", "ParentUnknown"), "Stalled": ("True", "ParentUnknown")}
    assert [(one.object, one.reason) for one in site.quotas.remarks().left_out] == [("ElasticQuota lost (lattice.dev)", "ParentUnknown")]


async def test_a_rule_broken_by_writers_that_raced_stalls_the_group_until_it_is_mended_and_divides_it_all_the_same() -> None:
    site = Site()
    await two_teams(site)
    await site.declare("c", 3, parent="dept")
    site.refresh(NOW)
    await site.status.publish()
    shown = await site.shown("dept")
    conditions = {entry["type"]: (entry["status"], entry["reason"]) for entry in shown["conditions"]}
    assert (conditions["Ready"], conditions["Stalled"]) == (("False", "MinSumAboveParent"), ("True", "MinSumAboveParent"))
    assert shown["runtime"] == {"nodes": "0"}
    assert {entry["reason"] for entry in (await site.shown("c"))["conditions"]} == {"InForce", "WithinRuntime"}
    assert list(site.quotas.remarks().groups) == ["dept"]
    await site.cluster.patch(ELASTIC_QUOTAS, "c", {"spec": {"min": {"nodes": 0}}})
    await site.seen("c")
    site.refresh(NOW)
    await site.status.publish()
    assert {entry["reason"] for entry in (await site.shown("dept"))["conditions"]} == {"InForce", "WithinRuntime"}


async def test_a_resource_that_a_leaf_lacks_counts_above_it() -> None:
    site = Site()
    await site.declare("dept", isParent=True, max={"nodes": 8, "gpu": 2})
    await site.declare("old", parent="dept")
    await site.declare("new", parent="dept", max={"nodes": 8, "gpu": 2})
    site.refresh(NOW)
    assert site.state.quota_usage is not None
    site.state.quota_usage.forest.demand("old", {"gpu": 2}, {"gpu": 2})
    assert site.state.quota_usage.forest.standing("dept").used == {"gpu": 2}
    assert site.quotas.remarks().groups["old"][0] == "ResourcesDiffer"


async def test_options_that_do_not_read_leave_the_last_good_ones_in_force() -> None:
    site = Site(QuotaTreeOptions(delay="5s"))
    await two_teams(site)
    site.config.object = Config(metadata=Metadata(name="lattice"), spec=ConfigSpec(quota_tree=QuotaTreeOptions(delay="soon")))
    site.refresh(NOW)
    assert site.quotas.layout.rules[""].delay_seconds == 5
    assert site.runtime("a") == 0


async def test_where_a_group_stands_is_written_when_it_changes_and_only_then() -> None:
    site = Site()
    await two_teams(site)
    assert site.state.quota_usage is not None
    site.state.put_holder(holding(90, (0, 1, 2, 3, 4), quota="a"))
    site.state.quota_usage.ask([pending(1, nodes=2, quota="a"), pending(2, nodes=1, quota="b")], NOW)
    await site.status.publish()
    status = await site.shown("a")
    assert (status["used"], status["request"], status["runtime"]) == ({"nodes": "5"}, {"nodes": "7"}, {"nodes": "7"})
    assert status["borrowed"] == {"nodes": "1"}
    assert status["summary"]["runtime"] == "7 nodes"
    version = (await site.cluster.get(ELASTIC_QUOTAS, "a"))["metadata"]["resourceVersion"]
    await site.status.publish()
    assert (await site.cluster.get(ELASTIC_QUOTAS, "a"))["metadata"]["resourceVersion"] == version
    site.state.drop_holder(holding(90, (0,)).uid)
    await site.status.publish()
    assert "used" not in await site.shown("a")
    assert "borrowed" not in await site.shown("a")


async def message(site: Site, name: str) -> str:
    """What its condition Ready says."""
    site.refresh(NOW)
    await site.status.publish()
    return next(str(entry["message"]) for entry in (await site.shown(name))["conditions"] if entry["type"] == "Ready")


async def test_a_min_that_nobody_asks_for_is_no_alarm_and_one_that_cannot_be_met_is() -> None:
    site = Site()
    await two_teams(site)
    assert await message(site, "dept") == "its min is guaranteed in full"
    assert await message(site, "a") == "its min is guaranteed in full; while nothing asks for it, less is in effect"
    await site.declare("c", 3, parent="dept")
    assert "the mins of its level are more than the level may use" in await message(site, "a")
    await site.cluster.patch(ELASTIC_QUOTAS, "c", {"spec": {"min": {"nodes": 0}}})
    await site.seen("c")
    assert "guaranteed in full" in await message(site, "a")
    await site.declare("other", 8)
    assert await message(site, "dept") == (
        "of its min of 8 nodes, 4 nodes is in effect now: the mins of its level are more than the level may use"
    )
    assert "the mins of its level are more than the level may use" in await message(site, "a")


async def test_a_write_of_its_status_declares_nothing_anew() -> None:
    site = Site()
    await two_teams(site)
    await site.status.publish()
    rebound, layout = site.rebound, site.quotas.layout
    await site.seen("a")
    site.refresh(NOW)
    assert site.quotas.layout is layout
    assert site.rebound == rebound


async def test_a_group_above_its_runtime_is_overused() -> None:
    site = Site()
    await two_teams(site)
    site.over = {"a": Overuse("a", "", {"nodes": 6}, {"nodes": 4}, by_demand=True)}
    await site.status.publish()
    [over] = [entry for entry in (await site.shown("a"))["conditions"] if entry["type"] == "Overused"]
    assert (over["status"], over["reason"], over["message"]) == ("True", "AboveRuntime", "nodes: 6 used, 4 allowed")


async def test_koordinators_objects_make_a_tree_and_are_told_where_they_stand() -> None:
    site = Site()
    meta = {"name": "team", "namespace": "physics", "labels": {PREFIX + "is-parent": "false"}}
    await site.cluster.create(KOORDINATOR_QUOTAS, {"metadata": meta, "spec": {"min": {"cpu": 8}, "max": {"cpu": 64}}}, "physics")
    selector = {"nodeSelector": {"matchLabels": {"lattice.dev/group": "g1"}}, "quotaName": "root-g1"}
    await site.cluster.create(KOORDINATOR_PROFILES, {"metadata": {"name": "g1", "namespace": "physics"}, "spec": selector}, "physics")
    quotas, profiles = await site.quotas.load()
    quotas.objects["physics/team"] = await site.cluster.get(KOORDINATOR_QUOTAS, "team", "physics", type=KoordinatorQuota)
    profiles.objects["physics/g1"] = await site.cluster.get(KOORDINATOR_PROFILES, "g1", "physics", type=KoordinatorProfile)
    site.refresh(NOW)
    assert site.state.quota_usage is not None
    forest = site.state.quota_usage.forest
    assert (forest.total()["cpu"], forest.total("root-g1")["cpu"]) == (32000, 32000)
    site.state.put_holder(holding(90, (0,), quota="team"))
    await site.status.publish()
    told = await site.cluster.get(KOORDINATOR_QUOTAS, "team", "physics")
    assert told["metadata"]["annotations"][PREFIX + "request"] == '{"cpu":"8"}'
    assert told["status"]["used"] == {"cpu": "8"}


async def test_koordinators_object_for_the_default_group_bounds_it_and_is_told_what_it_uses() -> None:
    site = Site(QuotaTreeOptions(default_max={"nodes": 3}))
    await two_teams(site)
    meta, most = {"name": "koordinator-default-quota", "namespace": "physics"}, {"cpu": 40, "memory": "1844674407370955161"}
    await site.cluster.create(KOORDINATOR_QUOTAS, {"metadata": meta, "spec": {"max": most}}, "physics")
    quotas, *_ = await site.quotas.load()
    quotas.objects[f"physics/{meta['name']}"] = await site.cluster.get(KOORDINATOR_QUOTAS, meta["name"], "physics", type=KoordinatorQuota)
    site.quotas.changed()
    site.refresh(NOW)
    assert site.state.quota_usage is not None
    site.state.put_holder(holding(90, (0,), quota=""))
    blocked = site.state.quota_usage.forest.admits("default", {"cpu": 33_000, "nodes": 1})
    assert blocked is not None
    assert (blocked.gate.quota, blocked.gate.resource, blocked.gate.limit) == ("default", "cpu", 40_000)
    assert site.state.quota_usage.forest.admits("default", {"nodes": 3}) is not None, "the configuration bounds it as well"
    assert set(site.state.quota_usage.forest.standing("default").max) == {"nodes", "cpu"}, "what is written for no bound is none"
    await site.status.publish()
    told = await site.cluster.get(KOORDINATOR_QUOTAS, meta["name"], "physics")
    assert told["status"]["used"] == {"cpu": "8", "memory": "1Gi"}
    assert told["metadata"]["annotations"][PREFIX + "runtime"] == '{"cpu":"40","memory":"1844674407370955161"}'


async def test_two_objects_of_one_name_leave_the_later_one_out_and_name_both() -> None:
    site = Site()
    await site.declare("team")
    meta = {"name": "team", "namespace": "physics"}
    await site.cluster.create(KOORDINATOR_QUOTAS, {"metadata": meta, "spec": {"max": {"cpu": 1}}}, "physics")
    [quotas] = [one for one in await site.quotas.load() if one.resource is KOORDINATOR_QUOTAS]
    quotas.objects["physics/team"] = await site.cluster.get(KOORDINATOR_QUOTAS, "team", "physics", type=KoordinatorQuota)
    site.refresh(NOW)
    [(reason, message)] = site.quotas.layout.faults.values()
    assert reason == "NameTaken"
    assert "lattice.dev" in message
    assert "scheduling.sigs.k8s.io" in message


async def test_an_api_server_that_fails_ends_no_term_over_kinds_that_the_cluster_may_lack() -> None:
    site = Site()
    absent = site.cluster.fail(NotFound("no such kind", reason="NotFound"), verb="list", times=2)
    assert await site.quotas.load() == []
    absent.times = 0
    site.cluster.fail(Retry("it restarts", reason="Unreachable"), verb="list", times=2)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(site.quotas.run())
        await site.clock.run_for(2 * ABSENT_SECONDS + 1)
        assert not running.done()
        running.cancel()
    assert {sent.resource for sent in site.cluster.sent if sent.verb == "watch"} >= {KOORDINATOR_QUOTAS, KOORDINATOR_PROFILES}
