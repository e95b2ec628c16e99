"""The real API server that the contract tests share: one a run, with Lattice's CRDs installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import servers


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ApiServer]:
    """etcd and kube-apiserver with every CRD of `crds/`."""
    if servers.programs() is None:
        pytest.skip("etcd and kube-apiserver are not built: run `make up` once, or set KUBEBUILDER_ASSETS")
    with servers.running(tmp_path_factory.mktemp("control-plane")) as server:
        server.install_all()
        yield server
