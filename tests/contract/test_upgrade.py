"""An upgrade on a real API server: the rules of a spec that leave the CRD for a policy hold at every moment of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.kube import kubeconfig
from lattice.kube.blocking import BlockingCluster
from lattice.models.allocation import Allocation
from lattice_dev.generate.crds import crd, with_every_rule
from lattice_dev.install import install_schemas, read_manifests, shipped
from lattice_dev.waiting import HostClock
from tests import servers
from tests.servers import ApiServer

SENTENCE = "spec.data.output is not served yet"
BAD = {
    "apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "bad", "namespace": "default"},
    "spec": {"tenant": "t", "user": "u", "vcluster": "v", "entrypoint": "true", "resources": {"nodes": 1}, "data": {"output": "s3://x"}},
}  # fmt: skip
TARGET = "/apis/lattice.dev/v1alpha1/namespaces/default/allocations?dryRun=All"


def older_definition() -> dict[str, Any]:
    """The CRD of Allocations as an older release had it: the rules of the spec in its schema."""
    made = crd(Allocation)
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = with_every_rule(Allocation)["properties"]["spec"]
    return made


@pytest.fixture
def older(tmp_path: Path) -> Iterator[ApiServer]:
    """A server of its own with the older CRD and no policy."""
    if servers.programs() is None:
        pytest.skip("etcd and kube-apiserver are not built: run `make up` once, or set KUBEBUILDER_ASSETS")
    with servers.running(tmp_path) as server:
        server.install(older_definition())
        yield server


def test_no_bad_spec_is_accepted_at_any_moment_of_an_upgrade(older: ApiServer) -> None:
    over = threading.Event()
    answers: list[tuple[bool, str]] = []

    def submit() -> None:
        while not over.is_set():
            answer = older.request("POST", TARGET, BAD)
            answers.append((answer.ok, answer.message))

    person = threading.Thread(target=submit)
    person.start()
    try:
        with BlockingCluster(kubeconfig.load(str(older.kubeconfig), None)) as cluster:
            install_schemas(cluster, HostClock(), read_manifests(shipped("crds"), {}), ahead=read_manifests(shipped("files"), {}))
        over.wait(3)  # the new schema is in force
    finally:
        over.set()
        person.join()
    assert len(answers) > 20
    # A request that meets the exchange of schemas may be answered by the storage that goes: "apiserver is shutting down".
    others = [message for accepted, message in answers if accepted or SENTENCE not in message]
    assert [message for message in others if "shutting down" not in message] == []
    assert "Invalid value" in answers[0][1], "the schema speaks"
    assert "ValidatingAdmissionPolicy" in answers[-1][1], "the policy speaks"
