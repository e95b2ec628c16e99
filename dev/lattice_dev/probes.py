"""Checks whether a component is ready, the way a client would; the answer is what is missing, or empty."""

from __future__ import annotations

import functools
import http.client
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from lattice_dev.pki import Pair

SECONDS = 3.0


@dataclass(frozen=True)
class Listens:
    """A probe that is satisfied when the port accepts connections."""

    host: str
    port: int

    def missing(self) -> str:
        """Connects to the port and closes; returns the error with the address, after 3 s at most; empty: the port accepts."""
        try:
            socket.create_connection((self.host, self.port), SECONDS).close()
        except OSError as error:
            return f"{self.host}:{self.port}: {error}"
        return ""


@dataclass(frozen=True)
class Answers:
    """A probe that is satisfied when GET answers 200; with `authority` over TLS, with `client` as that client."""

    host: str
    port: int
    path: str
    authority: Path | None = None
    client: Pair | None = None

    def missing(self) -> str:
        """Asks once, 3 s at most for each step; returns the status with the failed checks or the begin of the answer, or the connection's
        error; empty: 200, ready.
        """
        connection = self._connect()
        try:
            connection.request("GET", self.path)
            answer = connection.getresponse()
            text = answer.read(2000).decode(errors="replace").strip()
        except (OSError, http.client.HTTPException) as error:
            return f"{self.host}:{self.port}{self.path}: {error or type(error).__name__}"
        finally:
            connection.close()
        failed = [line for line in text.splitlines() if line.startswith("[-]")]
        return "" if answer.status == 200 else f"{self.path} answers {answer.status}: {'; '.join(failed) or text[:200]}"

    def _connect(self) -> http.client.HTTPConnection:
        """Returns a connection that is not opened yet, over TLS where an authority is given."""
        if self.authority is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)
        context = _context(self.authority, self.client, self.authority.stat().st_mtime_ns)
        return http.client.HTTPSConnection(self.host, self.port, timeout=SECONDS, context=context)


Probe = Listens | Answers


@functools.lru_cache(maxsize=16)
def _context(authority: Path, client: Pair | None, made: int) -> ssl.SSLContext:
    """Returns the TLS context of these files; `made` distinguishes an earlier instance of the name, which had another authority."""
    del made
    context = ssl.create_default_context(cafile=str(authority))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context
