"""The site's hooks on a running instance: what fails on one node runs on another, what hangs is ended, and a node waits until it is clean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS, NODES
from lattice_agent.host.processes import state
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until

Hook = Callable[[str, str], None]


@pytest.fixture
def me(control_plane: Instance, tenant: Room) -> Person:
    """alice, in a tenant of this test."""
    return person(control_plane, "alice", tenant.namespace)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that hooks write to."""
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def hook(control_plane: Instance, tenant: Room) -> Iterator[Hook]:
    """Writes a hook of every node, for this test's tenant alone: `hook("prologue", text)`."""
    written: list[Path] = []

    def write(when: str, text: str) -> None:
        for node in control_plane.site().nodes:
            path = control_plane.where.node(node) / f"{when}.d" / f"10-{tenant.name}"
            written.append(path)
            path.write_text(f'#!/bin/bash\n[ "$LATTICE_TENANT" = {tenant.name} ] || exit 0\n{text}\n')
            path.chmod(0o755)

    yield write
    for path in written:
        path.unlink(missing_ok=True)


@pytest.mark.usefixtures("quick_retries")
def test_a_prologue_that_fails_on_one_node_succeeds_on_another_and_its_exports_reach_the_work(me: Person, hook: Hook, place: Path) -> None:
    hook(
        "prologue",
        f"mkdir {place}/first 2>/dev/null && {{ echo no licence >&2; exit 3; }}\necho export LICENCE=$LATTICE_JOB_NAME-$SLURM_JOB_ID",
    )
    me.apply("picky", entrypoint="printenv LICENCE", lifecycle={"requeue": {"policy": "Never"}})
    status = me.ended("picky", within=60)
    assert (status["phase"], status["attempt"], status.get("requeues", 0)) == ("Completed", 2, 0)
    (failed,) = status["attempts"]
    assert (failed["reason"], failed["node"]) == ("PrologueFailed", failed["nodes"])
    assert failed["nodes"] != status["nodes"]
    assert f"10-{me.namespace} ended with exit code 3: no licence" in failed["message"]
    assert me.lattice("logs", "picky").stdout == f"picky-{status['number']}\n"


@pytest.mark.usefixtures("quick_retries")
def test_a_prologue_that_fails_everywhere_is_tried_three_times_again_on_other_nodes(me: Person, hook: Hook) -> None:
    hook("prologue", "exit 1")
    me.apply("doomed", entrypoint="true")
    status = me.ended("doomed", within=90)
    assert (status["phase"], reason(status), status["attempt"], status.get("requeues", 0)) == ("Failed", "PrologueFailed", 4, 0)
    assert len({entry["node"] for entry in status["attempts"]}) == 3


def test_a_cancel_amid_a_hook_that_hangs_ends_it_and_the_epilogue_comes_before_the_end(me: Person, hook: Hook, place: Path) -> None:
    hook("prologue", f"echo $$ > {place}/hangs; trap '' TERM; sleep 600 & wait; sleep 600")
    hook("epilogue", f"echo clean >> {place}/epilogue")
    me.apply("hanger", entrypoint="true")
    until((place / "hangs").exists, within=30)
    shown = re.search(r"^Steps: +(nid\d+): hooks", me.lattice("status", "hanger").stdout, re.MULTILINE)
    assert shown is not None, me.lattice("status", "hanger").stdout
    me.lattice("cancel", "hanger")
    assert me.ended("hanger", within=30)["phase"] == "Cancelled"
    assert (place / "epilogue").read_text() == "clean\n"
    assert state(int((place / "hangs").read_text())) in ("", "Z"), "it is dead, reaped or not"


def test_an_epilogue_that_does_not_succeed_holds_the_end_up_for_its_time_and_the_node_until_it_is_clean(
    me: Person, hook: Hook, place: Path, admin: BlockingCluster
) -> None:
    admin.patch(CONFIGS, "lattice", {"spec": {"work": {"epilogueTimeout": "3s", "hookTimeout": "1s"}}})
    try:
        hook("epilogue", f"test -e {place}/mended || sleep 600")
        me.apply("messy", entrypoint="true", resources={"constraints": {"nodeList": "nid003"}})
        status = me.ended("messy", within=60)
        assert (status["phase"], status["exit"]["code"]) == ("Completed", 0)

        def health() -> list[tuple[str, str]]:
            conditions = admin.get(NODES, "nid003")["status"]["conditions"]
            return [(one["status"], one["reason"]) for one in conditions if one["type"] == "Healthy"]

        until(Seen(health, lambda found: found == [("False", "EpilogueFailed")]), within=60, what="an unhealthy node")
        (place / "mended").touch()
        until(Seen(health, lambda found: bool(found) and found[0][0] == "True"), within=90, what="a healthy node")
        me.apply("after", entrypoint="true", resources={"constraints": {"nodeList": "nid003"}})
        assert me.ended("after", within=60)["phase"] == "Completed"
    finally:
        admin.patch(CONFIGS, "lattice", {"spec": {"work": {"epilogueTimeout": None, "hookTimeout": None}}})
