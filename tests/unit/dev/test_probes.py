"""Probes of components: what they trust belongs to the instance that stands now."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lattice_dev.probes import Answers
from tests.unit.gateway.authority import Authority


class Fine(http.server.BaseHTTPRequestHandler):
    """Answers every GET with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        """Nothing is printed."""


@contextmanager
def serving(authority: Authority) -> Iterator[int]:
    pair = authority.pair("server", dns=("localhost",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fine)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_instance_made_anew_under_its_name_is_asked_with_its_own_authority(tmp_path: Path) -> None:
    kept = tmp_path / "ca.pem"
    for life in ("first", "second"):
        (tmp_path / life).mkdir()
        authority = Authority(tmp_path / life)
        kept.unlink(missing_ok=True)
        kept.write_text(authority.pem)
        with serving(authority) as port:
            assert Answers("localhost", port, "/", authority=kept).missing() == ""
