"""What is installed comes in an order in which nothing that holds is missing in between."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from lattice.admission import Request, judge
from lattice.errors import NotFound
from lattice.kube import resources
from lattice.kube.blocking import BlockingCluster
from lattice.kube.cluster import Listing
from lattice.kube.resources import Resource
from lattice_dev.install import BEFORE_SCHEMAS, ENFORCED_SECONDS, SUPERSEDED, calm_config, install_all, read_manifests, shipped
from lattice_dev.waiting import HostClock
from tests.unit.admission.builders import accepted, facts

POLICY, CRD = "lattice-allocation-spec", "allocations.lattice.dev"


class Server:
    """An API server that takes everything, and remembers in which order; CRDs are served at once."""

    def __init__(self, definitions: tuple[str, ...], policies: Mapping[str, int]) -> None:
        self.policies = policies
        """Generations of the policies that stand there; what is applied has the first."""
        self.definitions = list(definitions)
        self.applied: list[str] = []

    def list(self, resource: Resource) -> Listing[dict[str, Any]]:
        """The CRDs that stand there."""
        assert resource is resources.CRDS
        conditions = [{"type": "Established", "status": "True"}]
        return Listing([{"metadata": {"name": name}, "status": {"conditions": conditions}} for name in self.definitions], "1")

    def get(self, resource: Resource, name: str, namespace: str = "", **options: Any) -> dict[str, Any]:
        """A policy as it stands."""
        del namespace, options
        if name not in self.policies:
            raise NotFound(f"{name} is not there")
        return {"kind": resource.kind, "metadata": {"name": name, "generation": self.policies[name]}}

    def patch(self, resource: Resource, name: str, body: Mapping[str, Any], namespace: str = "", **options: Any) -> dict[str, Any]:
        """Takes a manifest."""
        del namespace, options
        self.applied.append(name)
        if resource is resources.CRDS:
            self.definitions.append(name)
        return {**body, "metadata": {**body["metadata"], "generation": 1}}

    def delete(self, resource: Resource, name: str) -> None:
        """Removes a policy of before; bindings are not there."""
        if resource is not resources.ADMISSION_POLICIES:
            raise NotFound(f"{name} is not there")
        self.applied.append(f"without {name}")

    def create(self, resource: Resource, body: Mapping[str, Any], namespace: str = "", **options: Any) -> dict[str, Any]:
        """Takes a new object."""
        return self.patch(resource, body["metadata"]["name"], body, namespace, **options)


class Patience(HostClock):
    """A clock that notes how long it was slept by, and sleeps no time."""

    def __init__(self) -> None:
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        """Notes the wait."""
        self.slept += seconds


def applied(
    tmp_path: Path, *standing: str, policies: Mapping[str, int] = MappingProxyType({}), clock: Patience | None = None
) -> list[str]:  # fmt: skip
    authority = tmp_path / "ca.crt"
    authority.write_text("none")
    server = Server(standing, policies)
    install_all(cast("BlockingCluster", server), clock or Patience(), webhook="", authority=authority, hollow=False)
    return server.applied


def test_an_upgrade_has_the_policy_before_the_schema_that_leaves_its_rules_to_it(tmp_path: Path) -> None:
    order = applied(tmp_path, CRD)
    assert order.index(POLICY) < order.index(CRD)
    assert set(order[: 2 * len(BEFORE_SCHEMAS)]) == BEFORE_SCHEMAS, "each with its binding"


def test_an_upgrade_removes_the_policies_of_before_once_the_others_stand(tmp_path: Path) -> None:
    order = applied(tmp_path, CRD)
    assert [order.index(f"without {name}") for name in SUPERSEDED] == [len(order) - 2, len(order) - 1]
    assert order.index("lattice-allocations") < len(order) - 2
    shipped_names = {entry["metadata"]["name"] for entry in read_manifests(shipped("files"), {})}
    assert shipped_names.isdisjoint(SUPERSEDED)


def test_a_schema_that_leaves_rules_to_a_policy_waits_until_that_policy_is_enforced_and_only_then(tmp_path: Path) -> None:
    for standing, policies, waited in (
        ((CRD,), {}, ENFORCED_SECONDS), ((CRD,), dict.fromkeys(BEFORE_SCHEMAS, 0), ENFORCED_SECONDS),
        ((CRD,), dict.fromkeys(BEFORE_SCHEMAS, 1), 0.0), ((), {}, 0.0),
    ):  # fmt: skip
        clock = Patience()
        applied(tmp_path, *standing, policies=policies, clock=clock)
        assert clock.slept == waited, policies


def test_a_first_installation_has_the_kinds_before_the_policies_that_speak_of_them(tmp_path: Path) -> None:
    order = applied(tmp_path)
    assert order.index(CRD) < order.index(POLICY)


def test_each_policy_that_comes_before_the_schemas_is_shipped_with_its_binding() -> None:
    shipped_kinds = {(entry["kind"], entry["metadata"]["name"]) for entry in read_manifests(shipped("files"), {})}
    for name in BEFORE_SCHEMAS:
        assert {("ValidatingAdmissionPolicy", name), ("ValidatingAdmissionPolicyBinding", name)} <= shipped_kinds


@pytest.mark.parametrize("hollow", [251, 3_000, 10_000])
def test_options_for_many_hollow_nodes_are_in_order_with_each_other(hollow: int) -> None:
    accepted(judge(Request("LatticeConfig", "CREATE", calm_config(hollow), {}), facts()))
