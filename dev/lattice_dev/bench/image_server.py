"""Serves one image of a software environment as a registry does, without attached metadata: enough for a measurement."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

REPOSITORY: Final = "uenv/deploy/bench/x86/bench/1"
TAG: Final = "v1"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class ImageServer:
    """An image that is served at `url`, the site's registry with its prefix."""

    url: str
    content: bytes
    answers: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """By path, the type and the bytes of each answer."""


def answers_of(content: bytes) -> dict[str, tuple[str, bytes]]:
    """Returns the answers of a registry that has one image with these bytes, by path: its type and its bytes."""
    layer = f"sha256:{hashlib.sha256(content).hexdigest()}"
    layers = [{"digest": layer, "size": len(content), "mediaType": "application/x-squashfs"}]
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": "application/x-squashfs", "layers": layers}).encode()
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    root = f"/v2/{REPOSITORY}"
    return {
        "/v2/": ("application/json", b"{}"),
        "/v2/_catalog": ("application/json", json.dumps({"repositories": [REPOSITORY]}).encode()),
        f"{root}/tags/list": ("application/json", json.dumps({"name": REPOSITORY, "tags": [TAG]}).encode()),
        f"{root}/manifests/{TAG}": (MANIFEST, manifest),
        f"{root}/manifests/{digest}": (MANIFEST, manifest),
        f"{root}/blobs/{layer}": ("application/octet-stream", content),
    }


@contextmanager
def serving(content: bytes, address: str) -> Iterator[ImageServer]:
    """Serves an image on a free port of this address within the block."""
    answers = answers_of(content)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Answers with head and body."""
            self._answer(body=True)

        def do_HEAD(self) -> None:
            """Answers with the head alone."""
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            """Answers by the path of the request: 200 with what is kept for it, else 404."""
            kind, found = answers.get(self.path.partition("?")[0], ("", b""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind or "text/plain")
            self.send_header("Content-Length", str(len(found)))
            if kind == MANIFEST:
                self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(found).hexdigest()}")
            self.end_headers()
            if body:
                self.wfile.write(found)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in http.server
            """Says nothing: requests are no events of a measurement."""

    server = ThreadingHTTPServer((address, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield ImageServer(f"http://{address}:{server.server_port}/uenv", content, answers)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
