"""Certificates of gRPC between agents and gateways: both sides present one, and files are read again when they change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from lattice.daemon.node_certificates import AGENT as AGENT
from lattice.errors import Rejected

if TYPE_CHECKING:
    import grpc.aio as aio

GATEWAY = "lattice:gateway"
HOLLOW = "lattice:hollow"
"""The common name of a process of hollow nodes, which speaks for any hollow node and for no other."""
GATEWAY_HOST = "lattice-gateway"
"""The host name in a gateway's certificate, wherever it listens."""


@dataclass(frozen=True, slots=True)
class Files:
    """PEM files for mTLS: certificate, key, and the authority that peers' certificates are checked against."""

    certificate: Path
    key: Path
    authority: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Returns the contents of the files; raises Rejected naming one that cannot be read."""
        try:
            return self.certificate.read_bytes(), self.key.read_bytes(), self.authority.read_bytes()
        except OSError as error:
            raise Rejected(f"cannot read {error.filename}: {error.strerror}", reason="CertificateUnreadable") from error

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Returns change times and inodes of the files, which differ once one of them changes; raises Rejected naming one that cannot be
        read.
        """
        try:
            found = [path.stat() for path in (self.certificate, self.key, self.authority)]
        except OSError as error:
            raise Rejected(f"cannot read {error.filename}: {error.strerror}", reason="CertificateUnreadable") from error
        return tuple((status.st_mtime_ns, status.st_ino) for status in found)


class ServerCredentials:
    """gRPC credentials of a server; renewed files are used from the next connection on."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._stamp = files.stamp()
        certificate, key, authority = files.read()
        first = grpc.ssl_server_certificate_configuration([(key, certificate)], authority)
        self.credentials = grpc.dynamic_ssl_server_credentials(first, self._renewed, require_client_authentication=True)  # type: ignore[arg-type]  # None is grpc's own word for "as before"

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns a new configuration for the next connection if the files changed; None: the one in use stays, also where a file cannot be
        read. grpc calls it.
        """
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return None
            certificate, key, authority = self._files.read()
        except (OSError, Rejected):
            return None  # in the middle of being replaced: what is in use goes on
        self._stamp = stamp
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


def client_credentials(files: Files) -> grpc.ChannelCredentials:
    """Returns gRPC credentials of a client, from the files as they are now; raises Rejected naming one that cannot be read."""
    certificate, key, authority = files.read()
    return grpc.ssl_channel_credentials(authority, key, certificate)


def peer_name(context: aio.ServicerContext[Any, Any]) -> str:
    """Returns the common name of the caller's certificate, the first of several; empty: he presented none, or it has no common name."""
    return next((name.decode() for name in context.auth_context().get("x509_common_name", ())), "")
