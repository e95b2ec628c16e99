"""Allocations become candidates and holders: every field of the spec that the cycle reads, and an end that is never early."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.lifecycle.grace import MOST_GRACE_SECONDS
from lattice.scheduling.cluster.eligibility import census_of
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.conversion.candidates import candidate_of, holder_of, need_of
from lattice.scheduling.conversion.facts import facts_of, home_groups
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.state.cluster_state import START_ALLOWANCE
from lattice.units import format_duration, format_time, parse_time
from lattice.views.allocation import OCI, Attempt, Resources, SoftwareImage
from lattice.views.cluster import Node, VCluster
from tests import build

GI = 1 << 30


def resources(**fields: Any) -> Resources:
    return msgspec.convert(fields, Resources)


def vcluster(name: str = "hpc-batch", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> VCluster:
    return msgspec.convert({"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}, VCluster)


def node(name: str = "n0", *, group: str = "", hollow: bool = False, **capabilities: Any) -> Node:
    body = {"metadata": {"name": name}, "spec": {"group": group}, "status": {"hollow": hollow, "capabilities": capabilities}}
    return msgspec.convert(body, Node)


# candidates


def test_a_candidate_has_every_field_that_the_cycle_reads() -> None:
    spec = {
        "tags": {"name": "run-42"},
        "resources": {"nodes": "4-8", "gpus": 4, "constraints": {"topology": "Tight", "conformance": "Required"}},
        "lifecycle": {"walltime": "2h", "gracePeriod": "1m", "preemptionClass": 7, "preemptible": "Never", "notBefore": "2026-02-01T00:00:00Z"},
        "checkpoint": {"strategy": "None"}, "sensitive": True, "reservation": "maint", "hold": True,
    }  # fmt: skip
    made = candidate_of(build.allocation(1, spec=spec), vcluster(state="Closed"), {})
    assert (made.minimum, made.maximum, made.walltime, made.grace) == (4, 8, 7200.0, 60.0)
    assert (made.topology, made.conformance, made.preemption_class) == ("Tight", "Required", 7)
    assert (made.user, made.tenant, made.name, made.reservation) == ("alice", "physics", "run-42", "maint")
    assert (made.held, made.sensitive, made.preemptible, made.checkpointable, made.vcluster_open) == (True, True, False, False, False)
    assert made.non_preemptible
    assert made.not_before == 1769904000.0


@pytest.mark.parametrize(
    ("lifecycle", "default", "seconds"),
    [
        pytest.param({"walltime": "10m"}, "1h", 600.0, id="its own"),
        pytest.param({}, "1h", 3600.0, id="the vcluster's default"),
        pytest.param({}, None, None, id="none at all"),
        pytest.param({"type": "Unbounded"}, "1h", None, id="unbounded work takes no default"),
    ],
)
def test_the_walltime_is_its_own_or_the_default_of_its_vcluster(
    lifecycle: dict[str, Any], default: str | None, seconds: float | None
) -> None:
    where = vcluster(defaults={"walltime": default} if default else {})
    assert candidate_of(build.allocation(1, spec={"lifecycle": lifecycle}), where, {}).walltime == seconds


def test_work_without_an_end_has_the_most_that_its_vcluster_lets_run() -> None:
    where = vcluster(defaults={"walltime": "10m"}, limits={"maxWalltime": "2h"})
    endless = build.allocation(1, spec={"lifecycle": {"type": "Unbounded"}})
    assert candidate_of(endless, where, {}).walltime == 7200.0
    assert holder_of(build.row(1, (3,)), endless, where, since=0.0).walltime == 7200.0


@pytest.mark.parametrize("text", ["1h", "999999999d"])
def test_no_grace_period_is_longer_than_any_may_be(text: str) -> None:
    spec = {"lifecycle": {"walltime": "1m", "gracePeriod": text}}
    assert candidate_of(build.allocation(1, spec=spec), None, {}).grace == MOST_GRACE_SECONDS
    assert holder_of(build.row(1, (3,)), build.allocation(1, spec=spec), since=0.0).end == 60.0 + MOST_GRACE_SECONDS + START_ALLOWANCE


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"lifecycle": {"notBefore": "soon"}}, "'soon' is not a time"),
        ({"resources": {"nodes": "8-4"}}, "runs backwards"),
        ({"resources": {"memory": "1Qi"}}, "'1Qi' is not a quantity"),
        ({"resources": {"constraints": {"nodeList": "n["}}}, "is not a node set"),
        ({"lifecycle": {"walltime": "soon"}}, "'soon' is not a duration"),
    ],
)
def test_what_does_not_parse_never_fits_and_says_why(spec: dict[str, Any], sentence: str) -> None:
    blocked = candidate_of(build.allocation(1, spec=spec), vcluster(), {}).blocked
    assert blocked is not None
    assert blocked[0] == "NeverFits"
    assert sentence in blocked[1]


def test_a_time_of_submission_that_does_not_parse_raises_nothing() -> None:
    right = candidate_of(build.allocation(1), vcluster(), {})
    late = msgspec.structs.replace(build.allocation(1).status, submit_time="soon")
    by_creation = candidate_of(msgspec.structs.replace(build.allocation(1), status=late), vcluster(), {})
    assert (by_creation.submitted, by_creation.blocked) == (parse_time(build.allocation(1).metadata.creation_timestamp), right.blocked)
    made = msgspec.structs.replace(build.allocation(1).metadata, creation_timestamp="soon")
    blocked = candidate_of(msgspec.structs.replace(build.allocation(1), status=late, metadata=made), vcluster(), {}).blocked
    assert blocked is not None
    assert blocked[0] == "NeverFits"


def test_work_without_its_vcluster_says_that_it_is_unknown() -> None:
    assert not candidate_of(build.allocation(1), None, {}).vcluster_known


# needs


def test_work_in_an_oci_image_or_with_pmix_fits_only_nodes_that_have_it() -> None:
    asked = build.allocation(1, spec={"environment": {"image": "registry.example/app:1"}})
    assert candidate_of(asked, vcluster(), {}).need.features == {"oci"}
    assert candidate_of(build.allocation(1), vcluster(), {}).need.features == frozenset()
    with_pmix = build.allocation(1, spec={"tasks": {"total": 4, "mpi": "Pmix"}, "environment": {"image": "registry.example/app:1"}})
    assert candidate_of(with_pmix, vcluster(), {}).need.features == {"oci", "pmix"}
    assert need_of(resources(), {}, features=frozenset({"oci"})) is need_of(resources(), {}, features=frozenset({"oci"}))


def test_work_in_an_image_fits_only_nodes_of_an_architecture_for_which_it_is_made() -> None:
    pinned = SoftwareImage(source="r.example/app:1", digest="sha256:" + "0" * 64, kind=OCI, architectures=("aarch64", "x86_64"))
    asked = build.allocation(1, spec={"environment": {"image": "r.example/app:1"}}, status_software=(pinned,))
    need = candidate_of(asked, vcluster(), {}).need
    assert need.architectures == {"aarch64", "x86_64"}
    for machine, admitted in (("x86_64", True), ("aarch64", True), ("ppc64le", False), ("", True)):
        assert need.admits(build.node(1, features=frozenset({"oci"}), architecture=machine)) is admitted, machine


def test_equal_resources_share_one_need() -> None:
    asked = {"gpus": 4, "constraints": {"gpuType": "GH200", "gpuMemory": "90Gi"}}
    assert need_of(resources(**asked), {}) is need_of(resources(**asked), {"n1": 1})


@pytest.mark.parametrize(
    ("spec", "cpus", "gpus"),
    [
        ({"tasks": {"total": 8, "perNode": 4, "cpus": 8, "gpus": 1}}, 32, 4),
        ({"tasks": {"total": 8, "perNode": 4, "cpus": 8}, "resources": {"nodes": 2, "cpus": 64, "gpus": 2}}, 64, 2),
        ({"tasks": {"total": 10, "cpus": 2}, "resources": {"nodes": "3-5"}}, 8, 0),
        ({"tasks": {"total": 1, "perNode": 4, "cpus": 16}}, 16, 0),
        ({"tasks": {"cpus": 16, "on": "HeadNode"}}, 16, 0),
        ({"tasks": {"total": 64, "perNode": 64}}, 0, 0),
    ],
    ids=["on each node", "more is asked for anyway", "dealt evenly to the least nodes", "fewer than a node takes", "of a script", "none"],
)
def test_nodes_with_too_few_cpus_or_gpus_for_the_tasks_do_not_fit(spec: dict[str, Any], cpus: int, gpus: int) -> None:
    need = candidate_of(build.allocation(1, spec=spec), vcluster(), {}).need
    assert (need.cpus, need.gpus) == (cpus, gpus)


def test_tasks_that_ask_for_no_more_share_the_need_of_the_resources() -> None:
    resources_alone = {"nodes": 2, "cpus": 64}
    found = [
        candidate_of(build.allocation(1, spec={"resources": resources_alone} | more), vcluster(), {}).need
        for more in ({}, {"tasks": {"total": 8, "perNode": 4, "cpus": 8}})
    ]
    assert found[0] is found[1]


def test_node_lists_become_masks_of_the_nodes_that_exist() -> None:
    asked = resources(constraints={"nodeList": "n[1-3]", "excludeNodes": "n2"})
    need = need_of(asked, {"n1": 1, "n2": 2})
    assert (need.only, need.without) == (0b110, 0b100)
    assert need_of(asked, {"n1": 1, "n2": 2, "n3": 5}).only == 0b100110


def test_a_constraint_on_gpus_asks_for_a_gpu() -> None:
    assert need_of(resources(constraints={"gpuType": "GH200"}), {}).gpus == 1
    assert need_of(resources(gpus=4, constraints={"gpuType": "GH200"}), {}).gpus == 4
    assert need_of(resources(), {}).gpus == 0


GH200 = node(cpus=288, memory="480Gi", gpus=4, gpuType="GH200", gpuMemory="96Gi", unifiedMemory=True)
CXL = node(cpus=64, memory="512Gi", cxlMemory="2Ti")


@pytest.mark.parametrize(
    ("asked", "there", "admitted"),
    [
        pytest.param({"gpus": 4, "constraints": {"gpuType": "GH200"}}, GH200, True, id="the type"),
        pytest.param({"gpus": 4, "constraints": {"gpuType": "gh200"}}, GH200, True, id="the type in lower case, as Slurm writes it"),
        pytest.param({"gpus": 4, "constraints": {"gpuType": "H100"}}, GH200, False, id="another type"),
        pytest.param({"gpus": 5}, GH200, False, id="more GPUs"),
        pytest.param({"gpus": 1, "constraints": {"gpuMemory": "96Gi"}}, GH200, True, id="memory of each GPU"),
        pytest.param({"gpus": 1, "constraints": {"gpuMemory": "97Gi"}}, GH200, False, id="more memory of each GPU"),
        pytest.param({"constraints": {"requireUnifiedMemory": True}}, GH200, True, id="unified"),
        pytest.param({"constraints": {"requireUnifiedMemory": True}}, CXL, False, id="not unified"),
        pytest.param({"constraints": {"requireUnifiedMemory": False}}, CXL, True, id="unified not asked"),
        pytest.param({"memory": "1Ti"}, CXL, False, id="CXL memory does not count"),
        pytest.param({"memory": "1Ti", "constraints": {"allowCxlMemory": True}}, CXL, True, id="CXL memory counts where allowed"),
        pytest.param({"memory": "3Ti", "constraints": {"allowCxlMemory": True}}, CXL, False, id="more than both"),
        pytest.param({"constraints": {"features": ["GH200"]}}, GH200, True, id="the type as a feature, as in Slurm"),
    ],
)
def test_a_node_is_admitted_only_if_it_offers_all_that_is_asked(asked: dict[str, Any], there: Node, admitted: bool) -> None:
    node_cache = NodeCache()
    node_cache.put(facts_of(there, 0, usable=True, state="Ready", homes={}))
    assert census_of(node_cache, need_of(resources(**asked), {})).eligible == int(admitted)
    node_cache.validate()


# holders


def placed(start: float | None = None, **spec: Any) -> Any:
    times = {"status_start_time": format_time(start)} if start is not None else {}
    return build.allocation(1, build.condition("Scheduled"), spec=spec, status_attempt=1, **times)


PLACED = 1767225600.0  # 2026-01-01T00:00:00Z


def test_what_runs_ends_at_its_walltime_and_grace_after_its_first_process() -> None:
    held = holder_of(build.row(1, (3, 4)), placed(PLACED + 20, lifecycle={"walltime": "1h", "gracePeriod": "1m"}), since=0.0)
    assert (held.since, held.started, held.end) == (PLACED, PLACED + 20, PLACED + 20 + 3600 + 60)
    assert (held.nodes, held.walltime, held.releasing) == ((3, 4), 3600.0, False)


def test_what_has_not_started_may_start_late() -> None:
    held = holder_of(build.row(1), placed(lifecycle={"walltime": "1h"}), since=0.0)
    assert (held.started, held.end) == (None, PLACED + START_ALLOWANCE + 3600 + 30)


def test_an_object_of_another_attempt_says_nothing_of_this_one() -> None:
    held = holder_of(build.row(1, attempt=2), placed(PLACED + 20, lifecycle={"walltime": "1h"}), since=PLACED + 500)
    assert (held.since, held.started, held.end) == (PLACED + 500, None, PLACED + 500 + START_ALLOWANCE + 3600 + 30)


def test_nobody_knows_the_end_of_unbounded_work_nor_of_work_on_a_silent_node_that_is_releasing() -> None:
    assert holder_of(build.row(1), placed(PLACED, lifecycle={"type": "Unbounded"}), since=0.0).end is None
    bounded = placed(PLACED, lifecycle={"walltime": "1h"})
    assert holder_of(build.row(1, state="l"), bounded, since=0.0, silent=True).end is None
    assert holder_of(build.row(1), bounded, since=0.0, silent=True).end == PLACED + 3630


def test_releasing_work_is_gone_a_grace_period_after_it_was_told() -> None:
    told = PLACED + 600
    held = holder_of(build.row(1, state="c"), placed(PLACED, lifecycle={"walltime": "10h"}), since=0.0, releasing_since=told)
    assert held.releasing
    assert held.end == told + 30 + START_ALLOWANCE
    unbounded = holder_of(build.row(1, state="c"), placed(PLACED, lifecycle={"type": "Unbounded"}), since=0.0, releasing_since=told)
    assert unbounded.end == told + 30 + START_ALLOWANCE


def test_a_row_whose_object_is_gone_is_a_holder_by_its_uid() -> None:
    held = holder_of(build.row(1, (7,)), None, since=5.0)
    assert (held.key, held.nodes, held.since, held.end, held.user) == (build.uid(1), (7,), 5.0, None, "alice")


@given(start=st.integers(0, 10**6), wall=st.integers(1, 10**6), grace=st.integers(0, 600))
def test_the_end_of_running_work_is_never_before_its_walltime_and_grace(start: int, wall: int, grace: int) -> None:
    lifecycle = {"walltime": format_duration(wall), "gracePeriod": format_duration(grace)}
    running = holder_of(build.row(1), placed(PLACED + start, lifecycle=lifecycle), since=0.0)
    waiting = holder_of(build.row(1), placed(lifecycle=lifecycle), since=0.0)
    assert running.end == PLACED + start + wall + grace
    assert waiting.end is not None
    assert waiting.end >= PLACED + wall + grace


# facts of nodes and homes


def test_a_node_is_what_its_agent_says_and_stands_where_operators_say() -> None:
    had = node(group="g1", cpus=288, memory="480Gi", gpus=4, gpuType="GH200", gpuMemory="96Gi", unifiedMemory=True, nominalWatts=2800)
    facts = facts_of(had, 5, usable=True, state="Ready", homes={"g1": "ml"})
    assert facts == NodeFacts(
        5, "n0", "g1", 288, 480 * GI, 4, frozenset({"gpu", "GH200"}), False, True, "Ready",
        gpu_type="GH200", gpu_memory=96 * GI, unified=True, watts=2800, home="ml",
    )  # fmt: skip


def test_of_a_node_that_declares_nothing_nothing_is_invented() -> None:
    facts = facts_of(node(cpus=4, memory="8Gi"), 0, usable=False, state="Down", homes={})
    assert (facts.gpus, facts.gpu_type, facts.gpu_memory, facts.unified, facts.watts, facts.features) == (0, "", 0, False, 0, frozenset())
    assert (facts.group, facts.home, facts.fingerprint) == ("n0", "", "")


def test_a_group_that_two_vclusters_name_is_the_older_ones_home() -> None:
    old = vcluster("z-old", "2026-01-01T00:00:00Z", nodes={"selector": {"group": ["g0", "g1"]}})
    new = vcluster("a-new", "2026-02-01T00:00:00Z", nodes={"selector": {"group": ["g1", "g2"]}})
    everything = vcluster("all")
    assert home_groups([new, everything, old]) == {"g0": "z-old", "g1": "z-old", "g2": "a-new"}


def test_needs_meet_facts_in_the_machine() -> None:
    node_cache = NodeCache()
    node_cache.put(facts_of(node("a", cpus=8, memory="8Gi", gpus=4, gpuType="GH200"), 0, usable=True, state="Ready", homes={}))
    node_cache.put(facts_of(node("b", cpus=8, memory="8Gi"), 1, usable=True, state="Ready", homes={}))
    assert census_of(node_cache, need_of(resources(constraints={"gpuType": "gh200"}), {})).eligible == 1
    assert census_of(node_cache, Need()).eligible == 2
    node_cache.validate()


@pytest.mark.parametrize(
    ("nodes", "listed", "reasons", "without"),
    [
        pytest.param(1, "", ("PrologueFailed",), 0b0010, id="the node is avoided"),
        pytest.param(1, "", ("PrologueFailed", "PrologueFailed"), 0b0110, id="and those before it"),
        pytest.param(1, "", ("PrologueFailed", "NodeLost", "PrologueFailed"), 0b1000, id="of the last attempts in a row"),
        pytest.param(1, "", ("PrologueFailed", "NodeLost"), 0, id="and of none before another end"),
        pytest.param(4, "", ("PrologueFailed",), 0, id="not where too few others exist"),
        pytest.param(1, "n1", ("PrologueFailed",), 0, id="nor where it is the only one that is asked for"),
    ],
)
def test_nodes_whose_prologue_failed_are_avoided_while_enough_others_exist(
    nodes: int, listed: str, reasons: tuple[str, ...], without: int
) -> None:
    constraints = {"constraints": {"nodeList": listed}} if listed else {}
    found = build.allocation(1, spec={"resources": {"nodes": nodes, **constraints}})
    attempts = tuple(Attempt(number, reason=reason, node=f"n{number}") for number, reason in enumerate(reasons, 1))
    found = msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, attempts=attempts))
    assert candidate_of(found, vcluster(), {f"n{number}": number for number in range(4)}).need.without == without
