"""A TLS server context whose certificate, key and client CA are replaced while it serves.

The context that the server listens with only chooses: each handshake is done by the newest complete
context, so that a renewed certificate, or a client CA that is no longer trusted, counts from the next
connection on. Sessions are never resumed, for the same reason.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from lattice.daemon.logs import event
from lattice.errors import Rejected
from lattice.kube.clock import Clock

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0


class ServerCertificate:
    """The certificate and key files of a server as a TLS context that follows their changes; `trust` sets the CA of client certificates."""

    def __init__(self, certificate: str, key: str, *, client_ca: str | None = None) -> None:
        """Reads the files. With `client_ca` (PEM, may be empty) clients are asked for certificates, which stay optional; None: they are not
        asked.
        """
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._stamp = self._stamped()
        self._current = self._complete()
        self.context = self._complete()
        self.context.sni_callback = self._choose

    def trust(self, client_ca: str) -> None:
        """Accepts client certificates of this CA (PEM) alone from now on; raises Rejected where it does not parse, and keeps the former."""
        if client_ca != self._client_ca:
            former, self._client_ca = self._client_ca, client_ca
            try:
                self._current = self._complete()
            except Rejected:
                self._client_ca = former
                raise

    def refresh(self) -> bool:
        """Reads the files again if their change time or inode did change; returns whether they had.

        Raises Rejected for files that cannot be read, or a pair that does not fit: the former pair stays in use, and the next call tries
        again.
        """
        stamp = self._stamped()
        if stamp == self._stamp:
            return False
        self._current = self._complete()
        self._stamp = stamp
        return True

    async def follow(self, clock: Clock) -> None:
        """Calls `refresh` every few seconds until cancelled; a pair that cannot be used is logged."""
        while True:
            await clock.sleep(CHECK_SECONDS)
            try:
                if self.refresh():
                    event(log, "CertificateReloaded", certificate=self._certificate)
            except Rejected as error:
                event(log, "CertificateUnusable", logging.WARNING, certificate=self._certificate, message=error.message)

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Gives a new connection the present context; called within its handshake."""
        del name, context
        connection.context = self._current

    def _stamped(self) -> tuple[tuple[int, int], ...]:
        """Returns change time (of the content, in nanoseconds) and inode of both files. Raises Rejected where one cannot be read."""
        try:
            return tuple((status.st_mtime_ns, status.st_ino) for status in (Path(self._certificate).stat(), Path(self._key).stat()))
        except OSError as error:
            raise Rejected(f"{error.filename} cannot be read: {error.strerror}", reason="CertificateUnreadable") from error

    def _complete(self) -> ssl.SSLContext:
        """Returns a TLS 1.3 server context of the files as they are now; clients may show a certificate where a client CA is set.

        Raises Rejected where a file cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        try:
            context.load_cert_chain(self._certificate, self._key)
            if self._client_ca is not None:
                context.verify_mode = ssl.CERT_OPTIONAL
            if self._client_ca:
                context.load_verify_locations(cadata=self._client_ca)
        except (OSError, ssl.SSLError) as error:
            raise Rejected(f"{self._certificate} and {self._key}: {error}", reason="CertificateUnusable") from error
        return context
