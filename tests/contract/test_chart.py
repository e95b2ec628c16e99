"""The Helm chart, rendered by Helm's engine with the least and with all values, and accepted by a real API server as a dry run."""

from __future__ import annotations

import base64
import os
import subprocess
from collections import Counter
from typing import Any

import pytest
import yaml

from lattice_dev import build
from lattice_dev.progress import terminal
from lattice_dev.waiting import HostClock
from tests import servers
from tests.servers import ApiServer

CHART = servers.ROOT / "charts" / "lattice"
IMAGE: dict[str, Any] = {"image": {"repository": "registry.example/lattice"}}
LEAST: dict[str, Any] = {**IMAGE, "gateway": {"url": "https://lattice.example"}, "webhook": {"answerEverybody": True}}
"""What has no default."""
FULL: dict[str, Any] = {
    "image": {"repository": "registry.example/lattice", "tag": "9.9.9", "pullPolicy": "Always"},
    "scheduler": {"replicas": 3, "answersSecret": "answers", "recordSize": "1Gi", "resources": {"limits": {"memory": "4Gi"}}},
    "operator": {"replicas": 1, "resources": {}, "agentsAuthority": "agents-ca"},
    "webhook": {"replicas": 4, "clientSecret": "webhook-clients"},
    "gateway": {"url": "https://lattice.example", "secret": "people", "agentSecret": "agents", "replicas": 2},
    "certificates": {"mode": "secret", "caBundle": base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()},
    "priorityAndFairness": True,
    "logLevel": "debug",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "control-plane", "operator": "Exists", "effect": "NoSchedule"}],
}
CERT_MANAGER = {"Issuer", "Certificate"}
"""Kinds that the API server of the tests does not have: cert-manager brings them."""


@pytest.fixture(scope="session")
def render() -> str:
    """The program that renders charts, built where it is not in the cache; a build that fails is an error, never a skip."""
    return build.find_or_build_helm(terminal(HostClock()), HostClock(), os.environ).path("render")


def run(render: str, values: dict[str, Any], namespace: str = "lattice-system") -> subprocess.CompletedProcess[str]:
    command = [render, str(CHART), namespace]
    return subprocess.run(command, input=yaml.safe_dump(values), capture_output=True, text=True, check=False, timeout=60)


def rendered(render: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    done = run(render, values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {document["metadata"]["name"]: document for document in documents if document["kind"] == kind}


@pytest.fixture(scope="module")
def namespaces(api_server: ApiServer) -> ApiServer:
    """The API server with the namespaces that rendered objects stand in, as `helm install --create-namespace` makes the first."""
    for name in ("lattice-system", "lattice-node-lease"):
        api_server.kubectl("create", "namespace", name)
    return api_server


def accepted(server: ApiServer, documents: list[dict[str, Any]]) -> None:
    """A server-side apply of all of them, as a dry run with strict fields."""
    known = [document for document in documents if document["kind"] not in CERT_MANAGER]
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--filename=-")
    done = server.kubectl(*words, stdin=yaml.safe_dump_all(known))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(known)


def test_without_what_has_no_default_the_chart_says_what_is_missing(render: str) -> None:
    done = run(render, {})
    assert done.returncode != 0
    assert "image.repository: name an image with lattice-hpc installed" in done.stderr
    done = run(render, {key: value for key, value in LEAST.items() if key != "webhook"})
    assert "webhook.clientSecret: the Secret with ca.crt" in done.stderr
    done = run(render, {key: value for key, value in LEAST.items() if key != "gateway"})
    assert "gateway.url: the URL that people reach the gateway by" in done.stderr
    done = run(render, {**LEAST, "certificates": {"mode": "secret"}})
    assert "certificates.caBundle" in done.stderr


def test_another_namespace_than_lattice_system_is_refused_with_the_reason(render: str) -> None:
    done = run(render, LEAST, "elsewhere")
    assert done.returncode != 0
    assert "install into the namespace lattice-system" in done.stderr


def test_the_least_values_render_every_daemon_and_the_api_server_takes_all_of_it(render: str, namespaces: ApiServer) -> None:
    documents = rendered(render, LEAST)
    assert set(of_kind(documents, "Deployment")) == {"lattice-scheduler", "lattice-operator", "lattice-webhook", "lattice-gateway"}
    assert set(of_kind(documents, "Certificate")) == {"lattice-webhook"}
    files = [one for path in (servers.ROOT / "crds").rglob("*.yaml") for one in yaml.safe_load_all(path.read_text())]
    assert set(of_kind(documents, "CustomResourceDefinition")) == {one["metadata"]["name"] for one in files}
    accepted(namespaces, documents)


def test_all_values_are_honoured_and_the_api_server_takes_all_of_it(render: str, namespaces: ApiServer) -> None:
    documents = rendered(render, FULL)
    deployments = of_kind(documents, "Deployment")
    assert {name: each["spec"]["replicas"] for name, each in deployments.items()} == {
        "lattice-scheduler": 3, "lattice-operator": 1, "lattice-webhook": 4, "lattice-gateway": 2,
    }  # fmt: skip
    for each in deployments.values():
        pod = each["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert (container["image"], container["imagePullPolicy"]) == ("registry.example/lattice:9.9.9", "Always")
        assert "--log-level=debug" in container["args"]
        assert pod["nodeSelector"] == FULL["nodeSelector"]
        assert pod["tolerations"] == FULL["tolerations"]
    volumes = {volume["name"]: volume for volume in deployments["lattice-scheduler"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes["answers"]["secret"]["secretName"] == "answers"
    operator = deployments["lattice-operator"]["spec"]["template"]["spec"]
    assert {"name": "authority", "secret": {"secretName": "agents-ca"}} in operator["volumes"]
    assert "--agents-ca-key=/certificates/authority/tls.key" in operator["containers"][0]["args"]
    assert volumes["records"]["emptyDir"]["sizeLimit"] == "1Gi"
    hooks = [*of_kind(documents, "ValidatingWebhookConfiguration").values(), *of_kind(documents, "MutatingWebhookConfiguration").values()]
    for hook in (one for configuration in hooks for one in configuration["webhooks"]):
        assert hook["clientConfig"]["service"]["name"] == "lattice-webhook"
        assert "url" not in hook["clientConfig"]
    assert of_kind(documents, "FlowSchema")
    accepted(namespaces, documents)


def test_without_a_gateway_and_flow_schemas_nothing_of_them_is_rendered(render: str, namespaces: ApiServer) -> None:
    documents = rendered(render, {**LEAST, "gateway": {"enabled": False}, "priorityAndFairness": False})
    assert "lattice-gateway" not in of_kind(documents, "Deployment")
    assert set(of_kind(documents, "ConfigMap")) == {"lattice-forgotten-nodes"}
    assert not of_kind(documents, "FlowSchema")
    args = of_kind(documents, "Deployment")["lattice-scheduler"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not [word for word in args if word.startswith("--answers")]
    accepted(namespaces, documents)


def test_every_file_of_the_chart_is_rendered_and_no_object_twice(render: str) -> None:
    documents = rendered(render, LEAST)
    names = Counter((one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in documents)
    assert [name for name, count in names.items() if count > 1] == []
    for file in sorted((CHART / "files").glob("*.yaml")):
        if file.name == "namespaces.yaml":
            continue  # helm makes the one, templates/rights.yaml the other
        for document in yaml.safe_load_all(file.read_text()):
            assert (document["kind"], document["metadata"].get("namespace", ""), document["metadata"]["name"]) in names, file.name


def test_gateway_and_operator_are_given_the_login_to_the_registry_where_there_is_one(render: str) -> None:
    flag = "--registry-auth=/certificates/registry/.dockerconfigjson"
    for program, kept in (
        ("gateway", "--agent-ca=/certificates/agents/ca.crt"),
        ("operator", "--agents-ca-key=/certificates/authority/tls.key"),
    ):
        for secret in ("", "registry-login"):
            values = {**FULL, program: {**FULL[program], "registrySecret": secret}}
            pod = of_kind(rendered(render, values), "Deployment")[f"lattice-{program}"]["spec"]["template"]["spec"]
            mounted = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
            assert (flag in pod["containers"][0]["args"], "registry-login" in mounted) == (bool(secret), bool(secret))
            assert kept in pod["containers"][0]["args"]
