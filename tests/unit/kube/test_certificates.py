"""The end of a certificate is read as the library reads it; what is none is none."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import example, given
from hypothesis import strategies as st

from lattice.errors import Denied
from lattice.kube.certificates import not_after
from lattice.kube.credentials import Credentials
from lattice.kube.kubeconfig import ClusterConfig

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(end: float, name: str = "lattice:agent:n1") -> bytes:
    """A certificate of so long a name that lasts until then."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] * 4)
    moment = dt.datetime.fromtimestamp(end, dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(KEY.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(moment - dt.timedelta(days=1)).not_valid_after(moment)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@given(st.integers(0, 4_000_000_000), st.text("abc", min_size=1, max_size=60))
@example(2_524_607_999, "the last second of UTCTime")
@example(2_524_608_000, "the first of GeneralizedTime")
def test_the_end_is_the_certificates(end: int, name: str) -> None:
    assert not_after(b"# a comment\n" + certificate(end, name)) == end


@pytest.mark.parametrize("text", [b"", b"x", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", certificate(9e8)[:300]])
def test_what_is_no_certificate_has_no_end(text: bytes) -> None:
    assert not_after(text) is None


@given(st.integers(0, 300), st.integers(0, 255))
def test_a_damaged_certificate_is_never_an_error(at: int, byte: int) -> None:
    damaged = bytearray(certificate(1_000_000_000))
    damaged[at % len(damaged)] = byte
    end = not_after(bytes(damaged))
    assert end is None or isinstance(end, float)


def test_a_refusal_names_the_certificate_that_has_ended_and_says_nothing_of_one_that_has_not(tmp_path: Path) -> None:
    file = tmp_path / "agent.crt"
    file.write_bytes(certificate(1_700_000_000))
    refusal = Denied("GET nodes: Unauthorized", reason="Unauthorized")
    configs = (ClusterConfig("http://h", cert_file=str(file)), ClusterConfig("http://h", cert_data=file.read_bytes(), source="kc"))
    late = [Credentials(config, now=lambda: 1_700_000_001.0).explained(refusal) for config in configs]
    assert [error.message for error in late] == [
        f"GET nodes: Unauthorized: the client certificate {file} expired at 2023-11-14T22:13:20Z",
        "GET nodes: Unauthorized: the client certificate in kc expired at 2023-11-14T22:13:20Z",
    ]
    assert {error.reason for error in late} == {"Unauthorized"}
    assert Credentials(configs[0], now=lambda: 1_699_999_999.0).explained(refusal) is refusal
    forbidden = Denied("no", reason="Forbidden")
    assert Credentials(configs[0], now=lambda: 1_700_000_001.0).explained(forbidden) is forbidden
