"""Real OCI registries for tests, and images as `uenv image push` leaves them, pushed with the oras client.

Debian's docker-registry has no referrers API; go-containerregistry's, built once by `lattice-dev build --helm`, has it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oras.client
import oras.container
import oras.defaults
import oras.oci
import pytest

from lattice_dev import build
from lattice_dev.progress import terminal
from lattice_dev.waiting import HostClock

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
ENV_JSON: dict[str, Any] = {
    "name": "prgenv",
    "description": "compilers and MPI",
    "mount": "/user-environment",
    "views": {
        "default": {
            "root": "/user-environment/env/default",
            "activate": "/user-environment/env/default/activate.sh",
            "description": "everything",
            "env": {
                "version": 1,
                "type": "augment",
                "values": {
                    "list": {"PATH": [{"op": "prepend", "value": ["/user-environment/env/default/bin"]}]},
                    "scalar": {"CUDA_HOME": "/user-environment/cuda", "MODULEPATH": None},
                },
            },
        },
        "modules": {"root": "/user-environment/modules", "activate": "", "description": "module files"},
    },
}


@dataclass(frozen=True)
class RegistryProgram:
    """A running registry; `host` is HOST:PORT, spoken to over plain HTTP."""

    host: str
    login: tuple[str, str] | None = None
    has_referrers: bool = False
    """It has the referrers API: what is attached is found without a fallback tag."""

    @property
    def url(self) -> str:
        """The address as software.registry has it, with the prefix of these tests."""
        return f"http://{self.host}/uenv"

    def push_uenv(
        self, folder: Path, place: str, tag: str, content: str | bytes, metadata: Mapping[str, Any] | None = ENV_JSON, said_size: int = -1
    ) -> str:
        """Pushes an image to `namespace/system/uarch/name/version` and attaches its metadata; returns its digest.

        `said_size`: what its manifest says of the size of its file; -1: the truth.
        """
        client = oras.client.OrasClient(hostname=self.host, insecure=True, auth_backend="basic" if self.login else "token")
        if self.login:
            client.auth.set_basic_auth(*self.login)
        folder.mkdir(parents=True, exist_ok=True)
        image = folder / "store.squashfs"
        image.write_bytes(content.encode() if isinstance(content, str) else content)
        target = f"{self.host}/uenv/{place}:{tag}"
        created = {"org.opencontainers.image.created": "2026-11-20T10:00:00Z"}
        digest = _push(client, target, image, "application/x-squashfs", created, said_size=said_size)
        if metadata is not None:
            self._attach(client, folder, target, digest, metadata)
        return digest

    def _attach(self, client: oras.client.OrasClient, folder: Path, target: str, digest: str, metadata: Mapping[str, Any]) -> None:
        """What `oras attach` does: a manifest with a subject, and where the registry has no referrers API an index under the fallback tag."""
        meta, archive = folder / "meta", folder / "meta.tar.gz"
        meta.mkdir(exist_ok=True)
        (meta / "env.json").write_text(json.dumps(metadata), encoding="utf-8")
        with tarfile.open(archive, "w:gz") as files:
            files.add(meta, arcname="meta")
        repository = target.rpartition(":")[0]
        attached = _push(client, repository, archive, "uenv/meta", {}, subject=digest)
        if self.has_referrers:
            return
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{"mediaType": MANIFEST, "digest": attached, "size": 1, "artifactType": "uenv/meta"}],
        }
        where = oras.container.Container(f"{repository}:{digest.replace(':', '-')}")
        url = f"{client.prefix}://{where.manifest_url()}"
        answer = client.do_request(url, "PUT", headers={"Content-Type": index["mediaType"]}, data=json.dumps(index).encode())
        assert answer.status_code == 201, answer.text


def _push(
    client: oras.client.OrasClient,
    target: str,
    file: Path,
    kind: str,
    annotations: Mapping[str, str],
    subject: str = "",
    said_size: int = -1,
) -> str:
    container = oras.container.Container(target)
    layer = oras.oci.NewLayer(str(file), media_type=kind)
    layer["annotations"] = {oras.defaults.annotation_title: file.name}
    assert client.upload_blob(str(file), container, layer).status_code in (200, 201, 202)
    if said_size >= 0:
        layer["size"] = said_size
    empty = file.with_name("empty.json")
    empty.write_text("{}")
    config = oras.oci.NewLayer(str(empty), media_type=EMPTY)
    assert client.upload_blob(str(empty), container, config).status_code in (200, 201, 202)
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": kind, "config": config, "layers": [layer]}
    manifest |= {"annotations": dict(annotations)} if annotations else {}
    manifest |= {"subject": {"mediaType": MANIFEST, "digest": subject, "size": 1}} if subject else {}
    body = json.dumps(manifest).encode()
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    where = oras.container.Container(f"{target}@{digest}") if subject else container
    answer = client.do_request(f"{client.prefix}://{where.manifest_url()}", "PUT", headers={"Content-Type": MANIFEST}, data=body)
    assert answer.status_code == 201, answer.text
    return digest


@contextlib.contextmanager
def running_registry(folder: Path, login: tuple[str, str] | None = None, address: str = "127.0.0.1") -> Iterator[RegistryProgram]:
    """A registry on a free port of this address, up within the block; with a login, nothing is answered without it."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed: apt-get install docker-registry")
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": f"{address}:{port}"},
    }
    if login:
        (folder / "htpasswd").write_text(f"{login[0]}:{BCRYPT[login[1]]}\n", encoding="utf-8")
        config["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    file = folder / "registry.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    log = folder / "registry.log"
    with log.open("wb") as output:
        child = subprocess.Popen([program, "serve", str(file)], stdout=subprocess.DEVNULL, stderr=output)
    try:
        _wait_for(address, port, log)
        yield RegistryProgram(f"{address}:{port}", login)
    finally:
        child.terminate()
        child.wait()


@contextlib.contextmanager
def running_referrers_registry(address: str = "127.0.0.1") -> Iterator[RegistryProgram]:
    """A registry of go-containerregistry with the referrers API, which keeps images in memory, up within the block."""
    program = build.find_or_build_registry(terminal(HostClock()), HostClock(), os.environ).path("referrers")
    child = subprocess.Popen([program, f"{address}:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    try:
        yield RegistryProgram(child.stdout.readline().strip(), has_referrers=True)
    finally:
        child.terminate()
        child.wait()
        child.stdout.close()


BCRYPT = {"open sesame": "$2y$05$RJPYPUofdx8Z6/5bdqs36.tKn0u.qbFgbDfDMIdbjll/Kem1attIG"}
"""Hashes of the passwords of these tests."""


def docker_config(host: str, login: tuple[str, str]) -> str:
    """A login file of Docker's form."""
    return json.dumps({"auths": {host: {"auth": base64.b64encode(":".join(login).encode()).decode()}}})


def _wait_for(address: str, port: int, log: Path) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            connection = http.client.HTTPConnection(address, port, timeout=5)
            connection.request("GET", "/v2/")
            assert connection.getresponse().status in (200, 401)
            connection.close()
            return
        except OSError:
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
