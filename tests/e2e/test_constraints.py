"""Hardware that is asked for by type, memory and software: on an instance whose machines come from an inventory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.units import expand_nodes
from lattice_dev.instance import Instance
from lattice_dev.state import Options
from tests.e2e.conftest import new_instance, room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until

INVENTORY = """\
classes:
  gh200: {cpus: 288, memory: 480Gi, gpus: 4, gpuType: GH200, gpuMemory: 96Gi, unifiedMemory: true, watts: 2800}
  a100: {cpus: 128, memory: 512Gi, gpus: 8, gpuType: A100, gpuMemory: 80Gi, watts: 4000}
  cpu: {cpus: 256, memory: 512Gi, cxlMemory: 2Ti, features: [nvme_scratch], watts: 900}
nodes:
  - {names: "gh[1-2]", class: gh200, group: d0, switch: s0, fingerprint: a}
  - {names: "gh[3-5]", class: gh200, group: d0, switch: s1, fingerprint: b}
  - {names: "a[1-2]", class: a100, group: d1}
  - {names: "c[1-2]", class: cpu, group: d2}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """An instance of nine hollow nodes and no real one."""
    file = tmp_path_factory.mktemp("site") / "inventory.yaml"
    file.write_text(INVENTORY, encoding="utf-8")
    instance = new_instance("constraints", Options(nodes=0, inventory=str(file), fsync=False, without=("gateway",)))
    try:
        instance.up()
        yield instance
    finally:
        instance.down()


@pytest.fixture(scope="module")
def me(site: Instance) -> Iterator[Person]:
    """alice, in a tenant of this file."""
    with contextlib.closing(site.cluster()) as admin, room(admin) as made:
        yield person(site, "alice", made.namespace)


def submit(me: Person, name: str, constraint: str, *flags: str, nodes: int | str = 1) -> None:
    me.lattice("submit", f"--name={name}", f"--nodes={nodes}", "--walltime=5m", f"--constraint=hollow,{constraint}", f"--request-id={name}",
               "--export=HOLLOW_SECONDS=0.1", *flags, "--", "true")  # fmt: skip


def show(me: Person, name: str) -> dict[str, Any]:
    """The status of the allocation of this job name."""
    status: dict[str, Any] = me.get(object_of(me, name)).get("status", {})
    return status


def object_of(me: Person, name: str) -> str:
    """The object that `submit` made of a request id."""
    listed = me.kubectl(
        "get", "alloc", "-n", me.namespace, "-o", 'jsonpath={range .items[*]}{.spec.tags.name} {.metadata.name}{"\\n"}{end}'
    )
    return dict(line.split() for line in listed.stdout.splitlines())[name]


@pytest.mark.parametrize(
    ("name", "constraint", "nodes", "among"),
    [
        pytest.param("by-type", "gpu_type=GH200", 2, {"gh1", "gh2", "gh3", "gh4", "gh5"}, id="the type of the GPUs"),
        pytest.param("by-slurm-type", "gpu_type=a100,gpu_count=8", 2, {"a1", "a2"}, id="the type in lower case, and their number"),
        pytest.param("by-memory", "gpu_count=1,gpu_memory>=90Gi", 2, {"gh1", "gh2", "gh3", "gh4", "gh5"}, id="memory of each GPU"),
        pytest.param("by-domain", "unified", 1, {"gh1", "gh2", "gh3", "gh4", "gh5"}, id="unified memory"),
        pytest.param("by-cxl", "memory>=1Ti,allow_cxl_memory", 2, {"c1", "c2"}, id="memory behind CXL"),
        pytest.param("by-feature", "A100", 1, {"a1", "a2"}, id="the type as a feature, as in Slurm"),
        pytest.param("by-software", "gpu_type=GH200,conformance=required", 3, {"gh3", "gh4", "gh5"}, id="one fingerprint"),
    ],
)
def test_work_runs_where_the_hardware_is_as_it_asked(me: Person, name: str, constraint: str, nodes: int, among: set[str]) -> None:
    submit(me, name, constraint, nodes=nodes)
    ended = me.ended(object_of(me, name))
    assert ended["phase"] == "Completed", ended
    chosen = set(expand_nodes(ended["nodes"]))
    assert len(chosen) == nodes
    assert chosen <= among


@pytest.mark.parametrize(
    ("name", "constraint", "nodes", "sentence"),
    [
        pytest.param("never-type", "gpu_type=H100", 1, "no node has GPU type H100; there are A100 (2 nodes), GH200 (5 nodes)", id="type"),
        pytest.param("never-memory", "gpu_count=1,gpu_memory>=200Gi", 1, "the most of one GPU is 96Gi", id="GPU memory"),
        pytest.param("never-cxl", "memory>=1Ti", 1, "with CXL memory (allowCxlMemory) 2 nodes would do", id="memory without CXL"),
    ],
)
def test_what_does_not_exist_never_fits_and_the_sentence_names_what_does(
    me: Person, name: str, constraint: str, nodes: int, sentence: str
) -> None:
    submit(me, name, constraint, nodes=nodes)
    made = object_of(me, name)
    until(Seen(lambda: reason(show(me, name), "Scheduled"), lambda seen: seen == "NeverFits"), within=10)
    assert sentence in me.lattice("why", made, ok=False).stdout + str(show(me, name))
    me.lattice("cancel", made)


def test_equal_software_is_waited_for_where_it_is_required(me: Person) -> None:
    submit(me, "wide", "gpu_type=GH200,conformance=required", nodes=4)
    until(Seen(lambda: reason(show(me, "wide"), "Scheduled"), lambda seen: seen in ("InsufficientConformance", "NeverFits")), within=10)
    me.lattice("cancel", object_of(me, "wide"))
    submit(me, "mixed", "gpu_type=GH200", nodes=4)
    assert me.ended(object_of(me, "mixed"))["phase"] == "Completed"


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
    ended = me.ended(object_of(me, "slurm-gpus"))
    assert ended["phase"] == "Completed"
    assert str(ended["nodes"]).startswith("gh")
