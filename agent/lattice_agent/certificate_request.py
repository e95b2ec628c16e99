"""Makes a key and a certificate request for a node: `python -m lattice_agent.certificate_request NODE HOST…` prints both as PEM.

A process of its own does it, once in weeks, so that the agent need not hold the library that makes keys, 10 MiB with what it loads.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lattice.daemon.node_certificates import AGENT, GROUP


def make_request(node: str, hosts: Sequence[str]) -> bytes:
    """Returns a new key and a certificate request for the node's user, both as PEM.

    `hosts` are the names and addresses for a server certificate; empty: none.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, GROUP), x509.NameAttribute(NameOID.COMMON_NAME, AGENT + node)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
    request = builder.sign(key, hashes.SHA256())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    return private + request.public_bytes(serialization.Encoding.PEM)


def _general(host: str) -> x509.GeneralName:
    """Returns a host as a name for a certificate: an IP address or a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def main(argv: Sequence[str]) -> int:
    """Prints a new key and its request for the node and the hosts of the arguments; returns the exit code 0."""
    sys.stdout.buffer.write(make_request(argv[0], argv[1:]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
