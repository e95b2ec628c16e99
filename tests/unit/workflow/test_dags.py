"""The graph of a DAG and how it ends: each refusal with its field, the order of members, and ends equal to a naive reference."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from lattice.errors import Rejected
from lattice.views.allocation import Dependency
from lattice.views.dag import Member, MemberState
from lattice.workflow.critical_path import MemberTimes, foresee
from lattice.workflow.dags import check_graph, count_members, dag_phase, order_members, uncaught

CONDITIONS = ("Success", "Failure", "Any", "Started")
NOW = 1_800_000_000.0


def member(name: str, *edges: tuple[str, str], mode: str = "All") -> Member:
    waits = tuple(Dependency(ref=ref, condition=condition) for ref, condition in edges)
    return Member(name=name, depends_on=waits, depends_on_mode=mode)


def state(name: str, phase: str, reason: str = "") -> MemberState:
    return MemberState(name=name, phase=phase, reason=reason)


WRONG: dict[str, tuple[Sequence[Member], str, str]] = {
    "no members": ((), "DagInvalid", "least: 1"),
    "too many": ([member(f"m{place}") for place in range(6)], "DagTooLarge", "(6 allocations, limit: 5). Hint: Split the workflow"),
    "a dotted name": ((member("a.b"),), "DagInvalid", "spec.members[0].name"),
    "no name": ((member(""),), "DagInvalid", "spec.members[0].name"),
    "a name twice": ((member("a"), member("b"), member("a")), "DagInvalid", 'spec.members[2].name: "a" is the name of spec.members[0]'),
    "an edge to itself": ((member("a", ("a", "Any")),), "DagInvalid", "spec.members[0].dependsOn[0].ref"),
    "an edge to nobody": ((member("a", ("b", "Any")),), "DagInvalid", "'b' is no member"),
    "an edge twice": ((member("a"), member("b", ("a", "Any"), ("a", "Any"))), "DagInvalid", "Any of \"a\" twice"),
    "a cycle of two": ((member("a", ("b", "Any")), member("b", ("a", "Any"))), "DagCycle", "a → b → a"),
    "a cycle behind others": (
        (member("x"), member("a", ("x", "Any"), ("c", "Any")), member("b", ("a", "Any")), member("c", ("b", "Any")), member("d", ("c", "Any"))),
        "DagCycle", "a → b → c → a",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("members", "reason", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_graph_is_refused_with_its_place(members: Sequence[Member], reason: str, said: str) -> None:
    with pytest.raises(Rejected) as refused:
        check_graph(members, 5)
    assert (refused.value.reason, said in refused.value.message) == (reason, True), refused.value.message
    assert refused.value.fields[0].startswith("spec.members")


def test_a_long_cycle_is_named_shortly() -> None:
    ring = [member(f"m{place}", (f"m{(place + 1) % 500}", "Any")) for place in range(500)]
    with pytest.raises(Rejected) as refused:
        check_graph(ring)
    assert "more)" in refused.value.message
    assert len(refused.value.message) < 300


def graph(rng: random.Random) -> list[Member]:
    """Up to nine members, written in any order, each waiting for some that came before it in another one."""
    names = [f"m{place}" for place in range(rng.randint(1, 9))]
    members = []
    for place, name in enumerate(names):
        edges = {(one, rng.choice(CONDITIONS)) for one in rng.sample(names[:place], rng.randint(0, min(place, 3)))}
        members.append(member(name, *sorted(edges), mode=rng.choice(("All", "All", "Any"))))
    rng.shuffle(members)
    return members


def ran(found: MemberState) -> bool:
    return found.phase in ("Completed", "Failed")


def naive_phase(members: list[Member], states: dict[str, MemberState], cancelled: bool) -> str:
    """The decision, said once more."""
    if any(states[one.name].phase not in ("Completed", "Failed", "Cancelled") for one in members):
        return "Running"
    if cancelled:
        return "Cancelled"
    result = "Completed"
    for one in members:
        after = [(edge.condition, states[other.name]) for other in members for edge in other.depends_on if edge.ref == one.name]
        phase, reason = states[one.name].phase, states[one.name].reason
        if phase == "Failed" and not any(asked in ("Failure", "Any") and ran(found) for asked, found in after):
            return "Failed"
        alone = phase == "Cancelled" and reason not in ("DependencyFailed", "DependencyNotNeeded")
        if alone and not any(asked == "Any" and ran(found) for asked, found in after):
            result = "Cancelled"
    return result


def test_five_thousand_random_graphs_are_ordered_and_end_as_the_naive_reference_says() -> None:
    for seed in range(5000):
        rng = random.Random(seed)
        members = graph(rng)
        check_graph(members)
        before = {one.name: {edge.ref for edge in one.depends_on} for one in members}
        seen: set[str] = set()
        for index in order_members(members):
            assert before[members[index].name] <= seen
            seen.add(members[index].name)
        assert seen == before.keys()
        words = [("Completed", ""), ("Failed", ""), ("Cancelled", "Cancelled"), ("Cancelled", "DependencyFailed"), ("Running", "")]
        weights = (5, 2, 1, 2, rng.choice((0, 0, 1)))
        states = {one.name: state(one.name, *rng.choices(words, weights)[0]) for one in members}
        cancelled = rng.random() < 0.1
        phase = dag_phase(members, states, cancelled=cancelled)
        assert phase == naive_phase(members, states, cancelled), (seed, states)
        assert bool(uncaught(members, states)) == (phase == "Failed") or cancelled or phase == "Running", seed
        counts = count_members(states.values())
        assert counts.total == sum((counts.pending, counts.running, counts.completed, counts.failed, counts.cancelled, counts.skipped))


def test_a_failure_that_a_successor_catches_is_none_of_the_dag() -> None:
    members = [member("train"), member("notify", ("train", "Failure")), member("evaluate", ("train", "Success"))]
    states = {
        "train": state("train", "Failed"), "notify": state("notify", "Completed"),
        "evaluate": state("evaluate", "Cancelled", "DependencyFailed"),
    }  # fmt: skip
    assert dag_phase(members, states, cancelled=False) == "Completed"
    skipped = states | {"notify": state("notify", "Cancelled", "Cancelled")}
    assert dag_phase(members, skipped, cancelled=False) == "Failed"


def naive_end(members: list[Member], seconds: dict[str, float]) -> tuple[float, set[str]]:
    """The end of a DAG of which nothing has started, by trying every path; and who is on one of the longest."""
    after = {one.name: one for one in members}

    def ends(name: str) -> float | None:
        one = after[name]
        times = []
        for edge in one.depends_on:
            end = ends(edge.ref)
            begun = starts(edge.ref)
            met = {"Success": end, "Any": end if end is not None else 0.0, "Failure": None}.get(edge.condition, begun)
            times.append(met)
        if one.depends_on and ((one.depends_on_mode == "All" and None in times) or all(time is None for time in times)):
            return None
        known = [time for time in times if time is not None]
        begin = (min if one.depends_on_mode == "Any" else max)(known, default=0.0)
        return begin + seconds[name]

    def starts(name: str) -> float | None:
        end = ends(name)
        return 0.0 if end is None else end - seconds[name]

    known = {name: end for name in after if (end := ends(name)) is not None}
    latest = max(known.values())
    return latest, {name for name, end in known.items() if end == latest}


def test_the_expected_end_is_that_of_the_longest_path() -> None:
    for seed in range(2000):
        rng = random.Random(seed)
        members = graph(rng)
        seconds = {one.name: float(rng.randint(1, 50)) for one in members}
        outlook = foresee(members, {one.name: MemberState(name=one.name) for one in members}, MemberTimes(seconds), NOW)
        end, last = naive_end(members, seconds)
        assert outlook.end is not None
        assert outlook.end - NOW == pytest.approx(end), (seed, members)
        assert outlook.path[-1] in last
        for before, after in zip(outlook.path, outlook.path[1:], strict=False):
            assert before in {edge.ref for one in members if one.name == after for edge in one.depends_on}


def test_work_without_end_leaves_the_end_unknown() -> None:
    members = [member("server"), member("client", ("server", "Started"))]
    states = {one.name: MemberState(name=one.name) for one in members}
    assert foresee(members, states, MemberTimes({"server": None, "client": 60.0}), NOW).end is None
