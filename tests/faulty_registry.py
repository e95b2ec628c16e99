"""What stands before a registry and fails as registries do: down, silent, cut off amid a blob, with a refusal, a page, or other bytes."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

BLOBS, MANIFESTS = "/blobs/", "/manifests/"
DOWN, SILENT, CUT, STATUS, PAGE, WRONG = "down", "silent", "cut", "status", "page", "wrong"


@dataclass
class Fault:
    """How the answers fail to requests whose path contains `path`; after `times` of them the registry serves again."""

    kind: str
    path: str = BLOBS
    times: int = 1 << 30
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)


class FaultyRegistry:
    """A registry's front; `fault` None: every answer passes as it is."""

    def __init__(self, address: str, target: str) -> None:
        self.fault: Fault | None = None
        self.failed = 0
        """How many requests have failed so."""
        self.released = threading.Event()
        self._lock = threading.Lock()

        class Front(_Front):
            """Answers in the name of this registry."""

            registry, target_host = self, target

        self._server = ThreadingHTTPServer((address, 0), Front)
        self._server.daemon_threads = True
        host, port = self._server.server_address[:2]
        self.host = f"{host if isinstance(host, str) else host.decode()}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def next_fault(self, path: str) -> Fault | None:
        """The fault that the answer to a request shows."""
        with self._lock:
            fault = self.fault
            if fault is None or fault.path not in path or fault.times <= 0:
                return None
            fault.times -= 1
            self.failed += 1
            return fault

    def close(self) -> None:
        """Ends the front, and what it keeps waiting."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Front(BaseHTTPRequestHandler):
    """Passes a request on to the real registry, and its answer back, or fails."""

    registry: ClassVar[FaultyRegistry]
    target_host: ClassVar[str]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base calls it so
        """Says nothing."""

    def _serve(self, method: str) -> None:
        fault = self.registry.next_fault(self.path) if method == "GET" else None
        kind = fault.kind if fault is not None else ""
        if fault is not None and kind in (DOWN, SILENT):
            if kind == SILENT:
                self.registry.released.wait(60)
            self.close_connection = True
            return
        if fault is not None and kind == STATUS:
            self._answer(fault.status, b'{"errors": []}', {"Content-Type": "application/json", **fault.headers}, method)
            return
        if kind == PAGE:
            self._answer(200, b"<html><body>Please log in</body></html>", {"Content-Type": "text/html"}, method)
            return
        status, headers, body = self._asked(method)
        if kind == WRONG:
            body = bytes(byte ^ 1 for byte in body)
        self._answer(status, body, headers, method, cut=kind == CUT)

    def _asked(self, method: str) -> tuple[int, dict[str, str], bytes]:
        passed = {name: value for name, value in self.headers.items() if name.lower() in ("accept", "authorization", "range")}
        connection = http.client.HTTPConnection(self.target_host, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, self.path, headers=passed)
            response = connection.getresponse()
            body = response.read()
            dropped = ("transfer-encoding", "connection", *(("content-length",) if method == "GET" else ()))
            return response.status, {name: value for name, value in response.getheaders() if name.lower() not in dropped}, body

    def _answer(self, status: int, body: bytes, headers: dict[str, str], method: str, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if method == "GET":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if method == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut


@contextlib.contextmanager
def faulty_registry(target: str, address: str = "127.0.0.1") -> Iterator[FaultyRegistry]:
    """A front of the registry `target` (HOST:PORT) on a free port of `address`."""
    front = FaultyRegistry(address, target)
    try:
        yield front
    finally:
        front.close()
