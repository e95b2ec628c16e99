"""Serves images as a registry does, uenvs without attached metadata and OCI images of one layer: enough for a measurement."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from lattice.units import is_digits

UENV_ROOT: Final = "uenv/deploy/bench/x86"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_BYTES: Final = "application/octet-stream"


@dataclass(frozen=True)
class ServedAnswer:
    """One answer: its type, and its bytes or the file that holds them."""

    kind: str
    content: bytes | Path

    @property
    def size(self) -> int:
        """Returns how many bytes the answer has."""
        return self.content.stat().st_size if isinstance(self.content, Path) else len(self.content)


@dataclass(frozen=True)
class ImageServer:
    """A registry that answers at `url`; `host` is its address and port."""

    host: str

    @property
    def uenvs(self) -> str:
        """Returns the URL of the uenvs, with the path below which they stand."""
        return f"http://{self.host}/uenv"

    @property
    def url(self) -> str:
        """Returns the URL of the registry itself."""
        return f"http://{self.host}"


Answers = dict[str, ServedAnswer]


def uenv(name: str, version: str, tags: Mapping[str, bytes | Path]) -> Answers:
    """Returns the answers about the uenv `NAME/VERSION`, by path: of each tag one squashfs image, in memory or in a file."""
    repository, answers = f"{UENV_ROOT}/{name}/{version}", Answers()
    for tag, content in tags.items():
        layer = _digest_of(content)
        size = ServedAnswer("", content).size
        layers = [{"digest": layer, "size": size, "mediaType": "application/x-squashfs"}]
        manifest = {"artifactType": "application/x-squashfs", "layers": layers, "annotations": {"bench": tag}}
        answers |= _manifest(repository, tag, manifest) | {f"/v2/{repository}/blobs/{layer}": ServedAnswer(_BYTES, content)}
    return answers | _named(f"/v2/{repository}/tags/list", {"name": repository, "tags": list(tags)})


def container(repository: str, tag: str, layer: bytes, unpacked: str, architecture: str) -> Answers:
    """Returns the answers about an OCI image of one layer (a gzipped tar), by path; `unpacked` is the digest of the tar itself."""
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [unpacked]},
        }
    ).encode()
    parts = {_digest_of(content): (kind, content) for kind, content in ((CONFIG, config), (LAYER, layer))}
    named = [{"mediaType": kind, "digest": digest, "size": len(content)} for digest, (kind, content) in parts.items()]
    blobs = {f"/v2/{repository}/blobs/{digest}": ServedAnswer(_BYTES, content) for digest, (_, content) in parts.items()}
    return _manifest(repository, tag, {"config": named[0], "layers": named[1:]}) | blobs


def _manifest(repository: str, tag: str, body: Mapping[str, object]) -> Answers:
    """Returns the answers about a manifest, by its tag and by its digest."""
    text = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, **body}).encode()
    return {f"/v2/{repository}/manifests/{name}": ServedAnswer(MANIFEST, text) for name in (tag, _digest_of(text))}


def _named(path: str, body: Mapping[str, object]) -> Answers:
    """Returns one answer in JSON."""
    return {path: ServedAnswer("application/json", json.dumps(body).encode())}


def _digest_of(content: bytes | Path) -> str:
    """Returns the digest `sha256:HEX` of bytes, or of a file."""
    if isinstance(content, bytes):
        return f"sha256:{hashlib.sha256(content).hexdigest()}"
    with content.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@contextmanager
def serving(answers: Answers, address: str) -> Iterator[ImageServer]:
    """Serves answers by their paths, and the catalog of their repositories, on a free port of this address within the block."""
    repositories = sorted({path.removeprefix("/v2/").rpartition("/manifests/")[0] for path in answers if "/manifests/" in path})
    known = answers | _named("/v2/", {}) | _named("/v2/_catalog", {"repositories": repositories})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Answers with head and body."""
            self._answer(body=True)

        def do_HEAD(self) -> None:
            """Answers with the head alone."""
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            """Answers by the path of the request: 200 with what is kept for it, from the byte on that is asked for (206), else 404."""
            found = known.get(self.path.partition("?")[0])
            first = _first_byte(self.headers.get("Range", "")) if found is not None else 0
            self.send_response(404 if found is None else 206 if first else 200)
            self.send_header("Content-Type", found.kind if found is not None else "text/plain")
            self.send_header("Content-Length", str(found.size - first if found is not None else 0))
            if found is not None and first:
                self.send_header("Content-Range", f"bytes {first}-{found.size - 1}/{found.size}")
            if found is not None and found.kind == MANIFEST:
                self.send_header("Docker-Content-Digest", _digest_of(found.content))
            self.end_headers()
            if body and found is not None:
                self._send(found.content, first)

        def _send(self, content: bytes | Path, first: int) -> None:
            """Sends the bytes of an answer from the one numbered `first` on; a file by the kernel, which costs this process nothing."""
            if isinstance(content, bytes):
                self.wfile.write(content[first:])
                return
            self.wfile.flush()
            with content.open("rb") as file:
                self.connection.sendfile(file, first)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in http.server
            """Says nothing: requests are no events of a measurement."""

    server = ThreadingHTTPServer((address, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield ImageServer(f"{address}:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _first_byte(asked: str) -> int:
    """Returns the first byte that a Range header asks for; 0 for one of another form, and for none."""
    number = asked.removeprefix("bytes=").removesuffix("-")
    return int(number) if is_digits(number) else 0
