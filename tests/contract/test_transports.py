"""What only a real server shows: certificates and their renewal, refused rights, the blocking transport, leases of two processes."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.daemon.clock import SystemClock
from lattice.errors import AlreadyExists, Denied, NotFound, Rejected, Retry, Stale
from lattice.kube.aiohttp import connect
from lattice.kube.blocking import BlockingCluster
from lattice.kube.cluster import EventKind, PatchKind
from lattice.kube.credentials import Credentials
from lattice.kube.kubeconfig import ClusterConfig, load
from lattice.kube.leases import Elector
from lattice.kube.resources import ALLOCATIONS, LEASES, LEDGERS, NAMESPACES, SELF_SUBJECT_REVIEWS
from lattice.views import Lease
from tests import servers
from tests.contract.places import WIDGETS, until


def test_the_blocking_transport_offers_the_same_verbs(config: ClusterConfig) -> None:
    with BlockingCluster(config) as cluster:
        cluster.create(NAMESPACES, {"metadata": {"name": "blocking"}})
        made = cluster.create(WIDGETS, {"metadata": {"name": "a"}, "spec": {"size": 1}}, "blocking")
        with pytest.raises(AlreadyExists):
            cluster.create(WIDGETS, {"metadata": {"name": "a"}}, "blocking")
        cluster.patch(WIDGETS, "a", {"spec": {"size": 2}}, "blocking")
        with pytest.raises(Stale):
            cluster.replace(WIDGETS, "a", made, "blocking")
        applied = {"metadata": {"name": "a"}, "spec": {"size": 3}}
        cluster.patch(WIDGETS, "a", applied, "blocking", kind=PatchKind.APPLY, manager="contract", force=True)
        assert [item["spec"] for item in cluster.list(WIDGETS, "blocking").items] == [{"size": 3}]
        cluster.delete(WIDGETS, "a", "blocking", uid=made["metadata"]["uid"])
        with pytest.raises(NotFound):
            cluster.get(WIDGETS, "a", "blocking")
        assert cluster.version()["gitVersion"].startswith("v1.")


def test_the_blocking_transport_watches(config: ClusterConfig) -> None:
    with BlockingCluster(config) as cluster:
        cluster.create(NAMESPACES, {"metadata": {"name": "blocking-watch"}})
        version = cluster.list(WIDGETS, "blocking-watch").resource_version
        cluster.create(WIDGETS, {"metadata": {"name": "a"}, "spec": {"text": "x" * 300_000}}, "blocking-watch")
        cluster.delete(WIDGETS, "a", "blocking-watch")
        events = cluster.watch(WIDGETS, "blocking-watch", resource_version=version)
        kinds = [next(events).kind for _ in range(2)]
        events.close()
        assert kinds == [EventKind.ADDED, EventKind.DELETED]


async def test_a_line_larger_than_any_buffer_is_told_whole(config: ClusterConfig) -> None:
    async with connect(config, user_agent="lattice-contract") as cluster:
        await cluster.create(NAMESPACES, {"metadata": {"name": "large"}})
        version = (await cluster.list(WIDGETS, "large")).resource_version
        await cluster.create(WIDGETS, {"metadata": {"name": "a"}, "spec": {"text": "x" * 1_000_000}}, "large")
        async for event in cluster.watch(WIDGETS, "large", resource_version=version):
            assert event.object is not None
            assert len(event.object["spec"]["text"]) == 1_000_000
            break


def test_an_unknown_token_is_denied(config: ClusterConfig) -> None:
    stranger = config._replace(token="nobody", cert_file="", key_file="", source="")  # noqa: S106
    with BlockingCluster(stranger) as cluster, pytest.raises(Denied, match="Unauthorized"):
        cluster.get(NAMESPACES, "default")


def test_a_user_without_rights_is_denied_with_the_servers_sentence(api_server: servers.ApiServer) -> None:
    with BlockingCluster(load(str(api_server.kubeconfig_for("bob")))) as cluster:
        with pytest.raises(Denied, match='User "bob" cannot get resource'):
            cluster.get(NAMESPACES, "default")
        who = cluster.create(SELF_SUBJECT_REVIEWS, {})
        assert who["status"]["userInfo"]["username"] == "bob"


def test_a_server_that_the_authority_did_not_sign_is_denied(config: ClusterConfig, tmp_path: Path) -> None:
    servers.authority(tmp_path)
    with (
        BlockingCluster(config._replace(ca_file=str(tmp_path / "ca.crt"), source="")) as cluster,
        pytest.raises(Denied, match="not trusted"),
    ):
        cluster.get(NAMESPACES, "default")


async def test_a_server_that_the_authority_did_not_sign_is_denied_to_daemons_too(config: ClusterConfig, tmp_path: Path) -> None:
    servers.authority(tmp_path)
    wrong = config._replace(ca_file=str(tmp_path / "ca.crt"), source="")
    async with connect(wrong, user_agent="lattice-contract") as cluster:
        with pytest.raises(Denied, match="not trusted"):
            await cluster.get(NAMESPACES, "default")


async def test_a_server_that_is_not_there_is_retry_for_reads_and_writes(tmp_path: Path) -> None:
    nobody = ClusterConfig(server="http://127.0.0.1:1")
    async with connect(nobody, user_agent="lattice-contract") as cluster:
        with pytest.raises(Retry, match="no connection"):
            await cluster.create(NAMESPACES, {"metadata": {"name": "x"}})
        with pytest.raises(Retry, match="no connection"):
            await cluster.get(NAMESPACES, "x")
    with BlockingCluster(nobody) as blocking, pytest.raises(Retry, match="no connection"):
        blocking.create(NAMESPACES, {"metadata": {"name": "x"}})


async def test_a_client_certificate_is_read_again_when_its_file_changes(api_server: servers.ApiServer, tmp_path: Path) -> None:
    certificate, key = servers.issue(api_server.directory, "renewed-first")
    config = ClusterConfig(server=api_server.url, ca_file=str(api_server.ca), cert_file=str(tmp_path / "c"), key_file=str(tmp_path / "k"))
    (tmp_path / "c").write_bytes(certificate.read_bytes())
    (tmp_path / "k").write_bytes(key.read_bytes())
    async with connect(config, user_agent="lattice-contract") as cluster:
        names = {(await cluster.create(SELF_SUBJECT_REVIEWS, {}))["status"]["userInfo"]["username"]}
        certificate, key = servers.issue(api_server.directory, "renewed-second")
        (tmp_path / "c").write_bytes(certificate.read_bytes())
        (tmp_path / "k").write_bytes(key.read_bytes())
        await asyncio.sleep(1.1)
        names.add((await cluster.create(SELF_SUBJECT_REVIEWS, {}))["status"]["userInfo"]["username"])
    assert names == {"renewed-first", "renewed-second"}


async def test_a_token_file_is_read_again_at_once_when_the_server_refuses_the_former(api_server: servers.ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("outdated")
    config = ClusterConfig(server=api_server.url, ca_file=str(api_server.ca), token_file=str(token))
    async with connect(config, user_agent="lattice-contract") as cluster:
        with pytest.raises(Denied):
            await cluster.get(NAMESPACES, "default")
        token.write_text(servers.ADMIN_TOKEN)
        assert (await cluster.get(NAMESPACES, "default"))["metadata"]["name"] == "default"


def test_a_kubeconfig_with_data_inside_works(api_server: servers.ApiServer, tmp_path: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(api_server.kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    for part, names in ((cluster, ["certificate-authority"]), (user, ["client-certificate", "client-key"])):
        for name in names:
            part[f"{name}-data"] = base64.b64encode(Path(part.pop(name)).read_bytes()).decode()
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
    with BlockingCluster(load(str(tmp_path / "kubeconfig"))) as server:
        assert server.get(NAMESPACES, "default")["metadata"]["name"] == "default"


def test_rejections_of_lattices_own_kinds_name_the_fields(config: ClusterConfig) -> None:
    with BlockingCluster(config) as cluster:
        with pytest.raises(Rejected, match="spec"):
            cluster.create(ALLOCATIONS, {"metadata": {"name": "x"}, "spec": {"resources": "many"}}, "default")
        with pytest.raises(Rejected, match="its name is lattice"):
            cluster.create(LEDGERS, {"metadata": {"name": "other"}})


async def test_64_patches_at_once_all_arrive(config: ClusterConfig) -> None:
    async with connect(config, user_agent="lattice-contract") as cluster:
        await cluster.create(NAMESPACES, {"metadata": {"name": "many"}})
        await cluster.create(WIDGETS, {"metadata": {"name": "a"}}, "many")
        await asyncio.gather(*(cluster.patch(WIDGETS, "a", {"spec": {f"f{number}": number}}, "many") for number in range(64)))
        assert len((await cluster.get(WIDGETS, "a", "many"))["spec"]) == 64


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_lease_passes_to_the_next_when_it_is_released(config: ClusterConfig) -> None:
    led: list[str] = []
    async with connect(config, user_agent="lattice-contract") as cluster, asyncio.TaskGroup() as group:
        for identity in ("one", "two"):
            elector = Elector(cluster, SystemClock(), name="passes", namespace="default", identity=identity, lease_seconds=2.0)

            async def work(identity: str = identity) -> None:
                led.append(identity)
                await asyncio.sleep(0.3)

            group.create_task(elector.lead(work))
    assert sorted(led) == ["one", "two"]


async def test_a_lease_that_another_takes_stops_the_work(config: ClusterConfig) -> None:
    async with connect(config, user_agent="lattice-contract") as cluster:
        elector = Elector(cluster, SystemClock(), name="stolen", namespace="default", identity="one", lease_seconds=1.5)

        async def steal() -> None:
            await until(lambda: elector.leading)
            await cluster.patch(LEASES, "stolen", {"spec": {"holderIdentity": "thief"}}, "default")

        async with asyncio.TaskGroup() as group:
            group.create_task(steal())
            with pytest.raises(Stale, match="thief"):
                await elector.lead(for_ever)
        assert (await cluster.get(LEASES, "stolen", "default", type=Lease)).spec.holder_identity == "thief"


def test_tls_is_verified_by_default(config: ClusterConfig) -> None:
    context = Credentials(config).identity().tls
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
