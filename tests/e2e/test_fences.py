"""Fences of launches on several nodes, through the running daemons: a cable that is cut in one, and ranks that come late."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.kube import resources
from lattice.kube.blocking import BlockingCluster
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import until
from tests.e2e.work import processes_of
from tests.killed_runs import RUN

pytestmark = [
    pytest.mark.root,
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root"),
]

TIMEOUT = 5
RANK = """\
#!/bin/bash
# the rank $1 comes after the command that follows, and all leave the fence together
echo "cmd=init pmi_version=1 pmi_subversion=1" >&$PMI_FD
read -ru $PMI_FD told
hostname > here-$PMI_RANK
[ $PMI_RANK != $1 ] || eval "$2"
echo "cmd=barrier_in" >&$PMI_FD
read -ru $PMI_FD told
echo "rank $PMI_RANK: $told"
echo "cmd=finalize" >&$PMI_FD
read -ru $PMI_FD told
"""


@pytest.fixture(scope="module")
def impatient(control_plane: Instance, admin: BlockingCluster, shared_tenant: Room) -> Iterator[None]:
    """A node may be silent in a fence for 5 s, and every agent has read so: with the fence's option it reads a variable of all work."""
    admin.patch(resources.CONFIGS, "lattice", {"spec": {"mpi": {"fenceTimeout": f"{TIMEOUT}s"}, "work": {"environment": {"FENCES": RUN}}}})
    me, nodes, numbers = person(control_plane, "alice", shared_tenant.namespace), len(control_plane.site().nodes), itertools.count()

    def read() -> bool:
        name = f"reads-{next(numbers)}"
        me.apply(name, nodes=nodes, entrypoint="printenv FENCES")
        me.ended(name)
        return me.lattice("logs", name).stdout.count(RUN) == nodes

    until(read, within=30, every=0.2, what="the options on every node")
    yield
    admin.patch(resources.CONFIGS, "lattice", {"spec": {"mpi": {"fenceTimeout": None}, "work": {"environment": None}}})


@pytest.fixture
def here(control_plane: Instance, impatient: None) -> Iterator[Path]:
    """A folder of alice's on every node, with the rank."""
    folder = control_plane.where.user_home("alice") / "fences"
    folder.mkdir()
    (folder / "rank").write_text(RANK)
    (folder / "rank").chmod(0o755)
    shutil.chown(folder, control_plane.user("alice").uid, control_plane.user("alice").uid)
    yield folder
    shutil.rmtree(folder)


def submitted(me: Person, here: Path, nodes: int, script: str) -> str:
    """Submits a script that writes into `out`; returns the allocation's number."""
    text = f"#!/bin/bash\n#SBATCH --nodes={nodes}\n#SBATCH --time=5\n#SBATCH --output={here}/out\ncd {here}\n{script}\n"
    return me.lattice("submit", "--parsable", "-", stdin=text).stdout.strip()


def test_a_cable_that_is_cut_in_a_fence_ends_the_launch_with_the_node_s_name_and_the_script_goes_on(
    me: Person, here: Path, control_plane: Instance
) -> None:
    number = submitted(me, here, 2, "srun -N 2 -n 2 ./rank 1 'sleep 4331'; echo code $?; touch over; until [ -e go ]; do sleep 0.2; done")

    def sleeping() -> list[int]:
        return processes_of(control_plane, "sleep 4331")

    until(lambda: (here / "here-0").exists() and len(sleeping()) == 1, within=60, what="both ranks")
    head, other = ((here / f"here-{rank}").read_text().strip() for rank in (0, 1))
    control_plane.cut_between(head, other)
    try:
        until((here / "over").exists, within=60, what="the end of the launch")
        said = (here / "out").read_text()
        assert f"node {other} has not been heard for {TIMEOUT} s, and the others wait in a PMI fence for it" in said, said
        assert "code 137" in said
        steps = me.lattice("status", number, "--steps").stdout
        assert "NodeFail" in steps, steps
        assert len(sleeping()) == 1, "the rank that nobody can reach lives on"
    finally:
        control_plane.mend_between(head, other)
    until(lambda: not sleeping(), within=60, what="the end of the rank, once its node is heard again")
    (here / "go").touch()
    me.lattice("wait", number, ok=False)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_that_comes_late_is_named_and_waited_for(me: Person, here: Path, nodes: int) -> None:
    late = "until grep -q 'it goes on waiting' out; do sleep 0.2; done"
    number = submitted(me, here, nodes, f'srun -O -N {nodes} -n {2 * nodes} ./rank 0 "{late}"')
    me.lattice("wait", number)
    said = (here / "out").read_text()
    node = (here / "here-0").read_text().strip()
    assert said.count("it goes on waiting") == 1, said
    assert f"a PMI fence waits on {node} for rank 0 since {TIMEOUT} s; it goes on waiting" in said
    assert sorted(line.partition(":")[0] for line in said.splitlines() if line.startswith("rank ")) == [
        f"rank {rank}" for rank in range(2 * nodes)
    ]
