"""Makes authorities and certificates of an instance: once, and again when a name is missing or two thirds of the life are over."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice import errors

DAY = 86400.0
AUTHORITY_DAYS = 3650
LEAF_DAYS, NODE_DAYS = 365, 30


@dataclass(frozen=True)
class Identity:
    """The content of a certificate: a name, groups, and for servers the addresses and host names."""

    name: str
    groups: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    server: bool = False


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a directory: `NAME.crt`, `NAME.key`, and what it issued below `NAME/`."""

    def __init__(self, directory: Path, name: str, now: float) -> None:
        self._directory = directory
        self._name = name
        self._now = now
        self.pair = Pair(directory / f"{name}.crt", directory / f"{name}.key")
        self.renewed = self._ensure()
        self._certificate = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        self._key = _load_key(self.pair.key)

    @property
    def pem(self) -> bytes:
        """Returns the authority's certificate as PEM text."""
        return self.pair.certificate.read_bytes()

    def issue(self, file: str, identity: Identity, *, force: bool = False, days: float = LEAF_DAYS) -> tuple[Pair, bool]:
        """Returns the certificate named `file` for this identity, and whether it was issued just now; `days`: the life of a new one.

        Issues and writes one where it is missing, worn, of another identity or of an earlier authority, and always with `force`.
        """
        pair = Pair(self._directory / self._name / f"{file}.crt", self._directory / self._name / f"{file}.key")
        if not force and self._still_good(pair, identity):
            return pair, False
        pair.certificate.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(identity, key, days)
        _write(pair.key, _key_pem(key))
        _write(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        return pair, True

    def _ensure(self) -> bool:
        """Makes key and certificate of the authority where they are missing, not valid yet or worn (two thirds of ten years), and returns
        whether it did; what it issued before then counts no more.
        """
        if self.pair.certificate.exists() and self.pair.key.exists() and not _worn(_load(self.pair.certificate), self._now):
            return False
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"lattice-dev {self._name}")])
        builder = (
            _dated(x509.CertificateBuilder(), self._now, AUTHORITY_DAYS).subject_name(name).issuer_name(name).public_key(key.public_key())
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(authority=True), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        _write(self.pair.key, _key_pem(key))
        _write(self.pair.certificate, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), mode=0o644)
        return True

    def _sign(self, identity: Identity, key: ec.EllipticCurvePrivateKey, days: float) -> x509.Certificate:
        """Returns the certificate of an identity's key, valid for so many days."""
        builder = _dated(x509.CertificateBuilder(), self._now, days).subject_name(_subject(identity))
        builder = builder.issuer_name(self._certificate.subject).public_key(key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(authority=False), critical=True)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if identity.server else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if names := _alternative_names(identity):
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _still_good(self, pair: Pair, identity: Identity) -> bool:
        """Tells whether a pair is complete, of this authority, not worn, and of exactly this identity."""
        if not (pair.certificate.exists() and pair.key.exists()):
            return False
        certificate = _load(pair.certificate)
        if certificate.public_key() != _load_key(pair.key).public_key():
            return False  # the writer died between the two files
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, TypeError, ValueError):
            return False  # of an authority that was renewed since
        return (
            not _worn(certificate, self._now)
            and certificate.subject == _subject(identity)
            and _names(certificate) == _alternative_names(identity)
        )


def service_account_key(directory: Path) -> Pair:
    """Returns the files of the key that signs service account tokens and of its public half, made where they are missing."""
    pair = Pair(directory / "service-account.pub", directory / "service-account.key")
    if not (pair.certificate.exists() and pair.key.exists()):
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        _write(pair.key, _key_pem(key))
        _write(pair.certificate, public)
    return pair


def _worn(certificate: x509.Certificate, now: float) -> bool:
    """Tells whether a certificate is not valid yet, has ended, or two thirds of its life are over."""
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return not begin <= now <= begin + (end - begin) * 2 / 3


def _dated(builder: x509.CertificateBuilder, now: float, days: float) -> x509.CertificateBuilder:
    """Returns a builder with a serial number, valid from five minutes ago for so many days."""
    begin = dt.datetime.fromtimestamp(now - 300, dt.UTC)
    end = dt.datetime.fromtimestamp(now + days * DAY, dt.UTC)
    return builder.not_valid_before(begin).not_valid_after(end).serial_number(x509.random_serial_number())


def _subject(identity: Identity) -> x509.Name:
    """Returns the name of an identity with its groups."""
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in sorted(identity.groups)]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, identity.name)])


def _alternative_names(identity: Identity) -> list[x509.GeneralName]:
    """Returns the hosts and addresses of an identity, in order."""
    hosts: Sequence[x509.GeneralName] = [x509.DNSName(host) for host in sorted(identity.hosts)]
    return [*hosts, *(x509.IPAddress(ipaddress.ip_address(address)) for address in sorted(identity.addresses))]


def _names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    """Returns the alternative names of a certificate; none where it has none."""
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _usage(*, authority: bool) -> x509.KeyUsage:
    """Returns for what a key may be used."""
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=authority, crl_sign=authority, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _load(path: Path) -> x509.Certificate:
    """Returns the certificate of a file. Raises Corrupt where it is none."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise errors.Corrupt(
            f"{path} is no certificate: {error}; `lattice dev down` and up make a new one", reason="BadCertificate"
        ) from error


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Returns the key of a file. Raises Corrupt where it is of another kind, ValueError where it is none."""
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise errors.Corrupt(f"{path} is not an elliptic curve key", reason="BadCertificate")
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a key as PEM."""
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes a file as a whole, which replaces the one before."""
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.rename(path)
