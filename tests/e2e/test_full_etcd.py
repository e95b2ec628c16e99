"""A full etcd: what is asked is refused with the reason, what runs goes on, and no end is lost once there is room again."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator

from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import person
from tests.e2e.waiting import until
from tests.e2e.work import Gate


@contextlib.contextmanager
def full(instance: Instance) -> Iterator[None]:
    """etcd with its alarm NOSPACE raised, which it raises itself where its quota is used up: reads go on, every write fails."""
    _alarm(instance, "ACTIVATE")
    try:
        yield
    finally:
        _alarm(instance, "DEACTIVATE")


def _alarm(instance: Instance, action: str) -> None:
    site = instance.site()
    pair = site.pair("etcd-ca", "kube-apiserver")
    context = ssl.create_default_context(cafile=str(site.authority("etcd-ca")))
    context.load_cert_chain(str(pair.certificate), str(pair.key))
    connection = http.client.HTTPSConnection("127.0.0.1", site.ports["etcd"], context=context, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v3/maintenance/alarm", json.dumps({"action": action, "memberID": "0", "alarm": "NOSPACE"}))
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()


def test_a_full_etcd_refuses_what_is_asked_and_loses_no_end(control_plane: Instance, tenant: Room, gate: Gate) -> None:
    me = person(control_plane, "alice", tenant.namespace)
    home = control_plane.where.user_home("alice")
    for old in home.glob("ended-inside-*"):
        old.unlink()
    me.apply("ends-inside", nodes=2, entrypoint=f"sh -c '{gate.wait}; touch ~/ended-inside-$LATTICE_NODE_RANK; exit 9'")
    me.apply("goes-on", entrypoint="sleep 4247.1")
    me.phase("ends-inside", "Running")
    me.phase("goes-on", "Running")
    with full(control_plane):
        refused = me.apply("refused", entrypoint="true", ok=False)
        assert (refused.returncode, "database space exceeded" in refused.stderr) == (1, True), refused.stderr
        refused = me.lattice("submit", "--", "true", ok=False)
        assert refused.returncode in (1, 6), refused.stderr
        assert "database space exceeded" in refused.stderr
        assert "Hint:" in refused.stderr
        assert me.lattice("cancel", "goes-on", ok=False).returncode in (1, 6)
        assert "goes-on" in me.lattice("status").stdout
        gate.open()
        until(lambda: len(list(home.glob("ended-inside-*"))) == 2, within=20, what="the end of the work")
    status = me.ended("ends-inside", within=60)
    assert (status["phase"], status["exit"]["code"]) == ("Failed", 9)
    until(lambda: me.lattice("cancel", "goes-on", ok=False).returncode == 0, within=30, every=0.5)
    assert me.ended("goes-on", within=60)["phase"] == "Cancelled"
    me.apply("after", nodes=4, entrypoint="true")
    assert me.ended("after", within=60)["phase"] == "Completed"
    assert me.kubectl("get", "alloc", "refused", "-n", me.namespace, ok=False).returncode == 1
