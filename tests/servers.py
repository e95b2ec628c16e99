"""A real etcd and kube-apiserver for tests: loopback, a directory of its own, an administrator by certificate and token.

Use the fixtures `api_server` (one a run) of `tests/contract/conftest.py`, or `with running(folder) as server:`.
The programs come from KUBEBUILDER_ASSETS, else from the cache where `lattice-dev` builds them.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import http.client
import ipaddress
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice_dev import ports
from tests.e2e.waiting import patient

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("etcd", "kube-apiserver")
ADMIN_TOKEN = "test-administrator"  # noqa: S105 - of a server that lives as long as the test
JSON = "application/json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def programs() -> Path | None:
    """The folder with etcd and kube-apiserver, or None when they were never built."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lattice"
    found = [path.parent for path in cache.glob("**/kube-apiserver") if all((path.parent / name).is_file() for name in NEEDED)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


@dataclass(frozen=True)
class Answer:
    """What the server said: the status code and the decoded body."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        """The sentence of a refusal."""
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else str(self.body)

    @property
    def ok(self) -> bool:
        """Whether the request was carried out."""
        return 200 <= self.status < 300


@dataclass(frozen=True)
class ApiServer:
    """A running kube-apiserver; requests are made as the administrator unless `token` says otherwise."""

    directory: Path
    port: int
    etcd_port: int
    programs: Path
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        """The certificate authority of server and clients (PEM)."""
        return self.directory / "ca.crt"

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file of the administrator."""
        return self.kubeconfig_for("admin", ("system:masters",))

    def kubeconfig_for(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """A kubeconfig file of any user, by a client certificate made on first use."""
        file = self.directory / f"{user.replace(':', '-')}.kubeconfig"
        if not file.exists():
            certificate, key = issue(self.directory, user, organizations=groups)
            file.write_text(yaml.safe_dump(_kubeconfig(self, user, certificate, key)))
        return file

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        accept: str = JSON,
        token: str = ADMIN_TOKEN,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request; the body is sent as JSON."""
        target = path + ("?" + urlencode(query) if query else "")
        trusted = ssl.create_default_context(cafile=str(self.ca))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=trusted)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type, "Accept": accept}
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        try:
            return Answer(response.status, json.loads(data) if data else None)
        except ValueError:
            return Answer(response.status, data.decode(errors="replace"))

    def install(self, manifest: Mapping[str, Any]) -> None:
        """Create or replace a CRD, and wait until it is served."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        name = manifest["metadata"]["name"]
        answer = self.request("POST", path, manifest, query={"fieldValidation": "Strict"})
        if answer.status == 409:
            stands = self.request("GET", f"{path}/{name}").body
            renewed = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": stands["metadata"]["resourceVersion"]}}
            answer = self.request("PUT", f"{path}/{name}", renewed, query={"fieldValidation": "Strict"})
        assert answer.ok, f"{name}: {answer.message}"
        self._until_served(f"{path}/{name}", manifest)

    def install_all(self) -> None:
        """Install every CRD of `crds/`, those of others as well."""
        for file in sorted((ROOT / "crds").rglob("*.yaml")):
            self.install(yaml.safe_load(file.read_text()))

    def install_spec_policy(self) -> None:
        """Apply the policy of an Allocation's spec, and wait until it is enforced."""
        paths = {"ValidatingAdmissionPolicy": "policies", "ValidatingAdmissionPolicyBinding": "policybindings"}
        file = ROOT / "charts" / "lattice" / "files" / "policies-allocation-spec.yaml"
        for manifest in yaml.safe_load_all(file.read_text()):
            path = f"/apis/admissionregistration.k8s.io/v1/validatingadmission{paths[manifest['kind']]}/{manifest['metadata']['name']}"
            query = {"fieldManager": "tests", "force": "true", "fieldValidation": "Strict"}
            answer = self.request("PATCH", path, manifest, content_type=APPLY, query=query)
            assert answer.ok, answer.message
        neither = {"apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "neither"}, "spec": {}}
        target = "/apis/lattice.dev/v1alpha1/namespaces/default/allocations?dryRun=All"
        until(lambda: "exactly one of them" in self.request("POST", target, neither).message, "the policy is enforced", within=30)

    def kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run the built kubectl as the administrator."""
        command = [str(self.programs / "kubectl"), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.directory}/kubectl", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)

    def _until_served(self, path: str, manifest: Mapping[str, Any]) -> None:
        spec = manifest["spec"]
        served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        until(lambda: _established(self.request("GET", path).body) and self.request("GET", served).ok, f"{path} is served", within=20)


def _established(crd: Any) -> bool:
    conditions = {entry["type"]: entry["status"] for entry in crd.get("status", {}).get("conditions") or []}
    return conditions.get("Established") == "True" and conditions.get("NamesAccepted") == "True"


def until(predicate: Any, what: str, *, within: float) -> None:
    """Wait until the predicate holds; fail naming what was waited for. `within`: seconds on a quiet machine, as in tests/e2e."""
    within = patient(within)
    end = time.monotonic() + within
    last: object = None
    while time.monotonic() < end:
        try:
            last = predicate()
            if last:
                return
        except (OSError, http.client.HTTPException) as error:
            last = error
        time.sleep(0.05)
    raise AssertionError(f"not within {within} s: {what}; last seen: {last!r}")


@contextlib.contextmanager
def running(directory: Path, *, controller_manager: bool = False, arguments: tuple[str, ...] = ()) -> Iterator[ApiServer]:
    """A control plane in `directory`, gone with all its files at the end, also when the test fails or is killed.

    `controller_manager` adds the garbage collector, the namespace controller and the service accounts;
    `arguments` are given to the kube-apiserver besides.
    """
    found = programs()
    if found is None:
        raise FileNotFoundError("etcd and kube-apiserver are not built: run `make up` once, or set KUBEBUILDER_ASSETS")
    directory.mkdir(parents=True, exist_ok=True)
    with ports.claimed(3) as (port, etcd_port, peer_port):
        server = ApiServer(directory, port, etcd_port, found)
        try:
            _credentials(directory)
            _start(server, "etcd", _etcd_arguments(directory, etcd_port, peer_port))
            _start(server, "kube-apiserver", (*_apiserver_arguments(server), *arguments))
            until(lambda: server.request("GET", "/readyz").ok, f"kube-apiserver is ready ({directory}/kube-apiserver.log)", within=60)
            if controller_manager:
                _start(server, "kube-controller-manager", _controller_arguments(server))
            yield server
        finally:
            _stop(server.children)
            shutil.rmtree(directory, ignore_errors=True)


def authority(directory: Path) -> None:
    """`ca.crt` and `ca.key` in the directory."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lattice-test-ca")])
    certificate = _builder(name, name, key.public_key()).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    _write(directory, "ca", certificate.sign(key, hashes.SHA256()), key)


def issue(
    directory: Path, user: str, *, organizations: tuple[str, ...] = (), addresses: tuple[str, ...] = ("127.0.0.1",)
) -> tuple[Path, Path]:
    """A certificate for `user` (CN) in `organizations` (O), good for client and server; returns certificate and key."""
    authority_key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes()).subject
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    builder = _builder(x509.Name([*subject, x509.NameAttribute(NameOID.COMMON_NAME, user)]), issuer, key.public_key())
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), *(x509.IPAddress(ipaddress.ip_address(item)) for item in addresses)]
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).add_extension(usages, critical=False)
    return _write(directory, user.replace(":", "-"), builder.sign(authority_key, hashes.SHA256()), key)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.fromtimestamp(time.time(), dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - dt.timedelta(minutes=5)).not_valid_after(now + dt.timedelta(days=2))


def _write(directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
    files = directory / f"{name}.crt", directory / f"{name}.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(_private(key))
    return files


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _credentials(directory: Path) -> None:
    authority(directory)
    issue(directory, "apiserver")
    (directory / "service-account.key").write_bytes(_private(rsa.generate_private_key(public_exponent=65537, key_size=2048)))
    (directory / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')


def _etcd_arguments(directory: Path, port: int, peer_port: int) -> tuple[str, ...]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return (
        "--name=test",
        f"--data-dir={directory}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=test={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    )


def _apiserver_arguments(server: ApiServer) -> tuple[str, ...]:
    at = server.directory
    return (
        f"--etcd-servers=http://127.0.0.1:{server.etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={server.port}",
        f"--cert-dir={at}",
        f"--tls-cert-file={at}/apiserver.crt",
        f"--tls-private-key-file={at}/apiserver.key",
        f"--client-ca-file={at}/ca.crt",
        f"--token-auth-file={at}/tokens.csv",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://127.0.0.1",
        f"--service-account-key-file={at}/service-account.key",
        f"--service-account-signing-key-file={at}/service-account.key",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--disable-admission-plugins=ServiceAccount",
        "--endpoint-reconciler-type=none",
    )


def _controller_arguments(server: ApiServer) -> tuple[str, ...]:
    return (
        f"--kubeconfig={server.kubeconfig}",
        "--controllers=garbage-collector-controller,namespace-controller,serviceaccount-controller",
        "--leader-elect=false",
        "--profiling=false",
        "--secure-port=0",
        f"--service-account-private-key-file={server.directory}/service-account.key",
    )


def _kubeconfig(server: ApiServer, user: str, certificate: Path, key: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server.url, "certificate-authority": str(server.ca)}}],
        "users": [{"name": user, "user": {"client-certificate": str(certificate), "client-key": str(key)}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
    }


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed test run leaves no server behind


def _start(server: ApiServer, program: str, arguments: tuple[str, ...]) -> None:
    with (server.directory / f"{program}.log").open("wb") as log:
        command = [str(server.programs / program), *arguments]
        child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    server.children.append(child)


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    for child in reversed(children):
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
