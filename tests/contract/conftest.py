"""The real API server that the contract tests share: one a run, with Lattice's CRDs installed."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from lattice.daemon.clock import SystemClock
from lattice.kube.aiohttp import connect
from lattice.kube.fake import FakeCluster
from lattice.kube.kubeconfig import ClusterConfig
from lattice.kube.resources import NAMESPACES
from tests import servers
from tests.contract import places, policy_scenes

_namespaces = itertools.count(1)


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ApiServer]:
    """etcd and kube-apiserver with every CRD of `crds/`, and the policy that holds the rules of an Allocation's spec."""
    if servers.programs() is None:
        pytest.skip("etcd and kube-apiserver are not built: run `make up` once, or set KUBEBUILDER_ASSETS")
    with servers.running(tmp_path_factory.mktemp("control-plane")) as server:
        server.install_all()
        server.install_spec_policy()
        yield server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ApiServer]:
    """Another one, with every policy and right, two tenants, and the webhooks registered and down (`policy_scenes`)."""
    if servers.programs() is None:
        pytest.skip("etcd and kube-apiserver are not built: run `make up` once, or set KUBEBUILDER_ASSETS")
    with policy_scenes.guarded(tmp_path_factory.mktemp("policies")) as running:
        yield running


@pytest.fixture(scope="session")
def config(api_server: servers.ApiServer) -> ClusterConfig:
    """The administrator of the real API server, which serves the suite's own kinds too."""
    return places.install(api_server)


@pytest.fixture(params=["fake", "real"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[places.Place]:
    """The fake, then the real API server, each with a fresh namespace."""
    name = f"contract-{next(_namespaces)}"
    if request.param == "fake":
        yield places.Place(FakeCluster(SystemClock()), name)
        return
    async with connect(request.getfixturevalue("config"), user_agent="lattice-contract") as cluster:
        await cluster.create(NAMESPACES, {"metadata": {"name": name}})
        yield places.Place(cluster, name)
