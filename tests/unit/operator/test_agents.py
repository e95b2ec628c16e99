"""The bindings of agents: users enter with their LatticeNode, and leave when the node is forgotten."""

from __future__ import annotations

import json
from typing import Any

from lattice.kube.resources import CLUSTER_ROLE_BINDINGS, CONFIG_MAPS, NODES, ROLE_BINDINGS
from lattice_controllers.operator.agents import FORGET, FORGOTTEN, NAMESPACE, SHARDS, shard_of
from tests.unit.operator.test_operator import World


async def world() -> World:
    made = World()
    await made.cluster.create(CONFIG_MAPS, {"metadata": {"name": FORGOTTEN}}, NAMESPACE)
    return made


def bound(world: World, resource: Any = CLUSTER_ROLE_BINDINGS) -> set[str]:
    found = [one for key, one in world.cluster.snapshot(resource).items() if "lattice-agents-" in key]
    return {subject["name"] for one in found for subject in one["subjects"]}


async def forget(world: World, *names: str) -> None:
    """What the scheduler does: the name first, then the object."""
    for name in names:
        await world.cluster.patch(NODES, name, {"metadata": {"annotations": {FORGET: "true"}}})
    await world.cluster.patch(CONFIG_MAPS, FORGOTTEN, {"data": dict.fromkeys(names, "2026-01-01T00:00:00Z")}, NAMESPACE)
    await world.clock.run_for(2)


async def test_a_user_enters_with_its_node_in_both_bindings() -> None:
    here = await world()
    await here.add(NODES, "n1")
    async with here.running():
        await here.add(NODES, "n2")
        await here.clock.run_for(2)
    assert bound(here) == bound(here, ROLE_BINDINGS) == {"lattice:agent:n1", "lattice:agent:n2"}


async def test_a_forgotten_user_leaves_before_its_node_is_deleted_and_comes_back_with_an_administrator() -> None:
    here = await world()
    for name in ("n1", "n2"):
        await here.add(NODES, name)
    async with here.running():
        await forget(here, "n1")
        assert bound(here) == bound(here, ROLE_BINDINGS) == {"lattice:agent:n2"}
        await here.cluster.delete(NODES, "n1")
        await here.clock.run_for(70)
        assert bound(here) == {"lattice:agent:n2"}
        await here.add(NODES, "n1")
        await here.clock.run_for(2)
        assert bound(here) == bound(here, ROLE_BINDINGS) == {"lattice:agent:n1", "lattice:agent:n2"}
    assert here.cluster.snapshot(CONFIG_MAPS)[f"{NAMESPACE}/{FORGOTTEN}"].get("data", {}) == {}


async def test_a_node_that_was_only_deleted_keeps_its_rights() -> None:
    here = await world()
    await here.add(NODES, "n1")
    async with here.running():
        await here.cluster.delete(NODES, "n1")
        await here.clock.run_for(70)
    async with here.running():
        await here.clock.run_for(70)
    assert bound(here) == {"lattice:agent:n1"}


async def test_a_binding_that_somebody_has_changed_is_put_right() -> None:
    here = await world()
    await here.add(NODES, "n1")
    async with here.running():
        name = f"lattice-agents-{shard_of('n1'):02d}"
        await here.cluster.patch(CLUSTER_ROLE_BINDINGS, name, {"subjects": []})
        await here.cluster.delete(ROLE_BINDINGS, name, "lattice-node-lease")
        await here.clock.run_for(61)
    assert bound(here) == bound(here, ROLE_BINDINGS) == {"lattice:agent:n1"}


def test_sixteen_thousand_users_fit() -> None:
    names = [f"rack-{number // 64:03d}-node-{number:05d}" for number in range(16384)]
    sizes = [len(json.dumps([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"lattice:agent:{name}"}
                             for name in names if shard_of(name) == shard])) for shard in range(SHARDS)]  # fmt: skip
    assert max(sizes) < 200_000
    assert len(json.dumps(dict.fromkeys(names, "2026-01-01T00:00:00Z"))) < 1_000_000
