"""Every "no" to a new Allocation has its reason, its field and its numbers."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lattice.admission import Accepted, Facts, Refused, Request, Requester, admit, wanted_rights
from lattice.admission.facts import Own, Waits
from lattice.admission.reasons import REFUSAL_WORDS
from lattice.cli.failures import explain
from lattice.errors import Rejected
from tests.unit.admission.builders import accepted, allocation, facts, refused, submit, tenant, vcluster

HPC = vcluster(limits={"maxWalltime": "24h", "maxNodesPerAllocation": 64})
LIMITED = facts(vclusters=(HPC,), tenants=(tenant(quota={"maxPreemptionClass": 5}),))


@pytest.mark.parametrize(
    ("change", "reason", "sentence"),
    [
        pytest.param({"vcluster": "X"}, "VClusterNotFound", 'vCluster "X" not found. Available: hpc-batch', id="unknown vcluster"),
        pytest.param({"tenant": "chemistry"}, "TenantMismatch", 'belongs to tenant "physics"', id="another tenant"),
        pytest.param({"user": "bob"}, "UserMismatch", 'comes from "alice"', id="another user"),
        pytest.param({"resources": {"nodes": "8-4"}}, "NodesInvalid", "its minimum 8 is above its maximum 4", id="range backwards"),
        pytest.param({"resources": {"nodes": 0}}, "NodesInvalid", "spec.resources.nodes: '0'", id="zero nodes"),
        pytest.param({"resources": {"nodes": -3}}, "NodesInvalid", "'-3'", id="negative nodes"),
        pytest.param({"resources": {"nodes": 65}}, "NodesAboveLimit", "(requested: 65, limit: 64)", id="nodes above limit"),
        pytest.param({"resources": {"nodes": "2-65"}}, "NodesAboveLimit", "(requested: 65, limit: 64)", id="range above limit"),
        pytest.param({"resources": {"memory": "12Qi"}}, "QuantityInvalid", "spec.resources.memory: '12Qi'", id="quantity"),
        pytest.param({"resources": {"constraints": {"nodeList": "nid[1-"}}}, "NodeSetInvalid", "nodeList: 'nid[1-'", id="node set"),
        pytest.param({"resources": {"constraints": {"nodeList": "n1"}}}, "NodeListTooSmall", "leaves 1 nodes and 2", id="short list"),
        pytest.param(
            {"lifecycle": {"walltime": "72h"}}, "WalltimeAboveLimit", "(current: none, requested: 72h, limit: 24h)", id="walltime"
        ),
        pytest.param({"lifecycle": {"walltime": "0s"}}, "DurationInvalid", "must be above 0", id="walltime 0"),
        pytest.param({"lifecycle": {"walltime": "1w"}}, "DurationInvalid", "'1w' is not a duration", id="walltime unit"),
        pytest.param({"lifecycle": {"walltime": None}}, "WalltimeRequired", 'vCluster "hpc-batch" has no default', id="no walltime"),
        pytest.param({"lifecycle": {"gracePeriod": "soon"}}, "DurationInvalid", "gracePeriod: 'soon'", id="grace"),
        pytest.param({"lifecycle": {"gracePeriod": "15m1s"}}, "GraceAboveLimit", "is 15m1s, and must be at most 15m", id="long grace"),
        pytest.param({"lifecycle": {"preemptionClass": 11}}, "ClassInvalid", "class 11 is outside 0 to 10", id="class 11"),
        pytest.param({"lifecycle": {"preemptionClass": 7}}, "ClassAboveLimit", "(requested: 7, limit: 5)", id="class above tenant"),
        pytest.param({"lifecycle": {"preemptionClass": "7"}}, "Malformed", "spec.lifecycle.preemptionClass", id="wrong type"),
        pytest.param({"lifecycle": {"deadline": "tomorrow"}}, "TimeInvalid", "'tomorrow' is not a time", id="no time"),
        pytest.param(
            {"lifecycle": {"notBefore": "2100-01-02T00:00:00Z", "deadline": "2100-01-01T00:00:00Z"}},
            "DeadlineBeforeStart",
            "could never start",
            id="deadline first",
        ),
        pytest.param({"entrypoint": None}, "WorkMissing", "neither", id="no work"),
        pytest.param({"script": "#!/bin/sh\n"}, "WorkMissing", "both given", id="both"),
        pytest.param(
            {"scriptFrom": {"configMap": "job.script", "digest": "sha256:" + 64 * "0"}},
            "WorkMissing",
            "spec.scriptFrom and spec.entrypoint are both given",
            id="both, one in a ConfigMap",
        ),
        pytest.param({"entrypoint": "  "}, "EntrypointInvalid", "is empty", id="empty entrypoint"),
        pytest.param({"entrypoint": "''"}, "EntrypointInvalid", "is empty", id="empty word"),
        pytest.param({"entrypoint": "echo 'a"}, "EntrypointInvalid", "no closing quotation", id="open quote"),
        pytest.param({"entrypoint": "echo a\0b"}, "EntrypointInvalid", "NUL at character 7", id="NUL in entrypoint"),
        pytest.param({"entrypoint": "x" * 1_000_000}, "EntrypointInvalid", "1000000 characters (limit: 65536)", id="a million characters"),
        pytest.param(
            {"entrypoint": None, "script": "#!/bin/sh\n", "scriptArguments": ["a", "\0"]},
            "ScriptInvalid",
            "argument 2 has a NUL",
            id="NUL in an argument",
        ),
        pytest.param(
            {"entrypoint": None, "script": "#!/bin/sh\n", "scriptArguments": ["x" * 65536]},
            "ScriptInvalid",
            "65537 bytes together",
            id="large arguments",
        ),
        pytest.param({"entrypoint": None, "script": "echo hi\n"}, "ScriptInvalid", "first line is 'echo hi'", id="no #!"),
        pytest.param({"entrypoint": None, "script": "#!/bin/sh\nx\r\n"}, "ScriptInvalid", "(CRLF) in line 2", id="CRLF"),
        pytest.param({"entrypoint": None, "script": "#!/bin/sh\n\0"}, "ScriptInvalid", "a NUL in line 2", id="NUL in script"),
        pytest.param({"entrypoint": None, "script": "#!/bin/sh\n\udce9"}, "ScriptInvalid", "no UTF-8 in line 2", id="Latin-1"),
        pytest.param(
            {"entrypoint": None, "script": "#!/bin/sh\n" + "x" * 65536}, "ScriptInvalid", "65546 bytes (limit: 65536)", id="large"
        ),
        pytest.param({"environment": {"variables": {"A=B": "1"}}}, "VariableInvalid", "'A=B'", id="= in name"),
        pytest.param({"environment": {"variables": {"A": "1\0"}}}, "VariableInvalid", "NUL at character 2", id="NUL in value"),
        pytest.param(
            {"environment": {"variables": {f"V{n}": "ü" * 16384 for n in range(4)}}},
            "VariableInvalid",
            "have 131080 bytes together (limit: 131072)",
            id="much of them",
        ),
        pytest.param({"environment": {"workdir": "run"}}, "WorkdirInvalid", "'run' is not an absolute path", id="workdir"),
        pytest.param({"environment": {"output": {"stdout": "o-%q"}}}, "OutputInvalid", "the pattern '%q' at character 3", id="pattern"),
        pytest.param({"environment": {"output": {"stderr": "50%"}}}, "OutputInvalid", "the pattern '%'", id="lone percent"),
        pytest.param({"environment": {"uenv": "a:b:c"}}, "LabelInvalid", "unexpected ':'", id="no label"),
        pytest.param({"environment": {"uenv": "mine.squashfs"}}, "LabelInvalid", "looks like a file", id="a file without its path"),
        pytest.param({"environment": {"toolsUenv": "/a.squashfs:/m/../etc"}}, "MountInvalid", "without . and ..", id="an escaping mount"),
        pytest.param(
            {"environment": {"uenv": "/a.squashfs:/m", "toolsUenv": "/b.squashfs:/m/"}}, "MountInvalid", "mount point '/m'", id="one twice"
        ),
        pytest.param({"environment": {"uenv": ",".join(["/a"] * 9)}}, "TooManyImages", "9 images are named (limit: 8)", id="many images"),
        pytest.param({"environment": {"uenv": "/a", "view": "a:b:c"}}, "ViewInvalid", "is no view", id="no view"),
        pytest.param({"environment": {"view": "default"}}, "ViewInvalid", "a view of no image", id="a view of nothing"),
        pytest.param({"tags": {"name": "a\nb"}}, "JobNameInvalid", "has a control character", id="line in name"),
        pytest.param({"environment": {"variables": {"1 A": "x"}}}, "VariableInvalid", "'1 A' is not the name", id="no POSIX name"),
        pytest.param({"tags": {"name": " a"}}, "JobNameInvalid", "blanks at its ends", id="blank in name"),
        pytest.param({"tags": {"name": "a" * 254}}, "JobNameInvalid", "254 characters (limit: 253)", id="long name"),
    ],
)
def test_bad_input_is_refused_with_its_reason_and_numbers(change: dict[str, Any], reason: str, sentence: str) -> None:
    verdict = refused(submit(allocation(**change), LIMITED))
    assert verdict.reason == reason
    assert sentence in verdict.sentence
    assert verdict.field
    assert reason in REFUSAL_WORDS


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        pytest.param({"resources": {"nodes": 200}}, "200 nodes are asked for and the cluster has 100", id="more than exist"),
        pytest.param({"environment": {"variables": {"HF_TOKEN": "x"}}}, "look like secrets", id="secret"),
        pytest.param({"environment": {"variables": {"LATTICE_X": "x"}}}, "set by Lattice", id="reserved name"),
        pytest.param({"lifecycle": {"deadline": "2001-01-01T00:00:00Z"}}, "has passed", id="deadline passed"),
    ],
)
def test_what_is_doubtful_is_accepted_with_a_warning(change: dict[str, Any], warning: str) -> None:
    verdict = accepted(submit(allocation(**change)))
    assert any(warning in text for text in verdict.warnings), verdict.warnings


def test_ordinary_work_is_accepted_without_a_word() -> None:
    obj = allocation(
        entrypoint=None,
        script="#!/bin/bash\nsrun ./a.out\n",
        tags={"name": "run 42 / ä (second try)"},
        environment={"workdir": "/home/alice", "output": {"stdout": "%x-%4j.out", "stderr": "100%%-%N"}},
        resources={"nodes": "1-4", "memory": "128Gi", "constraints": {"nodeList": "nid[001-008]", "excludeNodes": "nid003"}},
    )
    assert accepted(submit(obj, LIMITED)).warnings == ()


def test_several_vclusters_and_no_default_are_listed() -> None:
    known = facts(vclusters=(vcluster(), vcluster("ml"), vcluster("closed-shop", tenants=["chemistry"])))
    verdict = refused(submit(allocation(), known))
    assert (verdict.reason, verdict.sentence) == (
        "VClusterRequired",
        'tenant "physics" has no default vCluster: name one of hpc-batch, ml',
    )


def test_a_vcluster_of_other_tenants_is_refused_with_those_it_may_use() -> None:
    known = facts(vclusters=(vcluster(), vcluster("ml", tenants=["chemistry"])))
    verdict = refused(submit(allocation(vcluster="ml"), known))
    assert (verdict.reason, "Available: hpc-batch" in verdict.sentence) == ("VClusterNotAllowed", True)


def test_a_closed_vcluster_takes_work_with_a_warning() -> None:
    assert "is closed" in accepted(submit(allocation(), facts(vclusters=(vcluster(state="Closed"),)))).warnings[0]


def test_a_namespace_of_nobody_is_refused() -> None:
    assert refused(submit(allocation(tenant="physics"), facts(namespace_tenant=""))).reason == "TenantUnknown"


def test_an_unknown_tenant_is_refused() -> None:
    known = facts(namespace_tenant="gone")
    assert refused(submit(allocation(), known)).sentence == 'tenant "gone" not found'


def test_the_books_sentence_refuses_what_exceeds_the_node_quota() -> None:
    known = facts(tenants=(tenant(used_nodes=195, quota={"maxNodes": 200}),))
    verdict = refused(submit(allocation(resources={"nodes": 10}), known))
    assert verdict.reason == "QuotaExceeded"
    assert verdict.sentence == (
        'allocation rejected: tenant "physics" would exceed max_nodes quota (current: 195, requested: 10, limit: 200)'
    )
    assert "quota" in verdict.hint


def test_the_minimum_of_a_range_is_what_the_quota_judges() -> None:
    known = facts(tenants=(tenant(used_nodes=195, quota={"maxNodes": 200}),))
    accepted(submit(allocation(resources={"nodes": "5-50"}), known))


def test_too_many_allocations_at_a_time_are_refused() -> None:
    known = facts(tenants=(tenant(used_allocations=3, quota={"maxConcurrentAllocations": 3}),))
    assert (
        "would exceed max_concurrent_allocations quota (current: 3, requested: 1, limit: 3)"
        in refused(submit(allocation(), known)).sentence
    )


def test_a_tenant_that_queues_gets_a_warning_instead() -> None:
    known = facts(tenants=(tenant(used_nodes=195, quota={"maxNodes": 200, "onExceeded": "Queue"}),))
    assert "WaitingForQuotaHeadroom" in accepted(submit(allocation(resources={"nodes": 10}), known)).warnings[0]


@pytest.mark.parametrize("mode", ["Reject", "Queue"])
def test_more_than_the_limit_itself_is_refused_in_both_modes(mode: str) -> None:
    known = facts(tenants=(tenant(quota={"maxNodes": 8, "onExceeded": mode}),))
    assert refused(submit(allocation(resources={"nodes": 9}), known)).reason == "QuotaExceeded"


def test_a_limit_lowered_below_what_is_held_is_told_in_the_books_second_sentence() -> None:
    known = facts(tenants=(tenant(used_nodes=150, quota={"maxNodes": 100}),))
    verdict = refused(submit(allocation(resources={"nodes": 1}), known))
    assert verdict.reason == "QuotaExceeded"
    assert " ".join(verdict.message.split()) == (
        'allocation rejected: tenant "physics" exceeds max_nodes quota Current usage: 150 nodes New limit: 100 nodes '
        "Hint: Wait for running allocations to complete, or contact your tenant admin."
    )
    assert explain(Rejected(f'admission webhook "v" denied the request: {verdict.message}', reason="Invalid")) == [
        'Error: allocation rejected: tenant "physics" exceeds max_nodes quota\n  Current usage: 150 nodes\n  New limit: 100 nodes',
        "  Hint: Wait for running allocations to complete, or contact your tenant admin.",
    ]


OWN_LIMITS: list[tuple[str, dict[str, Any], Own, str, str]] = [
    ("nodes", {"maxNodes": 4}, Own(nodes=3, running=1), "QuotaExceeded",
     'allocation rejected: user "alice" of tenant "physics" would exceed max_nodes quota (current: 3, requested: 2, limit: 4)'),
    ("allocations", {"maxRunning": 1}, Own(nodes=3, running=1), "QuotaExceeded",
     'allocation rejected: user "alice" of tenant "physics" would exceed max_running quota (current: 1, requested: 1, limit: 1)'),
    ("paused", {"maxRunning": 0}, Own(), "TenantPaused",
     ('allocation rejected: user "alice" of tenant "physics" would exceed max_running quota (current: 0, requested: 1, limit: 0)'
     "; the users of the tenant are paused")),
    ("waiting", {"maxPending": 2}, Own(pending=2), "TooManyPending",
     'allocation rejected: user "alice" of tenant "physics" would exceed max_pending quota (current: 2, requested: 1, limit: 2)'),
]  # fmt: skip


@pytest.mark.parametrize(("limits", "own", "reason", "sentence"), [pytest.param(*entry[1:], id=entry[0]) for entry in OWN_LIMITS])
def test_the_limits_of_a_user_are_judged_by_what_he_has_in_the_tenant(limits: dict[str, int], own: Own, reason: str, sentence: str) -> None:
    known = facts(tenants=(tenant(quota={"perUser": limits}),), own=own)
    verdict = refused(submit(allocation(), known))
    assert (verdict.reason, verdict.sentence) == (reason, sentence)


def test_where_the_tenant_queues_a_user_at_his_limit_gets_a_warning_and_one_with_too_much_waiting_is_refused() -> None:
    known = facts(tenants=(tenant(quota={"perUser": {"maxNodes": 4, "maxPending": 2}, "onExceeded": "Queue"}),), own=Own(4, 1, 1))
    assert accepted(submit(allocation(), known)).warnings == (
        (
            'user "alice" of tenant "physics" has no room in its max_nodes quota (current: 4, requested: 2, limit: 4):'
            " the allocation waits with WaitingForQuotaHeadroom"
        ),
    )
    assert refused(submit(allocation(), replace(known, own=Own(4, 1, 2)))).reason == "TooManyPending"


@pytest.mark.parametrize("quota", ["maxNodes", "maxConcurrentAllocations"])
def test_a_paused_tenant_is_refused(quota: str) -> None:
    assert refused(submit(allocation(), facts(tenants=(tenant(quota={quota: 0}),)))).reason == "TenantPaused"


def test_who_may_run_as_others_submits_for_them() -> None:
    obj = allocation(user="bob")
    assert wanted_rights(Request.creation(obj), "alice") == ("", frozenset({"runas"}))
    accepted(submit(obj, facts(rights=frozenset({"runas"}))))


def test_without_a_cluster_only_the_object_itself_is_judged() -> None:
    offline = Facts(requester=Requester("alice"))
    accepted(admit(Request.creation(allocation(tenant="physics", vcluster="anything")), offline))
    assert refused(admit(Request.creation(allocation(entrypoint="'")), offline)).reason == "EntrypointInvalid"


def test_the_chain_stops_at_the_first_refusal() -> None:
    verdict = refused(submit(allocation(entrypoint="", lifecycle={"walltime": "0s"})))
    assert verdict.reason == "EntrypointInvalid"


@given(
    limit=st.integers(0, 50),
    used=st.integers(0, 60),
    nodes=st.integers(1, 60),
    mode=st.sampled_from(["Reject", "Queue"]),
)
def test_the_quota_lets_through_exactly_what_fits(limit: int, used: int, nodes: int, mode: str) -> None:
    known = replace(facts(tenants=(tenant(used_nodes=used, quota={"maxNodes": limit, "onExceeded": mode}),)), nodes=None)
    match submit(allocation(resources={"nodes": nodes}), known):
        case Accepted(_, warnings):
            assert nodes <= limit
            assert used + nodes <= limit or (mode == "Queue" and warnings)
        case Refused():
            assert nodes > limit or (mode == "Reject" and used + nodes > limit)


@pytest.mark.parametrize(("waiting", "accepts"), [(0, True), (2, True), (3, False), (9, False), (None, True)])
@pytest.mark.parametrize(
    ("limit", "counted", "who"),
    [
        ("maxPendingPerUser", "user", 'user "alice"'), ("maxPendingPerTenant", "tenant", 'tenant "physics"'),
        ("maxPending", "everybody", "all its work"),
    ],
)  # fmt: skip
def test_no_more_waits_than_the_vcluster_allows_a_user_a_tenant_and_all(
    limit: str, counted: str, who: str, waiting: int | None, accepts: bool
) -> None:
    known = facts(vclusters=(vcluster(limits={limit: 3}),), waits=Waits(**{counted: waiting}))
    verdict = submit(allocation(), known)
    if accepts:
        accepted(verdict)
    else:
        found = refused(verdict)
        assert found.reason == "TooManyPending"
        assert f"{who} would exceed {limit} of vCluster" in found.sentence
        assert f"(current: {waiting}, requested: 1, limit: 3)" in found.sentence


@pytest.mark.parametrize(("asked", "accepts"), [(0, True), (4, True), (5, False), (10, False)])
def test_a_class_above_the_highest_of_the_vcluster_is_refused(asked: int, accepts: bool) -> None:
    known = facts(vclusters=(vcluster(limits={"maxPreemptionClass": 4}),), tenants=(tenant(quota={}),))
    verdict = submit(allocation(lifecycle={"preemptionClass": asked}), known)
    if accepts:
        accepted(verdict)
    else:
        found = refused(verdict)
        assert found.reason == "ClassAboveLimit"
        assert f'above the highest of vCluster "hpc-batch" (requested: {asked}, limit: 4)' in found.sentence


ENTRYPOINT = st.text(alphabet="ab \\\t\n'\"", min_size=1, max_size=12)


@given(ENTRYPOINT)
@example("""'""'""")
@example("""''""''""")
def test_an_entrypoint_is_refused_exactly_where_it_does_not_split(text: str) -> None:
    try:
        sound = bool(shlex.split(text)[:1] not in ([], [""]))
    except ValueError:
        sound = False
    assert isinstance(submit(allocation(entrypoint=text)), Accepted) == sound


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"tasks": {"total": 8, "perNode": 4, "cpus": 2, "layout": "Cyclic"}}, ""),
        ({"tasks": {"total": 8192}}, ""),
        ({"tasks": {"total": 8193}}, "TasksAboveNodes"),
        ({"tasks": {"total": 9, "perNode": 4}}, "TasksAboveNodes"),
        ({"tasks": {"cpus": 2}}, "TasksIncomplete"),
        ({"tasks": {"perNode": 2, "mpi": "Auto"}}, "TasksIncomplete"),
        ({"tasks": {"cpus": 2, "on": "HeadNode"}}, ""),
        ({"tasks": {"cpus": 2}, "script": "#!/bin/sh\n", "entrypoint": None}, ""),
        ({"tasks": {"total": 2}, "environment": {"image": "app"}}, ""),
        ({"tasks": {"total": 2, "on": "HeadNode"}, "environment": {"image": "app"}}, ""),
    ],
)
def test_tasks_are_refused_that_no_launch_can_start_as_asked(spec: dict[str, Any], why: str) -> None:
    verdict = submit(allocation(**spec))
    assert (verdict.reason if isinstance(verdict, Refused) else "") == why, verdict
