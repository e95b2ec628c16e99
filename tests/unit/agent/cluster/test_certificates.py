"""Renewal of a node's certificates: whole at every moment, and answered as the operator judges requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from prometheus_client import generate_latest

from lattice.daemon.clock import ManualClock
from lattice.daemon.node_certificates import API, PEER, request_name
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import CERTIFICATE_REQUESTS
from lattice.views import Node
from lattice.views.cluster import NodeStatus
from lattice.views.meta import Metadata
from lattice_agent.certificate_program import make_request
from lattice_agent.cluster.certificates import Pair, Renewal, complete, hosts_of
from lattice_agent.cluster.registration import Flaw
from lattice_agent.metrics import AgentMetrics
from lattice_controllers.operator.metrics import OperatorMetrics
from lattice_controllers.operator.requests import KEPT_SECONDS, Requests, Signing, refusal_of
from lattice_dev.pki import DAY, Authority, Identity

MONTH = 30 * DAY
USER, GROUPS = "lattice:agent:n1", ["lattice:agents", "system:authenticated"]
N1 = Node(metadata=Metadata(name="n1"), status=NodeStatus(address="10.0.0.7:50052"))


class World:
    """One node with its first certificate, an API server in memory, and the operator's judge."""

    def __init__(self, directory: Path, *, days: float = 30, use: str = PEER) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.authority = Authority(directory, "agents-ca", self.clock.now())
        identity = Identity(USER, ("lattice:agents",), ("10.0.0.7",), ("n1",), server=True)
        made, _ = self.authority.issue("agent", identity, days=days)
        self.pair = Pair(made.certificate, made.key)
        self.metrics = AgentMetrics("n1")
        self.told: list[Flaw] = []
        self.renewal = self.again(use)
        self.nodes = {"n1": N1}
        self.forgotten: set[str] = set()
        signing = Signing(str(self.authority.pair.certificate), str(self.authority.pair.key))
        self.requests = Requests(self.cluster, self.clock, self.nodes, self.forgotten.__contains__, signing, OperatorMetrics())

    def again(self, use: str = PEER) -> Renewal:
        """The renewal of an agent that has just started."""
        complete(self.pair)
        return Renewal(
            use, self.pair, "n1", hosts_of("n1", "10.0.0.7:50052"), cluster=self.cluster, clock=self.clock, lifetime=MONTH,
            metrics=self.metrics, on_flaw=self.told.append, early=0.0,
        )  # fmt: skip

    def serial(self) -> int:
        """The certificate in force; it fits its key."""
        certificate = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        assert certificate.public_key() == load_pem_private_key(self.pair.key.read_bytes(), None).public_key()
        return certificate.serial_number

    async def answer(self) -> None:
        """What API server and operator make of a new request."""
        for name, found in self.cluster.snapshot(CERTIFICATE_REQUESTS).items():
            if "username" not in found["spec"]:
                await self.cluster.patch(CERTIFICATE_REQUESTS, name, {"spec": {"username": USER, "groups": GROUPS}})
            for _ in ("the request", "the answer"):
                self.requests.informer.objects[name] = await self.cluster.get(CERTIFICATE_REQUESTS, name)
                await self.requests.reconcile(name)
                if name not in self.cluster.snapshot(CERTIFICATE_REQUESTS):
                    break


async def test_nothing_is_asked_before_its_time_and_a_third_before_the_end_it_is_renewed(tmp_path: Path) -> None:
    here = World(tmp_path)
    first = here.serial()
    await here.clock.run_for(19.9 * DAY)
    assert await here.renewal.turn() > 0
    assert not here.cluster.snapshot(CERTIFICATE_REQUESTS)
    await here.clock.run_for(0.2 * DAY)
    await here.renewal.turn()
    await here.answer()
    await here.renewal.turn()
    certificate = x509.load_pem_x509_certificate(here.pair.certificate.read_bytes())
    assert here.serial() != first
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(here.authority.pem))
    assert certificate.not_valid_after_utc.timestamp() == pytest.approx(here.clock.now() + MONTH, abs=2)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert (names.get_values_for_type(x509.DNSName), [str(one) for one in names.get_values_for_type(x509.IPAddress)]) == (
        ["n1"],
        ["10.0.0.7"],
    )
    assert {path.name for path in here.pair.key.parent.iterdir()} == {"agent.crt", "agent.key"}
    assert here.pair.key.stat().st_mode & 0o777 == 0o600
    assert await here.renewal.turn() > 1
    shown = generate_latest(here.metrics.registry).decode()
    assert 'lattice_agent_certificate_renewals_total{node_id="n1",outcome="done",use="peer"} 1.0' in shown


async def test_a_first_certificate_of_a_year_is_soon_replaced_by_one_of_thirty_days(tmp_path: Path) -> None:
    here = World(tmp_path, days=365)
    await here.renewal.turn()
    await here.answer()
    await here.renewal.turn()
    certificate = x509.load_pem_x509_certificate(here.pair.certificate.read_bytes())
    assert certificate.not_valid_after_utc.timestamp() <= here.clock.now() + MONTH + 1


async def test_a_restarted_agent_goes_on_with_the_request_that_it_has_made(tmp_path: Path) -> None:
    here = World(tmp_path)
    await here.clock.run_for(21 * DAY)
    await here.renewal.turn()
    here.renewal = here.again()
    await here.renewal.turn()
    await here.answer()
    here.renewal = here.again()
    first = here.serial()
    await here.renewal.turn()
    assert here.serial() != first
    assert len(here.cluster.writes(CERTIFICATE_REQUESTS)) == len([1 for _ in ("create", "identity", "approval", "status")])


async def test_a_request_whose_key_was_lost_is_put_away_and_another_one_made(tmp_path: Path) -> None:
    here = World(tmp_path)
    await here.clock.run_for(21 * DAY)
    first = here.serial()
    await here.renewal.turn()
    here.pair.asked.unlink()
    for _ in range(3):
        await here.renewal.turn()
        await here.answer()
        await here.clock.run_for(KEPT_SECONDS + 1)
    await here.renewal.turn()
    assert here.serial() != first


async def test_one_that_is_refused_is_shown_when_its_end_is_near_and_no_longer_when_it_is_renewed(tmp_path: Path) -> None:
    here = World(tmp_path)
    here.forgotten.add("n1")
    await here.clock.run_for(21 * DAY)
    await here.renewal.turn()
    await here.answer()
    await here.renewal.turn()
    assert not [flaw for flaw in here.told if flaw.message]
    await here.clock.run_for(5 * DAY)
    await here.answer()  # puts the former request away
    for _ in ("another key", "another request"):
        await here.renewal.turn()
    await here.answer()
    await here.renewal.turn()
    assert here.told[-1].reason == "RenewalRefused"
    assert "agent.crt) ends at 2023-12-14T22:13:20Z: " in here.told[-1].message
    assert "node n1 is not registered, or was forgotten" in here.told[-1].message
    here.forgotten.clear()
    for _ in range(4):
        await here.clock.run_for(KEPT_SECONDS + 1)
        await here.answer()
        await here.renewal.turn()
    assert here.told[-1].message == ""


async def test_somebody_elses_certificate_is_left_alone(tmp_path: Path) -> None:
    here = World(tmp_path)
    admin, _ = here.authority.issue("admin", Identity("admin", ("system:masters",)), days=1)
    here.pair = Pair(admin.certificate, admin.key)
    here.renewal = here.again(API)
    await here.renewal.turn()
    assert not here.cluster.snapshot(CERTIFICATE_REQUESTS)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """64 KiB to write on."""
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def fill(disk: Path) -> Path:
    """A file that leaves no room."""
    hog = disk / "hog"
    with hog.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return hog


@pytest.mark.root
async def test_on_a_full_disk_the_old_pair_goes_on_and_the_renewal_follows_when_there_is_room(small_disk: Path) -> None:
    here = World(small_disk)
    first = here.serial()
    await here.clock.run_for(21 * DAY)
    hog = fill(small_disk)
    await here.renewal.turn()  # no room for the request
    assert not here.cluster.snapshot(CERTIFICATE_REQUESTS)
    hog.unlink()
    await here.renewal.turn()
    await here.answer()
    hog = fill(small_disk)
    await here.renewal.turn()  # no room for the certificate
    assert here.serial() == first
    hog.unlink()
    await here.renewal.turn()
    assert here.serial() != first


CHILD = """
import sys
from pathlib import Path
from cryptography import x509
from lattice_agent.cluster.certificates import Pair, _install, _private, complete
from lattice_agent.standalone.durable import write_durably
here = Path(sys.argv[1])
pair = Pair(here / "tls.crt", here / sys.argv[2])
complete(pair)
made = [(path.read_bytes(), (here / "made" / (path.stem + ".asked")).read_bytes()) for path in sorted((here / "made").glob("*.crt"))]
for round in range(10**9):
    for certificate, asked in made:
        write_durably(str(here), pair.asked.name, asked)
        _install(pair, certificate, _private(asked))
    if not round:
        print("ready", flush=True)
"""


@pytest.mark.parametrize("key", ["tls.key", "tls.crt"], ids=["two files", "one file"])
def test_killed_at_any_moment_the_pair_is_whole_again_at_the_next_start(tmp_path: Path, key: str) -> None:
    authority, rng = Authority(tmp_path / "ca", "agents-ca", time.time()), random.Random(7)
    (tmp_path / "made").mkdir()
    for number in range(3):
        made, _ = authority.issue(f"agent-{number}", Identity(USER))
        (tmp_path / "made" / f"{number}.crt").write_bytes(made.certificate.read_bytes())
        request = make_request("n1", ()).partition(b"-----BEGIN CERTIFICATE REQUEST-----")
        (tmp_path / "made" / f"{number}.asked").write_bytes(made.key.read_bytes() + b"".join(request[1:]))
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), key], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0.005, 0.1))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        pair = Pair(tmp_path / "tls.crt", tmp_path / key)
        complete(pair)
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        assert certificate.public_key() == load_pem_private_key(pair.key.read_bytes(), None).public_key()
        assert not pair.asked.exists() or not pair.given.exists()


# what the operator approves


def request(pem: bytes, use: str = PEER, **spec: Any) -> dict[str, Any]:
    usages = ["client auth", "digital signature", *(["server auth"] if use == PEER else [])]
    signer = {PEER: "lattice.dev/agent", API: "kubernetes.io/kube-apiserver-client"}[use]
    body = b"".join(pem.partition(b"-----BEGIN CERTIFICATE REQUEST-----")[1:])
    whole = {
        "request": base64.b64encode(body).decode(), "signerName": signer, "usages": usages, "expirationSeconds": int(MONTH),
        "username": USER, "groups": GROUPS, **spec,
    }  # fmt: skip
    return {"metadata": {"name": request_name("n1", use)}, "spec": whole}


GOOD = make_request("n1", ("n1", "10.0.0.7"))


def test_a_nodes_own_request_is_approved_for_both_uses() -> None:
    assert refusal_of(request(GOOD), N1, forgotten=False) == ""
    assert refusal_of(request(make_request("n1", ()), API), N1, forgotten=False) == ""
    longer = Node(metadata=Metadata(name="n1"), status=NodeStatus(address="n1.example.org:50052"))
    assert refusal_of(request(make_request("n1", ("n1", "n1.example.org"))), longer, forgotten=False) == ""


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (request(GOOD, username="alice"), "alice is no agent"),
        (request(GOOD, groups=["system:authenticated"]), "is no agent"),
        (request(GOOD, username="lattice:agent:n2"), "is called lattice-agent-n2.peer"),
        (request(GOOD, expirationSeconds=None), "between 600 and 2592000"),
        (request(GOOD, expirationSeconds=int(MONTH) + 1), "between 600 and 2592000"),
        (request(GOOD, usages=["client auth"]), "usages are client auth"),
        (request(make_request("n2", ())), "it must be O=lattice:agents, CN=lattice:agent:n1"),
        (request(make_request("n1", ("n1", "n2"))), "asks for DNS:n2"),
        (request(make_request("n1", ("lattice-gateway",))), "asks for DNS:lattice-gateway"),
        (request(make_request("n1", ("10.0.0.8",))), "asks for IP:10.0.0.8"),
        (request(make_request("n1", ("n1",)), API), "for no host name or address"),
        (request(GOOD[:-60] + b"\n"), "cannot be read"),
    ],
)
def test_everything_else_is_refused_with_its_reason(found: dict[str, Any], why: str) -> None:
    assert why in refusal_of(found, N1, forgotten=False)


def test_a_stranger_and_a_forgotten_node_get_nothing() -> None:
    assert "not registered" in refusal_of(request(GOOD), None, forgotten=False)
    assert "forgotten" in refusal_of(request(GOOD), N1, forgotten=True)
    leaving = Node(metadata=Metadata(name="n1", annotations={"lattice.dev/forget": "true"}), status=N1.status)
    assert "forgotten" in refusal_of(request(GOOD), leaving, forgotten=False)


def test_a_daemons_host_name_as_address_gives_no_right_to_it() -> None:
    sly = Node(metadata=Metadata(name="n1"), status=NodeStatus(address="lattice-gateway:50052"))
    assert "DNS:lattice-gateway" in refusal_of(request(make_request("n1", ("lattice-gateway",))), sly, forgotten=False)


async def test_an_answered_request_goes_after_a_minute_and_not_before(tmp_path: Path) -> None:
    here = World(tmp_path)
    await here.clock.run_for(21 * DAY)
    await here.renewal.turn()
    await here.answer()
    for seconds, left in ((0.0, 1), (KEPT_SECONDS - 1, 1), (2.0, 0)):
        await asyncio.sleep(0)
        await here.clock.run_for(seconds)
        await here.answer()
        assert len(here.cluster.snapshot(CERTIFICATE_REQUESTS)) == left
