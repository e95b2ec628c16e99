"""OCI images for tests: layers as tars with whatever may be in them, manifests, and how they come into a registry."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from tests.oci import APPLETS, BUSYBOX

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
FOREIGN_LAYER = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def sha256(content: bytes) -> str:
    """The digest of bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def member(name: str, content: bytes | str | None = None, *, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> Any:
    """One member of a layer: a file with `content`, a directory where that is None and the type is a file's, a link to `target`."""
    info = tarfile.TarInfo(name)
    body = content.encode() if isinstance(content, str) else content or b""
    info.type = tarfile.DIRTYPE if content is None and kind == tarfile.REGTYPE else kind
    info.mode = 0o755 if info.type == tarfile.DIRTYPE else mode
    info.linkname, info.size, info.mtime = target, len(body) if info.type == tarfile.REGTYPE else 0, 1_700_000_000
    return info, body


def layer(*members: Any, form: int = tarfile.PAX_FORMAT) -> bytes:
    """The tar of a layer of these members, unpacked."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as files:
        for info, body in members:
            files.addfile(info, io.BytesIO(body))
    return out.getvalue()


def files(content: Mapping[str, str], mode: int = 0o755) -> bytes:
    """A layer with these files."""
    return layer(*(member(name, text, mode=mode) for name, text in content.items()))


@dataclass
class BuiltImage:
    """A manifest with all blobs that it names."""

    manifest: bytes
    media_type: str
    blobs: dict[str, bytes]
    others: list[BuiltImage] = field(default_factory=list)
    """Of an index: its images."""

    @property
    def digest(self) -> str:
        """The digest of the manifest."""
        return sha256(self.manifest)

    @property
    def size(self) -> int:
        """Bytes of the layers, as they are transferred."""
        return sum(entry["size"] for entry in json.loads(self.manifest)["layers"])


def packed(tar: bytes, packing: str) -> bytes:
    """A layer as it is transferred: gzip, zstd, or as it is."""
    if packing == "gzip":
        return gzip.compress(tar, mtime=0)
    return zstandard.compress(tar) if packing == "zstd" else tar


def image(
    *layers: bytes, packing: str = "gzip", docker: bool = False, env: Iterable[str] = (), workdir: str = "", architecture: str = ARCHITECTURE,
    layer_type: str = "", config: Mapping[str, Any] | None = None, diff_ids: Sequence[str] | None = None, **manifest: Any,
) -> BuiltImage:  # fmt: skip
    """An image of these layers, the lowest first; `config`, `diff_ids` and others replace what it would say."""
    blobs = {sha256(body): body for body in (packed(one, packing) for one in layers)}
    kind = layer_type or (DOCKER_LAYER if docker else OCI_LAYER + {"gzip": "+gzip", "zstd": "+zstd"}.get(packing, ""))
    entries = [{"mediaType": kind, "digest": sha256(body), "size": len(body)} for body in (packed(one, packing) for one in layers)]
    said = {
        "architecture": architecture, "os": "linux", "config": {"Env": list(env), "WorkingDir": workdir},
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids) if diff_ids is not None else [sha256(one) for one in layers]},
    }  # fmt: skip
    document = json.dumps(said if config is None else config).encode()
    blobs[sha256(document)] = document
    media_type = DOCKER_MANIFEST if docker else OCI_MANIFEST
    made = {
        "schemaVersion": 2, "mediaType": media_type, "layers": entries,
        "config": {"mediaType": DOCKER_CONFIG if docker else OCI_CONFIG, "digest": sha256(document), "size": len(document)},
    } | manifest  # fmt: skip
    return BuiltImage(json.dumps(made).encode(), media_type, blobs)


def index(*images: tuple[BuiltImage, str], docker: bool = False) -> BuiltImage:
    """An index of images for these architectures, with an attestation such as buildkit adds."""
    entries = [
        {"mediaType": one.media_type, "digest": one.digest, "size": len(one.manifest), "platform": {"architecture": arch, "os": "linux"}}
        for one, arch in images
    ]
    attested = image(layer(), packing="", architecture="unknown")
    attestation: dict[str, Any] = {"mediaType": OCI_MANIFEST, "digest": attested.digest, "size": len(attested.manifest)}
    attestation["platform"] = {"architecture": "unknown", "os": "unknown"}
    media_type = DOCKER_INDEX if docker else OCI_INDEX
    body = json.dumps({"schemaVersion": 2, "mediaType": media_type, "manifests": [*entries, attestation]}).encode()
    return BuiltImage(body, media_type, {}, [*(one for one, _ in images), attested])


def push(host: str, repository: str, tag: str, image: BuiltImage, headers: Mapping[str, str] | None = None) -> str:
    """Pushes an image, and those of an index first, to a registry over plain HTTP; returns its digest."""
    for other in image.others:
        push(host, repository, other.digest, other, headers)
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        for digest, body in image.blobs.items():
            location = _ask(connection, "POST", f"/v2/{repository}/blobs/uploads/", b"", 202, headers).headers["Location"]
            path = location.removeprefix(f"http://{host}")
            _ask(connection, "PUT", f"{path}{'&' if '?' in path else '?'}digest={digest}", body, 201, headers)
        put = {**(headers or {}), "Content-Type": image.media_type}
        _ask(connection, "PUT", f"/v2/{repository}/manifests/{tag}", image.manifest, 201, put)
    finally:
        connection.close()
    return image.digest


def _ask(
    connection: http.client.HTTPConnection, verb: str, path: str, body: bytes, expected: int, headers: Mapping[str, str] | None
) -> http.client.HTTPResponse:
    connection.request(verb, path, body=body, headers={"Content-Type": "application/octet-stream", **(headers or {})})
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status == expected, (verb, path, answer.status, said)
    return answer


def system_libraries(program: Path) -> list[Path]:
    """The loader and the libraries of the system that a program needs."""
    said = subprocess.run(["ldd", str(program)], check=True, capture_output=True, text=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(", said) if not Path(path).is_relative_to(program.parent)]


def small_system(files: Mapping[str, Path], applets: Sequence[str] = APPLETS) -> BuiltImage:
    """An image of a small system with these files by their places in it, and what of the node's libraries they need: nothing else of the
    node's is there. Directories are there with all that is in them.
    """
    paths, links, directories = dict[str, Path](), dict[str, str](), {"bin", "etc", "tmp", "mpi"}
    for inside, source in files.items():
        for path in [source, *sorted(source.rglob("*"))] if source.is_dir() else [source]:
            place = str(Path(inside) / path.relative_to(source)) if path != source else inside
            directories.update(str(parent) for parent in Path(place).parents if str(parent) != ".")
            if path.is_symlink() and path != source:
                links[place] = str(path.readlink())
            elif path.is_dir():
                directories.add(place)
            else:
                paths[place] = path
    programs_in_it = [path for path in paths.values() if path.read_bytes()[:4] == b"\x7fELF"]
    for library in {library for path in programs_in_it for library in system_libraries(path)} - set(paths.values()):
        paths[str(library).lstrip("/")] = library
        directories.update(str(parent) for parent in Path(str(library).lstrip("/")).parents if str(parent) != ".")
    found = [member(inside, path.read_bytes(), mode=0o755) for inside, path in sorted(paths.items())]
    found += [member(inside, kind=tarfile.SYMTYPE, target=target) for inside, target in sorted(links.items())]
    busybox = member("bin/busybox", Path(BUSYBOX).read_bytes(), mode=0o755)
    found += [member(f"bin/{applet}", kind=tarfile.SYMTYPE, target="busybox") for applet in applets]
    whole = layer(*(member(name) for name in sorted(directories)), busybox, *found)
    return image(whole, packing="", env=("PATH=/bin:/mpi",), workdir="/mpi")
