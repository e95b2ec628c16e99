"""Every recorded cycle decides again what it decided, byte for byte; what was changed since is found and named."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import fields, replace

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lattice.accounting.budgets import Allowance, Budgets
from lattice.errors import Corrupt
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.outcomes import Outcome, Placed
from lattice.scheduling.model.policy import BACKFILL, BIN_PACK, INTERACTIVE_FIFO, PROFILES, SENSITIVE_RESERVATION, Borrowing, Policy
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.priority.scoring import Scoring
from lattice.scheduling.priority.shares import Run, Shares, Terms
from lattice.scheduling.recording import record_rows
from lattice.scheduling.recording.codec import CycleDecoder, CycleEncoder, Turn, encoded
from lattice.scheduling.recording.cycle_log import OPENING, WHOLE, frame
from lattice.scheduling.recording.record import Snapshot, SnapshotTaker, completed, rebuild, reproduce, take_snapshot
from lattice.scheduling.recording.reproduction import again, differences
from lattice.scheduling.state.cluster_state import ClusterState, PowerBudget, mask_of
from lattice.views.ledger import TenantAccount
from tests.unit.scheduling.cycle.test_reference import some_nodes, some_queue, some_windows

NOW = 1_000.0
VCLUSTERS = ("v", "w")
KINDS = (BACKFILL, BACKFILL, BIN_PACK, SENSITIVE_RESERVATION, INTERACTIVE_FIFO)


class Site:
    """A scheduler's scene under random events, and the record of its cycles."""

    def __init__(self, seed: int) -> None:
        roll = self.roll = random.Random(seed)
        nodes = [replace(one, home=roll.choice(("", "", *VCLUSTERS)), watts=roll.choice((0, 300))) for one in some_nodes(roll)]
        node_cache = NodeCache()
        for facts in nodes:
            node_cache.put(facts)
        self.windows = some_windows(roll, nodes)
        self.lists = [mask_of(roll.sample(range(len(nodes)), roll.randint(1, len(nodes)))) for _ in range(2)]
        self.state = ClusterState(node_cache, policies={name: self.some_policy(name) for name in VCLUSTERS})
        self.scoring = Scoring(Shares(), self.state.policies, energy_price=roll.choice((None, 0.25)))
        self.scoring.shares.agree({"t": Terms(target=0.3, budgets=Budgets(Allowance(node_hours=5.0))), "s": Terms()})
        if roll.random() < 0.8:
            self.state.scorings = dict.fromkeys(VCLUSTERS, self.scoring)
        self.state.power = PowerBudget(roll.choice((None, 3000)))
        self.state.set_windows(self.windows)
        self.queues: dict[str, dict[str, Candidate]] = {name: {} for name in VCLUSTERS}
        self.now, self.cycle, self.born = NOW, 0, 0
        self.looker = SnapshotTaker(self.state)

    def some_policy(self, name: str) -> Policy:
        roll = self.roll
        return Policy(
            name, kind=roll.choice(KINDS), depth=roll.choice((0, 1, 3)), weights=roll.choice(list(PROFILES.values())),
            home=roll.random() < 0.4, borrowing=Borrowing(lend=roll.random() < 0.6, borrow=roll.random() < 0.6),
        )  # fmt: skip

    def happen(self) -> None:
        """Some events: time, arrivals, departures, ends, nodes that change, contracts, policies."""
        roll, state = self.roll, self.state
        self.now += roll.choice((0.0, 0.1, 1.0, 333.3, 2500.0))
        for name in VCLUSTERS:
            for one in some_queue(roll, self.lists, self.windows)[: roll.randint(0, 4)]:
                self.born += 1
                user, tenant = f"user{roll.randint(1, 3)}", roll.choice("ts")
                made = replace(one, uid=f"u{self.born}", key=f"{tenant}/j{self.born}", vcluster=name, user=user, tenant=tenant)
                self.queues[name][made.uid] = made
            for uid in list(self.queues[name]):
                if roll.random() < 0.1:
                    del self.queues[name][uid]
                elif roll.random() < 0.1:
                    self.queues[name][uid] = replace(self.queues[name][uid], held=roll.random() < 0.5)
        for uid, holder in list(state.holders.items()):
            if roll.random() < 0.2:
                state.drop_holder(uid)
                self.scoring.shares.see(Run(uid, holder.tenant, holder.user, len(holder.nodes), 0, holder.since, self.now))
            elif roll.random() < 0.3:
                end = roll.choice((None, self.now + 100.0))
                state.put_holder(msgspec.structs.replace(holder, end=end, started=self.now, releasing=roll.random() < 0.3))
        for facts in list(state.node_cache.nodes.values()):
            if roll.random() < 0.05:
                state.node_cache.put(replace(facts, usable=not facts.usable, state="Down" if facts.usable else "Ready"))
        if roll.random() < 0.2 and state.holders:  # a row and the next attempt of its allocation share nodes for a while
            holder = roll.choice(list(state.holders.values()))
            state.put_holder(msgspec.structs.replace(holder, uid=f"{holder.uid}/1", releasing=True))
        if roll.random() < 0.3:
            state.accounts = {
                "t": TenantAccount(max_nodes=roll.choice((None, 4)), used_nodes=roll.randint(0, 3)),
                "s": TenantAccount(user_max_nodes=3),
            }
        if roll.random() < 0.1:
            state.policies[roll.choice(VCLUSTERS)] = self.some_policy(roll.choice(VCLUSTERS))
        if roll.random() < 0.2:
            state.set_windows(roll.sample(self.windows, roll.randint(0, len(self.windows))))
        self.scoring.running(list(state.holders.values()), state.node_cache)

    def turns(self) -> list[tuple[Snapshot, list[Outcome]]]:
        """One cycle of every vcluster, as it was looked at and decided."""
        self.cycle += 1
        found = []
        for name in self.roll.sample(VCLUSTERS, self.roll.randint(1, 2)):
            queue = list(self.queues[name].values())
            moment = self.looker.take_snapshot(name, queue, self.now, self.cycle)
            assert moment == take_snapshot(self.state, name, queue, self.now, self.cycle)
            outcomes = list(decide(self.state, name, queue, self.now))
            found.append((completed(moment, self.state), outcomes))
            for outcome in outcomes:
                if isinstance(outcome, Placed):
                    del self.queues[name][outcome.candidate.uid]
                    if self.roll.random() < 0.2:
                        self.state.drop_holder(outcome.candidate.uid)
        return found


def recorded(seed: int, cycles: int) -> list[tuple[Snapshot, list[Outcome], Turn]]:
    """What a site decided, and what its log says that it decided."""
    site, chronicler, reader = Site(seed), CycleEncoder("1.0"), CycleDecoder()
    found: list[tuple[Snapshot, list[Outcome], Turn]] = []
    for _ in range(cycles):
        site.happen()
        for moment, outcomes in site.turns():
            whole = not found or site.roll.random() < 0.1
            turn = reader.turn(chronicler.payload(moment, outcomes, whole=whole), whole=whole)
            found.append((moment, outcomes, turn))
    return found


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32))
@example(198780452)  # two buckets of a promise become one
def test_every_recorded_cycle_decides_again_what_it_decided_byte_for_byte(seed: int) -> None:
    for moment, outcomes, turn in recorded(seed, cycles=5):
        assert turn.moment == moment
        assert encoded(turn.outcomes) == encoded(outcomes)
        rebuild(turn.moment).validate()
        assert encoded(reproduce(turn.moment)) == encoded(outcomes)
        assert again(turn).differences == ()


REPRODUCING = """
import sys
from lattice.scheduling.recording.cycle_log import scan
from lattice.scheduling.recording.reproduction import again, turns
log = sys.stdin.buffer.read()
for cycle in sorted({frame.cycle for frame in scan(log).frames}):
    for one in map(again, turns(log, cycle)):
        print(cycle, one.turn.moment.vcluster, one.same, one.differences)
"""


@pytest.mark.parametrize("hashes", ["1", "2"])
def test_another_process_whose_sets_are_in_another_order_decides_the_same(hashes: str) -> None:
    log, expected = OPENING, []
    cycle = 0
    for seed in range(12):
        for moment, outcomes, _ in recorded(seed, cycles=3):
            cycle += 1
            payload = CycleEncoder("1.0").payload(replace(moment, cycle=cycle), outcomes, whole=True)
            log += frame(WHOLE, cycle, moment.now, payload)
            expected.append(f"{cycle} {moment.vcluster} True ()")
    done = subprocess.run(
        [sys.executable, "-c", REPRODUCING],
        input=log,
        capture_output=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONHASHSEED": hashes},
    )
    assert done.stdout.decode().splitlines() == expected


def a_busy_turn() -> Turn:
    """A turn with something placed and something waiting that is scored."""
    for seed in range(200):
        for _, outcomes, turn in recorded(seed, cycles=3):
            placed = [one for one in outcomes if isinstance(one, Placed)]
            if placed and len(placed) < len(outcomes) and turn.moment.scored.vclusters:
                return turn
    raise AssertionError("no seed gives a busy turn")


def test_a_changed_weight_is_found_and_named_by_allocation_and_term() -> None:
    turn = a_busy_turn()
    moment, name = turn.moment, turn.moment.vcluster
    heavier = replace(moment.policies[name].weights, wait_time=0.9)
    policies = {**moment.policies, name: replace(moment.policies[name], weights=heavier)}
    found = again(replace(turn, moment=replace(moment, policies=policies))).differences
    assert {one.uid for one in found if one.field == "score.total"} <= {one.uid for one in moment.candidates}
    assert any(one.field == "score.total" and one.recorded != one.now for one in found)


def test_a_node_that_is_not_what_it_was_is_found_by_what_was_placed_on_it() -> None:
    turn = a_busy_turn()
    placed = next(one for one in turn.outcomes if isinstance(one, Placed))
    lost = placed.nodes[0]
    nodes = {**turn.moment.nodes, lost: replace(turn.moment.nodes[lost], usable=False, state="Down")}
    found = again(replace(turn, moment=replace(turn.moment, nodes=nodes))).differences
    named = [one for one in found if one.uid == placed.candidate.uid and one.field in ("nodes", "outcome")]
    assert named
    assert named[0].key == placed.candidate.key


def test_an_outcome_that_is_missing_or_elsewhere_in_the_order_differs() -> None:
    turn = a_busy_turn()
    first, second, *rest = turn.outcomes
    assert [(one.field, one.recorded, one.now) for one in differences((first, second), (second, first))] == [
        ("order", 1, 2),
        ("order", 2, 1),
    ]
    assert [(one.uid, one.field, one.now) for one in differences(turn.outcomes, (second, *rest)) if one.field == "outcome"] == [
        (first.candidate.uid, "outcome", None)
    ]


def test_a_frame_that_does_not_give_the_decision_that_it_was_made_of_is_refused() -> None:
    site = Site(3)
    chronicler = CycleEncoder("1.0")
    turns: list[tuple[Snapshot, list[Outcome]]] = []
    while len(turns) < 3:
        site.happen()
        turns += site.turns()
    payloads = [chronicler.payload(moment, outcomes, whole=not place) for place, (moment, outcomes) in enumerate(turns[:3])]
    reader = CycleDecoder()
    with pytest.raises(Corrupt, match="read from a whole moment on"):
        reader.turn(payloads[1], whole=False)
    reader.turn(payloads[0], whole=True)
    with pytest.raises(Corrupt):
        reader.turn(payloads[0][:-20], whole=True)


@pytest.mark.parametrize("columns", [one for one in vars(record_rows).values() if isinstance(one, record_rows.RowCodec)])
def test_a_row_has_a_column_for_everything_that_makes_its_value(columns: record_rows.RowCodec[object]) -> None:
    kind = columns.kind
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        assert set(columns.names) == set(kind.__struct_fields__)
    else:
        assert set(columns.names) == {one.name for one in fields(kind) if one.init}  # type: ignore[arg-type]


def test_a_cycle_that_read_no_shares_is_recorded_without_those_of_another_vcluster() -> None:
    site = Site(1)
    first, second = VCLUSTERS[:2]
    for _ in range(20):
        site.happen()
    queue = list(site.queues[first].values())
    read = site.looker.take_snapshot(first, queue, site.now, 1)
    scores = site.state.scoring(first).score(queue, site.state.node_cache, site.now)
    assert len(scores.totals) == len(queue) > 0
    assert completed(read, site.state).scored.standings
    unread = site.looker.take_snapshot(second, [], site.now, 1)
    site.state.scoring(second).score([], site.state.node_cache, site.now)
    assert completed(unread, site.state) == unread
