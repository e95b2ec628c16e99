"""Every verb takes what `-o name` of another one prints."""

from __future__ import annotations

import pytest

from lattice.kube.resources import ALLOCATIONS, NODES, RESERVATIONS, TENANTS, VCLUSTERS
from tests.unit.cli.conftest import Bench


@pytest.mark.parametrize("verb", ["status", "why", "diag", "hold", "release", "cancel", "update --preemption-class=3", "wait --timeout=1s"])
def test_a_verb_about_an_allocation_takes_what_status_prints(bench: Bench, verb: str) -> None:
    bench.allocation("first", number=1, hold=verb == "release")
    (name,) = bench.run("status", "-o", "name").out.split()
    assert name == "allocation.lattice.dev/first"
    done = bench.run(*verb.split(), name)
    assert "no allocation" not in done.err
    assert "/first" in done.out + done.err or "1" in done.out + done.err


def test_several_names_go_as_one_list(bench: Bench) -> None:
    for number, name in enumerate(("first", "second"), 1):
        bench.allocation(name, number=number)
    names = bench.run("status", "-o", "name").out.split()
    assert bench.run("cancel", ",".join(names), "-o", "name").out.split() == names


def test_an_allocation_of_another_namespace_is_printed_as_verbs_find_it(bench: Bench) -> None:
    bench.allocation("here", number=1)
    spec = bench.read("here")["spec"]
    bench.cluster.create(ALLOCATIONS, {"metadata": {"name": "there"}, "spec": spec}, "chemistry", type=dict[str, object])
    printed = bench.run("status", "-A", "-o", "name").out.split()
    assert sorted(printed) == ["allocation.lattice.dev/here", "chemistry/there"]
    for name in printed:
        assert bench.run("status", name, "-o", "name").out.split() == [name]


def test_a_name_of_another_kind_is_refused_and_ends_nothing(bench: Bench) -> None:
    bench.allocation("fast", number=1)
    done = bench.run("cancel", "vcluster.lattice.dev/fast")
    assert done.code != 0
    assert "'vcluster.lattice.dev/fast' names a vcluster, and a name of kind Allocation is wanted" in done.err
    assert "cancel" not in bench.read("fast")["spec"]


def test_nodes_tenants_vclusters_and_reservations_go_by_what_is_printed_too(bench: Bench) -> None:
    for resource, name, spec in (
        (NODES, "n1", {}), (TENANTS, "physics", {}), (VCLUSTERS, "fast", {"policy": "Backfill"}),
        (RESERVATIONS, "maint", {"nodes": "n1", "start": "2026-12-01T08:00:00Z", "duration": "1h"}),
    ):  # fmt: skip
        bench.cluster.create(resource, {"metadata": {"name": name}, "spec": spec}, type=dict[str, object])
    for printing, taking in (
        ("nodes", "node status"), ("nodes", "node undrain"), ("nodes", "nodes"), ("nodes", "diag"), ("admin tenant list", "admin tenant get"),
        ("admin vcluster list", "admin vcluster get"), ("reservation list", "reservation show"),
    ):  # fmt: skip
        (name,) = bench.run(*printing.split(), "-o", "name").out.split()
        assert "/" in name
        done = bench.run(*taking.split(), name)
        assert done.code == 0, (taking, done.err)
