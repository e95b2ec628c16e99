"""Limits that the API server itself holds, the webhooks registered and down: walltime, leaf, finalizers, sizes."""

from __future__ import annotations

from typing import Any

import pytest

from tests import servers
from tests.contract.policy_scenes import ALLOCATIONS, GROUP, PATHS, PLACED, Person, allocation, passed, refused
from tests.servers import Answer, ApiServer


def walltime(text: str | None) -> dict[str, Any]:
    return {"spec": {"lifecycle": {"walltime": text}}}


def submitted(server: ApiServer, name: str, **lifecycle: Any) -> str:
    body = allocation(name)
    body["spec"]["lifecycle"] |= lifecycle
    passed(Person(server, "alice")("POST", ALLOCATIONS, body))
    return f"{ALLOCATIONS}/{name}"


@pytest.mark.parametrize(
    ("current", "requested"), [("25s", "30d"), ("1h30m", "91m"), ("23h59m59s", "1d"), ("7d", "99999999999999999999999999999h")]
)
def test_a_longer_walltime_needs_the_right_whatever_its_units(server: ApiServer, current: str, requested: str) -> None:
    path = submitted(server, f"longer-{current}", walltime=current)
    numbers = f"a longer spec.lifecycle.walltime (current: {current}, requested: {requested})"
    refused(
        Person(server, "alice")("PATCH", path, walltime(requested)),
        f'{numbers} needs the verb extend or manage on tenant "physics", which "alice" lacks',
        'ask an admin of tenant "physics"',
    )
    passed(Person(server, "carol")("PATCH", path, walltime(requested)))
    passed(Person(server, "alice")("PATCH", path, walltime(current)))


def test_equal_and_shorter_walltimes_are_the_owners(server: ApiServer) -> None:
    path = submitted(server, "shorter", walltime="2h")
    for text in ("120m", "1h59m", "90s"):
        passed(Person(server, "alice")("PATCH", path, walltime(text)))


def test_a_walltime_is_not_taken_away_and_one_on_nodes_is_not_given_without_the_right(server: ApiServer) -> None:
    alice, scheduler = Person(server, "alice"), Person(server, "lattice:scheduler")
    refused(alice("PATCH", submitted(server, "endless"), walltime(None)), "cannot be taken away from a Bounded allocation (current: 1m)")
    path = submitted(server, "unbounded", type="Unbounded", walltime="1h")
    refused(alice("PATCH", path, walltime(None)), "(current: 1h, requested: none) needs the verb extend or manage")
    path = submitted(server, "default", walltime=None)
    passed(scheduler("PATCH", f"{path}/status", {"status": PLACED}))
    refused(alice("PATCH", path, walltime("30d")), "(current: none, requested: 30d) needs the verb extend or manage")
    passed(alice("PATCH", submitted(server, "waiting", walltime=None), walltime("1h")))


@pytest.mark.parametrize("text", ["999999999d", "1h", "15m1s", "901s", "0d0h15m1s"])
def test_work_goes_on_after_its_end_for_no_longer_than_any_may(server: ApiServer, text: str) -> None:
    alice, body = Person(server, "alice"), allocation("stubborn")
    body["spec"]["lifecycle"] |= {"gracePeriod": text}
    refused(alice("POST", ALLOCATIONS, body), f"spec.lifecycle.gracePeriod is {text}, and must be at most 15m", "a longer walltime instead")
    passed(alice("GET", submitted(server, f"patient-{text}", gracePeriod="15m")))


def test_nobody_else_may_hold_an_allocation(server: ApiServer) -> None:
    alice = Person(server, "alice")
    refused(alice("POST", ALLOCATIONS, allocation("stuck", finalizers=("evil.example/stay",))), '"evil.example/stay"', "take it out")
    path = submitted(server, "free")
    refused(alice("PATCH", path, {"metadata": {"finalizers": ["evil.example/stay"]}}), '"evil.example/stay"')
    passed(alice("PATCH", path, {"metadata": {"finalizers": ["lattice.dev/release"]}}))
    refused(alice("PATCH", path, {"metadata": {"finalizers": ["lattice.dev/release", "lattice.dev/stay"]}}), '"lattice.dev/stay"')
    passed(alice("DELETE", path, {"propagationPolicy": "Foreground"}))


def test_what_an_object_carries_is_bounded(server: ApiServer) -> None:
    alice = Person(server, "alice")

    def made(name: str, spec: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
        body = allocation(name)
        return {**body, "spec": {**body["spec"], **spec}, "metadata": {**body["metadata"], **metadata}}

    def variables(*sizes: int) -> dict[str, Any]:
        return {"environment": {"variables": {f"V{number}": "x" * size for number, size in enumerate(sizes)}}}

    passed(alice("POST", ALLOCATIONS, made("large", variables(*[32766] * 4), {})))
    refused(
        alice("POST", ALLOCATIONS, made("larger", variables(*[32766] * 4, 1), {})),
        "spec.environment.variables have 131075 bytes together (limit: 131072)",
    )
    notes = {"annotations": {"a": "x" * 16384}}
    refused(alice("POST", ALLOCATIONS, made("noted", {}, notes)), "metadata.annotations have 16385 bytes together (limit: 16384")
    passed(
        alice("POST", ALLOCATIONS, made("applied", {}, {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 99999}}))
    )
    labels = {"labels": {f"l{number}": "x" for number in range(65)}}
    refused(alice("POST", ALLOCATIONS, made("labels", {}, labels)), "metadata.labels has 65 labels (limit: 64)")
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": f"c{number}", "uid": str(number)} for number in range(17)]
    refused(alice("POST", ALLOCATIONS, made("owned", {}, {"ownerReferences": owners})), "metadata.ownerReferences has 17 owners")


def test_field_managers_do_not_pile_up_in_an_object(server: ApiServer) -> None:
    alice, path = Person(server, "alice"), submitted(server, "managed")
    body = {"apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "managed", "labels": {"note": "x"}}}

    def applied(number: int) -> Answer:
        return alice("PATCH", f"{path}?fieldManager=m{number}&force=true", body, content_type="application/apply-patch+yaml")

    answers = [applied(number) for number in range(33)]
    passed(answers[0])
    refused(answers[-1], "metadata.managedFields has 33 managers (limit: 32)", "the same --field-manager")
    passed(applied(0))


def test_no_more_tasks_are_asked_for_than_the_nodes_start(server: ApiServer) -> None:
    alice = Person(server, "alice")

    def asked(name: str, total: int, nodes: int | str, **tasks: Any) -> Any:
        body = allocation(name)
        body["spec"] |= {"resources": {"nodes": nodes}, "tasks": {"total": total, **tasks}}
        return alice("POST", ALLOCATIONS, body)

    refused(asked("many", 16777216, 1), "spec.tasks.total is 16777216, and 1 nodes with 4096 each start 4096")
    refused(asked("some", 17, "2-4", perNode=4), "spec.tasks.total is 17, and 4 nodes with 4 each start 16")
    refused(asked("head", 8193, 2, on="HeadNode"), "2 nodes with 4096 each start 8192")
    passed(asked("right", 16, "2-4", perNode=4))
    passed(asked("on-head", 64, 1, on="HeadNode"))


def test_naming_a_leaf_needs_the_verb_use_but_for_ones_own(server: ApiServer) -> None:
    alice, boss = Person(server, "alice"), Person(server, "root", ("system:masters",))
    quotas = f"{GROUP}/elasticquotas"
    for name, spec in (
        ("own", {"bindings": [{"tenant": "physics", "vclusters": ["hpc"]}]}),
        ("elsewhere", {"bindings": [{"tenant": "physics", "vclusters": ["other"]}]}),
        ("rich", {}),
    ):
        group = {"apiVersion": "lattice.dev/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name}}
        passed(boss("POST", quotas, {**group, "spec": {"max": {"nodes": 4}, **spec}}))

    def work(name: str, leaf: str, **labels: str) -> dict[str, Any]:
        body = allocation(name)
        body["metadata"]["labels"] = {**labels, "lattice.dev/quota": "named"}
        body["spec"] |= {"quota": leaf} if leaf else {}
        return body

    def denied(leaf: str) -> bool:
        return alice("POST", f"{ALLOCATIONS}?dryRun=All", work("probe", leaf)).status == 403

    servers.until(lambda: denied("rich") and denied("elsewhere"), "the groups are known to the policy", within=30)
    sentence = 'alice may not use quota "rich": the verb use on elasticquotas.lattice.dev is missing'
    refused(alice("POST", ALLOCATIONS, work("rich", "rich")), sentence)
    refused(alice("POST", ALLOCATIONS, work("path", "science/rich")), sentence)
    refused(alice("POST", ALLOCATIONS, work("label", "", **{"quota.scheduling.koordinator.sh/name": "rich"})), sentence)
    refused(alice("POST", ALLOCATIONS, work("default", "default")), 'may not use quota "default"')
    unmarked = work("unmarked", "rich")
    unmarked["metadata"]["labels"] = {}
    refused(
        alice("POST", ALLOCATIONS, unmarked),
        "a leaf of the quota tree is named, and the label lattice.dev/quota",
        "it did not answer; try again",
    )
    passed(alice("POST", ALLOCATIONS, work("by-name", "own")))
    passed(alice("POST", ALLOCATIONS, work("by-path", "science/own")))
    rule = {"apiGroups": ["lattice.dev"], "resources": ["elasticquotas"], "resourceNames": ["rich"], "verbs": ["use"]}
    passed(server.request("POST", PATHS["ClusterRole"], {"metadata": {"name": "use-rich"}, "rules": [rule]}))
    subjects = [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}]
    ref = {"kind": "ClusterRole", "name": "use-rich", "apiGroup": "rbac.authorization.k8s.io"}
    passed(server.request("POST", PATHS["ClusterRoleBinding"], {"metadata": {"name": "use-rich"}, "roleRef": ref, "subjects": subjects}))
    servers.until(lambda: not denied("rich"), "alice's right is in force", within=30)
    passed(alice("POST", ALLOCATIONS, work("allowed", "rich")))
    for name in ("own", "elsewhere", "rich"):
        passed(boss("DELETE", f"{quotas}/{name}"))


def test_naming_a_leaf_of_koordinators_needs_the_verb_use_and_a_parent_of_its_asks_nobody(server: ApiServer) -> None:
    alice, boss = Person(server, "alice"), Person(server, "root", ("system:masters",))
    groups, prefix = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/physics/elasticquotas", "quota.scheduling.koordinator.sh/"
    theirs = {f"{prefix}namespaces": '["physics"]'}
    for name, parent, notes in (("theirs", "false", theirs), ("foreign", "false", {}), ("above", "true", {})):
        metadata = {"name": name, "labels": {f"{prefix}is-parent": parent}, "annotations": notes}
        body = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": metadata}
        passed(boss("POST", groups, {**body, "spec": {"max": {"cpu": "4"}}}))

    def asked(leaf: str) -> Any:
        body = allocation("koordinated")
        body["metadata"]["labels"] = {"lattice.dev/quota": "named"}
        body["spec"] |= {"quota": leaf}
        return alice("POST", f"{ALLOCATIONS}?dryRun=All", body)

    servers.until(lambda: asked("foreign").status == 403, "the groups are known to the policy", within=30)
    refused(asked("foreign"), 'alice may not use quota "foreign": the verb use on elasticquotas.lattice.dev is missing')
    passed(asked("theirs"))
    passed(asked("above"))  # no work belongs there: the webhook and the scheduler say so, as of a parent of Lattice's own
    for name in ("theirs", "foreign", "above"):
        passed(boss("DELETE", f"{groups}/{name}"))
