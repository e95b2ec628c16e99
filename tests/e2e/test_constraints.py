"""Hardware that is asked for by type, memory and software: on an instance whose machines come from an inventory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.units import expand_nodes
from lattice_dev.instance import Instance
from tests.e2e.conftest import hollow_site, new_room
from tests.e2e.people import Person, person, scheduled
from tests.e2e.waiting import Seen, until

INVENTORY = """\
classes:
  gh200: {cpus: 288, memory: 480Gi, gpus: 4, gpuType: GH200, gpuMemory: 96Gi, unifiedMemory: true, watts: 2800}
  a100: {cpus: 128, memory: 512Gi, gpus: 8, gpuType: A100, gpuMemory: 80Gi, watts: 4000}
  cpu: {cpus: 256, memory: 512Gi, cxlMemory: 2Ti, features: [nvme_scratch], watts: 900}
  plain: {cpus: 64, memory: 128Gi, features: [bench]}
nodes:
  - {names: "gh[1-2]", class: gh200, group: d0, switch: s0, fingerprint: a}
  - {names: "gh[3-5]", class: gh200, group: d0, switch: s1, fingerprint: b}
  - {names: "a[1-2]", class: a100, group: d1}
  - {names: "c[1-2]", class: cpu, group: d2}
  - {names: "lab[1-2]", class: plain, group: d3, vcluster: lab}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """An instance of eleven hollow nodes and no real one."""
    with hollow_site("constraints", INVENTORY, tmp_path_factory.mktemp("site")) as instance:
        yield instance


@pytest.fixture(scope="module")
def me(site: Instance) -> Iterator[Person]:
    """alice, in a tenant of this file."""
    with contextlib.closing(site.cluster()) as admin:
        yield person(site, "alice", new_room(admin).namespace)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int, set[str]]] = {
    "by-type": ({"gpuType": "GH200"}, {}, 2, {"gh1", "gh2", "gh3", "gh4", "gh5"}),
    "by-type-in-lower-case": ({"gpuType": "a100"}, {"gpus": 8}, 2, {"a1", "a2"}),
    "by-gpu-memory": ({"gpuMemory": "90Gi"}, {"gpus": 1}, 2, {"gh1", "gh2", "gh3", "gh4", "gh5"}),
    "by-unified-memory": ({"requireUnifiedMemory": True}, {}, 1, {"gh1", "gh2", "gh3", "gh4", "gh5"}),
    "by-cxl-memory": ({"allowCxlMemory": True}, {"memory": "1Ti"}, 2, {"c1", "c2"}),
    "by-type-as-feature": ({"features": ["hollow", "A100"]}, {}, 1, {"a1", "a2"}),
    "by-fingerprint": ({"gpuType": "GH200", "conformance": "Required"}, {}, 3, {"gh3", "gh4", "gh5"}),
    "by-tight-topology": ({"topology": "Tight"}, {}, 5, {"gh1", "gh2", "gh3", "gh4", "gh5"}),
}
"""Constraints, what else of resources, nodes, and among which it must run."""
NEVER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no-such-type": ({"gpuType": "H100"}, {}, "no node has GPU type H100; there are A100 (2 nodes), GH200 (5 nodes)"),
    "no-such-gpu-memory": ({"gpuMemory": "200Gi"}, {"gpus": 1}, "the most of one GPU is 96Gi"),
    "no-such-memory": ({}, {"memory": "1Ti"}, "with CXL memory (allowCxlMemory) 2 nodes would do"),
}


def body(name: str, constraints: dict[str, Any], resources: dict[str, Any], nodes: int, **spec: Any) -> dict[str, Any]:
    """An Allocation on hollow nodes, over at once."""
    asked = {"nodes": nodes, **resources, "constraints": {"features": ["hollow"], **constraints}}
    work = {"entrypoint": "true", "environment": {"variables": {"HOLLOW_SECONDS": "0.1"}}, "lifecycle": {"walltime": "5m"}}
    kind = {"apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": name}}
    return {**kind, "spec": {"resources": asked, **work, **spec}}


@pytest.fixture(scope="module")
def submitted(me: Person) -> Person:
    """Every case, submitted at once: none is in the way of another, and none of them for long."""
    items = [body(name, constraints, resources, nodes) for name, (constraints, resources, nodes, _) in CASES.items()]
    items += [body(name, constraints, resources, 1) for name, (constraints, resources, _) in NEVER.items()]
    me.kubectl("apply", "-n", me.namespace, "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return me


@pytest.mark.parametrize("name", CASES)
def test_work_runs_where_the_hardware_is_as_it_asked(submitted: Person, name: str) -> None:
    _, _, nodes, among = CASES[name]
    ended = submitted.ended(name)
    assert ended["phase"] == "Completed", ended
    chosen = set(expand_nodes(ended["nodes"]))
    assert len(chosen) == nodes
    assert chosen <= among


@pytest.mark.parametrize("name", NEVER)
def test_what_does_not_exist_never_fits_and_the_sentence_names_what_does(submitted: Person, name: str) -> None:
    condition = until(Seen(lambda: scheduled(submitted, name), lambda seen: seen.get("reason") == "NeverFits"), within=10)
    assert NEVER[name][2] in condition["message"]
    submitted.lattice("cancel", name)


def apply(me: Person, name: str, constraints: dict[str, Any], nodes: int, **spec: Any) -> None:
    me.kubectl("apply", "-n", me.namespace, "-f", "-", stdin=json.dumps(body(name, constraints, {}, nodes, **spec)))


def test_where_equal_software_is_required_a_mixed_set_waits_and_without_it_is_used(me: Person) -> None:
    apply(me, "alike", {"gpuType": "GH200", "conformance": "Required"}, 4)
    condition = until(Seen(lambda: scheduled(me, "alike"), lambda seen: seen.get("reason") == "InsufficientConformance"), within=10)
    assert "3" in condition["message"]
    me.lattice("cancel", "alike")
    apply(me, "mixed", {"gpuType": "GH200"}, 4)
    assert me.ended("mixed")["phase"] == "Completed"


def test_work_of_a_vcluster_runs_on_the_nodes_that_the_inventory_puts_at_home_there(me: Person) -> None:
    apply(me, "at-home", {}, 2, vcluster="lab")
    assert me.ended("at-home")["nodes"] == "lab[1-2]"
    apply(me, "a-guest", {"features": ["hollow", "bench"]}, 1, vcluster="hpc-batch")
    until(Seen(lambda: scheduled(me, "a-guest"), lambda seen: seen.get("status") == "False"), within=10)
    assert me.get("a-guest")["status"]["phase"] == "Pending"
    me.lattice("cancel", "a-guest")


def test_the_table_of_nodes_shows_what_can_be_asked_for(me: Person) -> None:
    table = me.lattice("nodes", "-o", "wide").stdout.splitlines()
    first = next(line for line in table if line.startswith("gh1 "))
    assert "GH200" in first
    assert " s0 " in first
    marks = {line.split()[0]: line for line in table[1:]}
    fingerprints = {name: me.kubectl("get", "ln", name, "-o", "jsonpath={.status.fingerprint}").stdout for name in ("gh1", "gh2", "gh3")}
    assert fingerprints["gh1"] == fingerprints["gh2"] != fingerprints["gh3"]
    assert fingerprints["gh3"].removeprefix("sha256:")[:12] in marks["gh3"]
    details = me.lattice("nodes", "gh1").stdout
    assert "4 GH200, 96Gi each" in details
    assert "one domain with the GPUs" in details


def test_a_batch_script_for_slurm_gets_the_gpus_that_it_names(me: Person, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --gres=gpu:gh200:4\n#SBATCH --constraint=hollow&unified\n#SBATCH --time=5\n"
        "#SBATCH --job-name=slurm-gpus\n#SBATCH --export=HOLLOW_SECONDS=0.1\ntrue\n",
        encoding="utf-8",
    )
    done = me.lattice("submit", str(script), cwd=tmp_path)
    assert "ignored" not in done.stderr
    listed = me.kubectl("get", "alloc", "-n", me.namespace, "-o", "json").stdout
    name = next(item["metadata"]["name"] for item in json.loads(listed)["items"] if item["spec"].get("script"))
    ended = me.ended(name)
    assert ended["phase"] == "Completed"
    assert str(ended["nodes"]).startswith("gh")


def test_hollow_nodes_launch_nothing_and_say_so(me: Person) -> None:
    asked = {"tasks": {"total": 8, "mpi": "Auto"}}
    me.kubectl("apply", "-n", me.namespace, "-f", "-", stdin=json.dumps(body("launched", {}, {}, 2, **asked)))
    me.ended("launched", within=60)
    listed = me.lattice("history", "launched", "--steps", ok=False)
    assert "it ran on hollow nodes, which launch nothing" in listed.stdout + listed.stderr, listed
    number = me.get("launched")["status"]["number"]
    refused = me.lattice("cancel", f"{number}.0", ok=False)
    assert (refused.returncode != 0, "has no launches" in refused.stderr) == (True, True), refused
