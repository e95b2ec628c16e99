"""Who may read what: the roles that a tenant's members get name the tenant and the reservations that concern it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lattice.views import Reservation, Tenant
from lattice_controllers.operator.access import access_of, concerns

PHYSICS = msgspec.convert(
    {"metadata": {"name": "physics", "uid": "u"}, "spec": {"access": {"users": ["alice"], "admins": ["ada"]}}}, Tenant
)


def reservation(name: str, **spec: Any) -> Reservation:
    return msgspec.convert({"metadata": {"name": name}, "spec": {"nodes": "n1", "start": "now", "duration": "1h", **spec}}, Reservation)


@pytest.mark.parametrize(
    ("spec", "theirs"),
    [
        ({}, True),
        ({"maintenance": True}, True),
        ({"vclusters": ["hpc-batch"]}, True),
        ({"tenants": ["physics"]}, True),
        ({"users": ["alice"]}, True),
        ({"users": ["ada"]}, True),
        ({"users": ["bob"]}, False),
        ({"tenants": ["chemistry"]}, False),
        ({"tenants": ["chemistry"], "users": ["alice"]}, True),
    ],
)
def test_a_reservation_concerns_those_who_may_use_it_and_maintenance_everybody(spec: dict[str, Any], theirs: bool) -> None:
    assert concerns(reservation("x", **spec), PHYSICS) is theirs


def test_members_may_read_the_reservations_that_concern_them_by_name() -> None:
    made = access_of(PHYSICS, [reservation("open"), reservation("maint", maintenance=True), reservation("theirs", users=["bob"])])
    for role in ("lattice-tenant-physics-user", "lattice-tenant-physics-admin"):
        assert made.cluster_roles["", role]["rules"][1] == {
            "apiGroups": ["lattice.dev"], "resources": ["reservations"], "resourceNames": ["maint", "open"], "verbs": ["get"],
        }  # fmt: skip


def test_without_reservations_the_role_names_the_tenant_alone() -> None:
    for role in access_of(PHYSICS).cluster_roles.values():
        assert [rule["resources"] for rule in role["rules"]] == [["tenants"]]
