"""What an agent reads of certificates by itself is what the library of X.509 reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from lattice_agent.cluster.certificate_facts import fits_key, read_certificate

KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
MADE = [
    (datetime(1999, 12, 31, 23, tzinfo=UTC), ["lattice:agent:n1"]),
    (datetime(2049, 12, 31, tzinfo=UTC), ["a", "ü"]),
    (datetime(2026, 1, 1, tzinfo=UTC), []),
]
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def certificate(begins: datetime, ends: datetime, *names: str, key: Key = KEY) -> bytes:
    """A certificate of this key with these common names, among others, and an extension."""
    other = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "lattice:agents")]
    subject = x509.Name([*other, *(x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names)])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(x509.Name(other)).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)
    made = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def text_of(key: Key) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())


NOW = datetime(2026, 11, 23, tzinfo=UTC)
PLAIN = certificate(NOW, NOW + timedelta(days=30), "lattice:agent:n1")


@pytest.mark.parametrize(("begins", "names"), MADE)
def test_names_and_times_are_those_that_the_library_reads(begins: datetime, names: list[str]) -> None:
    pem = certificate(begins, begins + timedelta(days=30), *names)
    known = x509.load_pem_x509_certificate(pem)
    found = read_certificate(b"a line before\n" + pem + b"a line after\n")
    assert list(found.names) == names
    assert (found.begins, found.ends) == (known.not_valid_before_utc.timestamp(), known.not_valid_after_utc.timestamp())


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", PLAIN[:200], text_of(KEY)])
def test_what_is_no_certificate_is_an_error(pem: bytes) -> None:
    with pytest.raises(ValueError, match="certificate"):
        read_certificate(pem)
    assert not fits_key(pem, text_of(KEY))


def test_a_key_fits_its_own_certificate_alone_whatever_stands_beside_both() -> None:
    weak = rsa.generate_private_key(65537, 1024)  # noqa: S505 - on purpose
    assert fits_key(PLAIN, text_of(KEY))
    assert not fits_key(PLAIN, text_of(OTHER))
    assert not fits_key(PLAIN + text_of(KEY), text_of(OTHER)), "the key in the certificate's own file is not asked"
    assert fits_key(certificate(NOW, NOW, "weak", key=weak), text_of(weak))
    assert not fits_key(PLAIN, b"")
    encrypted = KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    assert not fits_key(PLAIN, encrypted), "and nobody is asked for its password"
