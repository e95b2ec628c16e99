"""A certificate authority for tests: server, agent and client certificates that live for a day."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key."""

    certificate: str
    key: str

    def contents(self) -> tuple[bytes, bytes]:
        """Key and certificate, as grpc takes them."""
        return Path(self.key).read_bytes(), Path(self.certificate).read_bytes()


class Authority:
    """Signs certificates into a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.pem = certificate.sign(self._key, hashes.SHA256()).public_bytes(PEM).decode()
        self.path = directory / f"{name}.pem"
        self.path.write_text(self.pem)

    def pair(self, common_name: str, *, organizations: tuple[str, ...] = (), dns: tuple[str, ...] = ()) -> Pair:
        """A certificate of this name, with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, value) for value in organizations]
        subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = self._builder(subject, key)
        if dns:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in dns]), critical=False)
        stem = common_name.replace(":", "-")
        certificate, private = self._directory / f"{stem}.crt", self._directory / f"{stem}.key"
        private.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(PEM))
        return Pair(str(certificate), str(private))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)  # noqa: TID251 - TLS itself judges by the machine's clock
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=1))
        )
