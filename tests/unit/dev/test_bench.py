"""The pure rooms of the benchmarks: figures, and what the audit log says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.replay.synthetic import Dice
from lattice_dev.bench import figures, peers, work
from lattice_dev.bench.auditlog import Moment, Writes, count_writes, moments, tell_difference, usual_writes, varying_writes
from lattice_dev.bench.cost_rounds import Round, collection_seconds, costs
from lattice_dev.bench.costs import Call, WriteKind, in_some_order
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile, shown
from lattice_dev.bench.footprint import Held, memory_figures
from lattice_dev.bench.latency import stages
from lattice_dev.bench.run import BENCHES, BESIDE, LOCAL, chosen

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


def line(verb: str, resource: str, *, code: int = 200, subresource: str = "", user: str = "lattice:scheduler") -> bytes:
    entry = {
        "kind": "Event",
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": user},
        "objectRef": {"resource": resource, "subresource": subresource, "name": "x"},
        "responseStatus": {"metadata": {}, "code": code},
        "requestReceivedTimestamp": "2026-11-21T10:00:00.250000Z",
        "stageTimestamp": "2026-11-21T10:00:00.260000Z",
    }
    return json.dumps(entry).encode() + b"\n"


@given(VALUES, st.floats(0.01, 1))
def test_a_percentile_is_one_of_the_values_and_enough_are_not_above_it(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(1 for value in values if value <= found) >= share * len(values) - 1e-9


def test_the_percentiles_of_ten_values_are_the_nearest_ranks() -> None:
    values = [float(number) for number in range(10, 0, -1)]
    assert [percentile(values, share) for share in (0.1, 0.5, 0.99, 1.0)] == [1, 5, 10, 10]


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(Rejected, match="no values"):
        percentile([], 0.5)


@pytest.mark.parametrize(
    ("aim", "value", "met"),
    [(Aim(150), 150, True), (Aim(150), 150.1, False), (Aim(300, at_least=True), 300, True), (Aim(300, at_least=True), 299, False)],
)
def test_an_aim_is_met_at_its_value(aim: Aim, value: float, met: bool) -> None:
    assert Figure("f", value, "x", aim).met is met


def test_a_ratio_is_the_value_by_the_baseline_and_none_without_one() -> None:
    assert Figure("f", 30, "/s", baseline=Baseline("/s", 60)).ratio == 0.5
    assert Figure("f", 30, "/s").ratio is None
    assert Figure("f", 30, "/s", baseline=Baseline("/s", 0)).ratio is None


@pytest.mark.parametrize(("value", "text"), [(0.01234, "0.0123"), (1.5, "1.50"), (12.34, "12.3"), (1234.5, "1234"), (0, "0")])
def test_three_digits_are_shown(value: float, text: str) -> None:
    assert shown(value) == text


def test_the_table_says_what_is_missed() -> None:
    lines = figures.table([Figure("status", 300, "ms", Aim(250), Baseline("ms kubectl get", 200), "15 runs", {"B": 4.0})])
    assert lines[1].split() == [
        "status",
        "300",
        "ms",
        "≤",
        "250",
        "MISSED",
        "200",
        "ms",
        "kubectl",
        "get",
        "1.50",
        "15",
        "runs;",
        "B",
        "4.00",
    ]


def test_the_json_has_everything_that_the_table_has() -> None:
    figure = Figure("status", 300, "ms", Aim(250), Baseline("ms kubectl get", 200), "15 runs", {"B": 4.0})
    written = json.loads(json.dumps(figures.as_json([figure], {"cores": "2"})))
    assert written["setting"] == {"cores": "2"}
    assert written["figures"] == [
        {
            "name": "status",
            "value": 300,
            "unit": "ms",
            "aim": {"value": 250, "atLeast": False, "met": False},
            "baseline": {"what": "ms kubectl get", "value": 200, "ratio": 1.5},
            "detail": "15 runs",
            "parts": {"B": 4.0},
        }
    ]


def test_writes_are_counted_by_what_they_wrote_leases_and_events_apart() -> None:
    lines = [
        line("create", "allocations", code=201),
        line("patch", "allocations", subresource="status"),
        line("patch", "allocations", subresource="status"),
        line("update", "ledgers", subresource="status"),
        line("patch", "leases"),
        line("create", "events", code=201),
        line("get", "allocations"),
        line("patch", "latticenodes", subresource="status"),
    ]
    writes = count_writes(lines, leave_out=frozenset({"latticenodes"}))
    assert (writes.total, writes.leases, writes.events) == (4, 1, 1)
    assert writes.each(2) == {"patch allocations/status": 1.0, "create allocations": 0.5, "update ledgers/status": 0.5}


def test_a_refused_write_is_no_write_and_is_shown() -> None:
    writes = count_writes([line("patch", "allocations", subresource="status", code=409)])
    assert writes.total == 0
    assert dict(writes.refused) == {"patch allocations/status 409": 1}


def test_a_line_that_is_still_being_written_is_left_out() -> None:
    assert count_writes([line("create", "allocations"), line("create", "allocations")[:-20]]).total == 1


def test_the_writes_of_the_usual_life_are_the_median_of_each_kind_so_that_one_now_and_then_counts_for_none() -> None:
    life = {"create allocations": 1, "update allocations/status": 3}
    plain = [Writes(Counter(life)), Writes(Counter(life | {"create usagerecords": 1})), Writes(Counter(life))]
    launched = [Writes(Counter(life | {"update allocations/status": 4})) for _ in range(3)]
    assert usual_writes(plain) == Counter(life)
    assert usual_writes(launched).total() - usual_writes(plain).total() == 1
    assert varying_writes(plain) == ["create usagerecords 0 to 1"]
    assert tell_difference(usual_writes(plain), usual_writes(launched)) == "of the usual life update allocations/status 4 instead of 3"
    assert "the same writes" in tell_difference(usual_writes(plain), usual_writes(plain))


def test_the_moments_of_writes_are_read_with_their_fractions() -> None:
    found = moments([line("create", "allocations", code=201), line("create", "allocations", code=409), line("get", "allocations")])
    assert [(moment.what, moment.received % 1, round((moment.answered - moment.received) * 1000)) for moment in found] == [
        ("create allocations", 0.25, 10)
    ]


def test_the_stretches_between_post_and_process_add_up() -> None:
    writes = [
        Moment("create allocations", 10.001, 10.020),
        Moment("patch leases", 10.002, 10.004),
        Moment("update ledgers/status", 10.030, 10.040),
        Moment("update nodegroupplans", 10.042, 10.050),
        Moment("update ledgers/status", 10.300, 10.310),
    ]
    found = stages(writes, [(10.0, 10.09)])
    rounded = {name: round(value, 3) for name, value in found.items()}
    assert rounded == {"POST": 19, "POST to commit": 10, "commit": 10, "commit to plan": 2, "plan": 8, "plan to process": 40}


def test_a_life_whose_writes_are_not_all_in_the_log_gives_no_stretch_to_its_process() -> None:
    assert stages([Moment("create allocations", 10.001, 10.02)], [(10.0, 10.09)]) == {"POST": pytest.approx(19)}


def test_an_unknown_benchmark_is_refused_with_those_there_are() -> None:
    with pytest.raises(Rejected, match=r"no benchmark speed; there are: latency, writes, .*, peers$"):
        chosen(["speed"])


def test_without_names_everything_is_measured_but_comparisons_with_other_schedulers() -> None:
    assert chosen([]) == [*BENCHES, *LOCAL]
    assert chosen(["peers", "rates"]) == [BESIDE[0], BENCHES[-1]]


def test_ours_is_held_against_the_best_of_theirs_and_keeps_its_own_baseline() -> None:
    theirs = [Figure("tight", 200, "/s"), Figure("wide", 250, "/s")]
    ours = [
        Figure("creations", 600, "/s", baseline=Baseline("/s lean ConfigMaps", 1000)),
        Figure("admissions", 300, "/s", baseline=Baseline("/s PATCHes of ConfigMaps", 900), parts={"claims a commit": 9.0}),
        Figure("admissions without agents", 500, "/s"),
    ]
    found = peers.beside(theirs, ours)
    assert found[:3] == [*theirs, ours[0]]
    assert found[3].baseline == Baseline("/s bound by kube-scheduler", 250)
    assert found[3].ratio == 1.2
    assert found[3].parts == {"claims a commit": 9.0, "PATCHes of ConfigMaps a second": 900}
    assert (found[4].ratio, found[4].parts) == (2.0, {})


@pytest.mark.parametrize(("detail", "shows"), [("", "load 2.5"), ("300 pods", "300 pods; load 2.5")])
def test_a_figure_says_the_load_under_which_it_was_measured(detail: str, shows: str) -> None:
    assert peers.with_load(Figure("f", 1, "/s", detail=detail), 2.46).detail == shows


def test_a_node_of_the_comparison_is_ready_and_has_room_for_what_a_pod_requests() -> None:
    status = peers.node_manifest("fake-1", 1)["status"]
    assert status["allocatable"] == status["capacity"] == {"cpu": "4", "memory": "32Gi", "pods": "1"}
    assert [(condition["type"], condition["status"]) for condition in status["conditions"]] == [("Ready", "True")]
    assert peers.pod_manifest("a")["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "100m", "memory": "500Mi"}


def test_the_other_scheduler_runs_alone_and_without_limits_on_its_client() -> None:
    config = peers.configuration(Path("/k"))
    assert config["leaderElection"] == {"leaderElect": False}
    assert config["clientConnection"] == {"kubeconfig": "/k", "qps": peers.UNLIMITED, "burst": peers.UNLIMITED}


def test_hollow_work_asks_for_hollow_nodes_and_says_how_long_it_is() -> None:
    spec = work.hollow("physics", "a", nodes=3, seconds=1.5, walltime=7)["spec"]
    assert spec["resources"] == {"nodes": 3, "constraints": {"features": ["hollow"]}}
    assert spec["environment"] == {"variables": {"HOLLOW_SECONDS": "1.500"}}
    assert spec["lifecycle"]["walltime"] == "7s"


def test_all_requests_are_counted_by_who_and_for_what_questions_are_no_writes() -> None:
    lines = [
        line("get", "allocations", user="lattice:gateway"),
        line("get", "allocations", user="lattice:gateway"),
        line("create", "subjectaccessreviews", code=201, user="lattice:gateway"),
        line("update", "allocations", subresource="status", code=409, user="lattice:agent:n1"),
        line("create", "allocations", code=201, user="alice"),
        line("list", "secrets", user="system:kube-controller-manager"),
    ]
    writes = count_writes(lines)
    assert dict(writes.requests) == {
        "gateway get allocations": 2,
        "gateway create subjectaccessreviews": 1,
        "agents update allocations/status": 1,
        "people create allocations": 1,
        "Kubernetes list secrets": 1,
    }
    assert writes.each(1) == {"create allocations": 1.0}


COLLECTION, PLAIN = 0.4, {"small": 0.002, "large": 0.006}
BYTES = {"small": 100_000.0, "large": 500_000.0}


def rounds_of(collections: dict[str, list[int]]) -> list[Round]:
    """Rounds of 100 writes each; a collection falls where it is said."""
    return [
        Round(kind, 100, 100 * PLAIN[kind] + COLLECTION * count, 100 * BYTES[kind], count)
        for kind, counts in collections.items()
        for count in counts
    ]


@pytest.mark.parametrize(
    "collections",
    [{"small": [0, 0, 1, 0], "large": [1, 0, 1, 1]}, {"small": [1, 1, 0, 1], "large": [0, 0, 1, 0]}],
    ids=["in the dear rounds", "in the cheap rounds"],
)
def test_a_collection_is_charged_by_bytes_wherever_it_falls(collections: dict[str, list[int]]) -> None:
    found = costs(rounds_of(collections))
    share = 4 * COLLECTION / (400 * (BYTES["small"] + BYTES["large"]))
    for kind, cost in found.items():
        assert cost.collecting == pytest.approx(1000 * share * BYTES[kind])
        assert cost.milliseconds == pytest.approx(1000 * PLAIN[kind] + cost.collecting)
        assert cost.least == pytest.approx(cost.most)
        assert (cost.writes, cost.rounds) == (400, 4)


def test_what_all_kinds_cost_together_is_what_was_measured() -> None:
    rounds = rounds_of({"small": [0, 2, 1], "large": [1, 0, 0]})
    found = costs(rounds)
    assert sum(cost.milliseconds * cost.writes for cost in found.values()) == pytest.approx(1000 * sum(one.seconds for one in rounds))


def test_without_collections_the_time_is_the_kinds_own() -> None:
    assert costs(rounds_of({"small": [0, 0]}))["small"].milliseconds == pytest.approx(2.0)
    assert collection_seconds(rounds_of({"small": [1, 1]})) == 0.0  # nothing tells them apart


@given(st.integers(0, 2**32))
def test_kinds_come_in_any_order_and_those_of_a_life_in_theirs(seed: int) -> None:
    async def none(count: int) -> list[Call]:
        del count
        return []

    kinds = [WriteKind(str(number), none, "0", of_a_life=number in (2, 3, 5)) for number in range(8)]
    found = in_some_order(kinds, Dice(seed))
    assert sorted(kind.name for kind in found) == [kind.name for kind in kinds]
    assert [kind.name for kind in found if kind.of_a_life] == ["2", "3", "5"]


def test_the_memory_of_all_control_processes_leaves_out_etcd_the_api_server_and_agents() -> None:
    held = {"etcd": Held(100.0, 90.0), "kube-apiserver": Held(900.0, 900.0), "scheduler": Held(100.0, 80.0), "relay": Held(10.0, 5.0)}
    *each, together = memory_figures({**held, "agent-nid001": Held(70.0, 50.0), "hollow": Held(90.0, 60.0)}, "idle")
    assert [figure.value for figure in each] == [100.0, 900.0, 100.0, 10.0, 70.0, 90.0]
    assert (together.value, list(together.parts.values()), together.met) == (110.0, [85.0], True)
