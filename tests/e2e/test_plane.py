"""What a failed test may leave of the shared instance is taken back before the next one."""

from __future__ import annotations

import signal

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS, NODES
from lattice_dev.instance import Instance
from tests.e2e.plane import Plane


def test_programs_run_nodes_are_ready_and_the_configuration_is_as_before(
    control_plane: Instance, admin: BlockingCluster, plane: Plane
) -> None:
    before = plane.configured()
    with plane.kept():
        admin.patch(CONFIGS, "lattice", {"spec": {"scheduling": {"retryBackOff": "3s"}, "work": {"environment": {"A": "b"}}}})
    assert plane.configured() == before
    admin.patch(NODES, "nid001", {"spec": {"drain": {"reason": "left"}}})
    control_plane.kill("gateway", signal.SIGSTOP)
    control_plane.kill("agent-nid003")
    control_plane.stop("webhook")
    with plane.kept():
        assert [shown for shown in control_plane.status() if shown.missing] == []
        assert {item["status"]["state"] for item in admin.list(NODES).items} == {"Ready"}
    assert plane.configured() == before
