"""Whatever the machine, the policies and the queues are: what is placed keeps every rule, checked here from nothing but the facts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec
import pytest

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.outcomes import Placed, Waiting
from lattice.scheduling.model.policy import BACKFILL, POLICIES, SENSITIVE_RESERVATION, Borrowing, Limits, Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import ANY, IGNORED, PREFERRED, REQUIRED, SPREAD, TIGHT, Candidate, NodeHolder
from lattice.scheduling.priority.scoring import Scoring
from lattice.scheduling.priority.shares import Run, Terms
from lattice.scheduling.state.cluster_state import ClusterState, PowerBudget, mask_of
from lattice.views.ledger import TenantAccount

NOW = 10_000.0
HOUR = 3600.0
VCLUSTERS = ("v", "w", "open")
"""The last one has no home nodes."""
WORLDS = 200
USERS, TENANTS = ("alice", "bob"), ("t", "u")


@dataclass(frozen=True)
class World:
    """A scene with something running in it, and what waits, by vcluster."""

    state: ClusterState
    queues: dict[str, list[Candidate]]


def some_nodes(roll: random.Random) -> list[NodeFacts]:
    kinds = [(8, 0, "", 0, 300), (8, 4, "A100", 40, 900), (16, 4, "GH200", 96, 1200)]
    nodes = []
    for index in range(roll.randint(2, 26)):
        cpus, gpus, gpu_type, gpu_memory, watts = roll.choice(kinds)
        usable = roll.random() < 0.9
        home = roll.choice(("v", "w", ""))
        nodes.append(
            NodeFacts(
                index=index, name=f"n{index}", group=f"{home or 'x'}{roll.randint(0, 2)}", cpus=cpus, memory=64, gpus=gpus,
                features=frozenset(), hollow=False, usable=usable, state="Ready" if usable else "Down", gpu_type=gpu_type,
                gpu_memory=gpu_memory, fingerprint=roll.choice(("a", "a", "b", "")), home=home, watts=watts,
            )
        )  # fmt: skip
    return nodes


def some_policy(roll: random.Random, name: str) -> Policy:
    def some(*values: int) -> int | None:
        return roll.choice((*[None] * 4, *values))

    longest = roll.choice((None, HOUR, 4 * HOUR))
    borrowing = Borrowing(lend=roll.random() < 0.6, borrow=roll.random() < 0.6, max_borrowed=some(1, 3), max_duration=longest)
    limits = Limits(some(6), some(4), some(2), some(4), some(3), some(5))
    return Policy(name, roll.choice(POLICIES), depth=roll.choice((0, 1, 10)), home=name != "open", borrowing=borrowing, limits=limits)


def some_work(roll: random.Random, number: int, vcluster: str, lists: list[int], windows: list[ReservationWindow]) -> Candidate:
    needs = (Need(), Need(), Need(gpus=4), Need(gpu_type="gh200", gpus=1), Need(cpus=16), Need(only=lists[0]), Need(without=lists[1]))
    least = roll.randint(1, 7)
    return Candidate(
        key=f"t/j{number:03d}", uid=f"u{number}", tenant=roll.choice(TENANTS), vcluster=vcluster, preemption_class=roll.randint(0, 10),
        submitted=float(roll.randint(0, 9)), minimum=least, maximum=least + roll.choice((0, 0, 4)), need=roll.choice(needs),
        user=roll.choice(USERS), walltime=roll.choice((None, 0.5 * HOUR, HOUR, 6 * HOUR)), topology=roll.choice((ANY, ANY, TIGHT, SPREAD)),
        conformance=roll.choice((PREFERRED, PREFERRED, REQUIRED, IGNORED)), preemptible=roll.random() < 0.8,
        sensitive=roll.random() < 0.1, reservation=roll.choice(("", "", "", *(window.name for window in windows))),
        held=roll.random() < 0.05, not_before=NOW + 60 if roll.random() < 0.05 else 0.0,
    )  # fmt: skip


def some_world(seed: int) -> World:
    roll = random.Random(seed)
    nodes = some_nodes(roll)
    node_cache = NodeCache()
    for facts in nodes:
        node_cache.put(facts)
    accounts = {
        tenant: TenantAccount(max_nodes=roll.choice((None, None, 12)), max_allocations=roll.choice((None, None, 3))) for tenant in TENANTS
    }
    own = random.Random(-seed - 1)  # a row of its own, so that each seed keeps its world otherwise
    for tenant, account in accounts.items():
        limits = {"user_max_nodes": own.choice((None, None, None, 8)), "user_max_allocations": own.choice((None, None, None, 2))}
        accounts[tenant] = msgspec.structs.replace(account, **limits)
    power = PowerBudget(roll.choice((None, None, None, 9000)))
    state = ClusterState(node_cache, accounts, {name: some_policy(roll, name) for name in VCLUSTERS}, power=power)
    free = [facts for facts in nodes if facts.usable]
    roll.shuffle(free)
    for number in range(roll.randint(0, 3)):
        mine = [facts for facts in free if facts.home == "v"][: roll.randint(1, 3)]
        free = [facts for facts in free if facts not in mine]
        if mine:
            end = roll.choice((None, NOW + 600, NOW + 2 * HOUR))
            indices = tuple(sorted(facts.index for facts in mine))
            state.put_holder(
                NodeHolder(f"h{number}", f"t/h{number}", "t", "alice", "v", 5, indices, since=NOW - 60, started=NOW - 60, end=end)
            )
    windows = []
    for number in range(roll.choice((0, 0, 1, 2))):
        start, chosen = NOW + roll.choice((-500.0, 1200.0, 5000.0)), roll.sample(range(len(nodes)), roll.randint(1, len(nodes)))
        who = frozenset(roll.sample(USERS, 1)) if roll.random() < 0.4 else frozenset()
        windows.append(
            ReservationWindow(f"w{number}", start, start + 3 * HOUR, mask_of(chosen), users=who, maintenance=roll.random() < 0.3)
        )
    state.set_windows(windows)
    lists = [mask_of(roll.sample(range(len(nodes)), roll.randint(1, len(nodes)))) for _ in range(2)]
    queues = {
        name: [some_work(roll, 100 * place + number, name, lists, windows) for number in range(roll.randint(0, 8))]
        for place, name in enumerate(VCLUSTERS)
    }
    return World(state, queues)


def groups_of(nodes: Iterable[NodeFacts]) -> int:
    return len({facts.group for facts in nodes})


def fewest(nodes: Iterable[NodeFacts], wanted: int) -> int | None:
    """The fewest groups of these nodes that hold so many."""
    sizes = sorted(Counter(facts.group for facts in nodes).values(), reverse=True)
    return next((count for count in range(1, len(sizes) + 1) if sum(sizes[:count]) >= wanted), None)


def check_place(world: World, placed: Placed, free: set[int]) -> None:
    """One place against the facts: `free` were free before it."""
    state, one = world.state, placed.candidate
    known, policy = state.node_cache.nodes, state.policies[one.vcluster]
    nodes = [known[index] for index in placed.nodes]
    assert len(set(placed.nodes)) == len(placed.nodes)
    assert one.minimum <= len(nodes) <= one.maximum
    assert set(placed.nodes) <= free
    assert all(facts.usable and one.need.admits_node(facts) for facts in nodes)
    assert not one.held
    assert one.not_before <= NOW
    home = one.vcluster if policy.home else ""
    lent = [facts for facts in nodes if facts.home != home]
    if lent:
        check_loan(state, one, policy, lent)
    end = NOW + state.occupancy(one)
    for window in state.windows:
        if window.name != one.reservation and window.start < end and window.end > NOW:
            assert not window.nodes & mask_of(placed.nodes), window
    if one.reservation:
        window = next(each for each in state.windows if each.name == one.reservation)
        assert window.admits(one)
        assert window.start <= NOW
        assert end <= window.end
        assert window.nodes & mask_of(placed.nodes) == mask_of(placed.nodes)
    alike = one.conformance == REQUIRED or policy.kind == SENSITIVE_RESERVATION
    if alike and len(nodes) > 1:
        assert len({facts.fingerprint for facts in nodes}) == 1
        assert nodes[0].fingerprint
    if one.topology == TIGHT:
        reach = [facts for facts in known.values() if facts.usable and one.need.admits_node(facts) and (facts.home == home or lent)]
        limit = fewest(reach, len(nodes)) if not alike else None
        assert limit is None or groups_of(nodes) <= limit


def check_loan(state: ClusterState, one: Candidate, policy: Policy, lent: list[NodeFacts]) -> None:
    assert policy.borrowing.borrow
    assert not one.non_preemptible
    assert policy.kind != SENSITIVE_RESERVATION
    for facts in lent:
        lender = state.policies[facts.home]
        assert lender.borrowing.lend
        assert lender.kind != SENSITIVE_RESERVATION
        for longest in (policy.borrowing.max_duration, lender.borrowing.max_duration):
            assert longest is None or (one.walltime is not None and one.walltime <= longest)


def check_sums(world: World, placed: list[Placed]) -> None:
    """Limits, quotas and power over everything that holds nodes; they bind only where something was placed."""
    state = world.state
    holders = list(state.holders.values())
    for name, policy in state.policies.items():
        new = [one for one in placed if one.candidate.vcluster == name]
        mine = [holder for holder in holders if holder.vcluster == name]
        limits, borrowed = policy.limits, sum(len(holder.borrowed) for holder in mine)
        if new:
            assert policy.borrowing.max_borrowed is None or borrowed <= policy.borrowing.max_borrowed
            within(mine, limits.max_nodes, limits.max_running)
        for user in {one.candidate.user for one in new}:
            within([each for each in mine if each.user == user], limits.max_nodes_per_user, limits.max_running_per_user)
        for tenant in {one.candidate.tenant for one in new}:
            within([each for each in mine if each.tenant == tenant], limits.max_nodes_per_tenant, limits.max_running_per_tenant)
    for tenant, account in state.accounts.items():
        new_nodes = [one for one in placed if one.candidate.tenant == tenant]
        assert account.max_nodes is None or sum(len(one.nodes) for one in new_nodes) <= account.max_nodes
        assert account.max_allocations is None or len(new_nodes) <= account.max_allocations
        for user in {one.candidate.user for one in new_nodes}:
            mine = [holder for holder in holders if (holder.tenant, holder.user) == (tenant, user)]
            within(mine, account.user_max_nodes, account.user_max_allocations)
    if placed and state.power.limit is not None:
        assert sum(state.node_cache.nodes[index].watts for holder in holders for index in holder.nodes) <= state.power.limit


def within(holders: list[NodeHolder], most_nodes: int | None, most_running: int | None) -> None:
    assert most_nodes is None or sum(len(holder.nodes) for holder in holders) <= most_nodes
    assert most_running is None or len(holders) <= most_running


@pytest.mark.parametrize("batch", range(3))
def test_every_placement_satisfies_every_constraint(batch: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(batch * WORLDS, batch * WORLDS + WORLDS):
        world = some_world(seed)
        state, placed = world.state, list[Placed]()
        for name in VCLUSTERS:
            free = {index for index in state.node_cache.nodes if index not in state.node_cache.taken}
            outcomes = list(decide(state, name, world.queues[name], NOW))
            assert sorted(one.candidate.uid for one in outcomes) == sorted(one.uid for one in world.queues[name])
            for outcome in outcomes:
                if isinstance(outcome, Placed):
                    check_place(world, outcome, free)
                    free.difference_update(outcome.nodes)
                    placed.append(outcome)
                    met["placed"] += 1
                    met["borrowed"] += bool(state.holders[outcome.candidate.uid].borrowed)
                else:
                    met[outcome.reason] += 1
        check_sums(world, placed)
        state.validate()
    assert met["placed"] > WORLDS // 2
    assert {"borrowed", "WaitingForNodes", "NeverFits", "Held", "NotBefore", "WaitingForQuotaHeadroom", "ReservedNodes"} <= set(+met)


HEADS = {
    "never fits": {"minimum": 99, "maximum": 99},
    "held": {"held": True},
    "not before": {"not_before": NOW + 60},
    "closed": {"vcluster_open": False},
    "backs off": {"back_off_until": NOW + 60},
    "quota": {"tenant": "nobody"},
}


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_one_at_the_head_that_cannot_start_at_all_changes_nothing_for_the_others(head: dict[str, object], kind: str) -> None:
    def told(world: World, queue: list[Candidate]) -> dict[str, object]:
        found: dict[str, object] = {}
        for one in decide(world.state, "v", queue, NOW):
            found[one.candidate.uid] = one.nodes if isinstance(one, Placed) else (one.reason, one.latest)
        return found

    for seed in range(25):
        alone, behind = some_world(seed), some_world(seed)
        for world in (alone, behind):
            world.state.policies["v"] = replace(world.state.policies["v"], kind=kind)
        queue = alone.queues["v"]
        first = Candidate(
            key="t/a", uid="head", tenant="t", vcluster="v", preemption_class=10, submitted=-1e6, minimum=2, maximum=2, need=Need(),
            walltime=HOUR,
        )  # fmt: skip
        first = replace(first, **head)  # type: ignore[arg-type]
        with_it = told(behind, [first, *queue])
        del with_it["head"]
        assert with_it == told(alone, queue), seed


@pytest.mark.parametrize("seed", range(20))
def test_equal_worlds_have_equal_outcomes_whatever_the_order_of_arrival(seed: int) -> None:
    first, second = some_world(seed), some_world(seed)
    for name in VCLUSTERS:
        queue = list(second.queues[name])
        random.Random(seed).shuffle(queue)
        assert list(decide(first.state, name, first.queues[name], NOW)) == list(decide(second.state, name, queue, NOW))
    assert first.state.backfill_reservations == second.state.backfill_reservations


def test_ten_thousand_jobs_of_one_user_stand_before_a_tenant_that_has_used_nothing_with_their_reservations_only() -> None:
    node_cache = NodeCache()
    for index in range(64):
        node_cache.put(
            replace(some_nodes(random.Random(1))[0], index=index, name=f"n{index}", home="", usable=True, state="Ready", group="g")
        )
    policies = {"v": Policy("v", BACKFILL)}
    scoring = Scoring(policies=policies)
    scoring.shares.agree({"t": Terms(), "u": Terms()})
    state = ClusterState(node_cache, {"t": TenantAccount(), "u": TenantAccount()}, policies, {"v": scoring})
    base = Candidate(
        key="t/a", uid="a", tenant="t", vcluster="v", preemption_class=5, submitted=NOW, minimum=8, maximum=8, need=Need(), user="alice",
        walltime=HOUR,
    )  # fmt: skip
    crowd = [replace(base, key=f"t/j{number:05d}", uid=f"u{number}") for number in range(10_000)]
    first = {one.candidate.uid: one for one in decide(state, "v", crowd, NOW)}
    running = [one for one in first.values() if isinstance(one, Placed)]
    assert len(running) == 8
    for one in running:
        scoring.shares.see(Run(one.candidate.uid, "t", "alice", 8, 0, NOW, None))
    for one in running:
        state.drop_holder(one.candidate.uid)
    waiting = [one.candidate for one in first.values() if isinstance(one, Waiting)]
    other = replace(base, key="u/b", uid="bob", tenant="u", user="bob", submitted=NOW + HOUR)
    second = {one.candidate.uid: one for one in decide(state, "v", [*waiting, other], NOW + HOUR)}
    assert sum(isinstance(one, Placed) for one in second.values()) == 8
    third = {
        one.candidate.uid: one for one in decide(state, "v", [w.candidate for w in second.values() if isinstance(w, Waiting)], NOW + HOUR)
    }
    assert list(state.backfill_reservations["v"])[:3] == ["u16", "u17", "bob"], "after the two reservations left, before ten thousand"
    assert isinstance(third["bob"], Waiting)
