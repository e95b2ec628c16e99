"""Does what an agent does with certificates once in weeks, in a process of its own: the library for it takes 10 MiB.

`python -m lattice_agent.certificate_program request NODE HOST…` prints a new key and a certificate request as PEM; `… read` prints the
facts of the certificate on its standard input as JSON.
"""

from __future__ import annotations

import ipaddress
import json
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


def read_facts(pem: bytes) -> dict[str, object]:
    """Returns the common names of the first certificate in a text, and the seconds since the epoch at which it begins and ends.

    Raises ValueError where there is none, or it does not parse.
    """
    found = x509.load_pem_x509_certificate(pem)
    names = [one.value for one in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    begins, ends = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    return {"names": [str(name) for name in names], "begins": begins, "ends": ends}


def main(argv: Sequence[str]) -> int:
    """Prints what the first argument asks for; returns the exit code, 1 with a sentence on standard error where that cannot be."""
    if argv[:1] == ["request"]:
        sys.stdout.buffer.write(make_request(argv[1], argv[2:]))
        return 0
    try:
        print(json.dumps(read_facts(sys.stdin.buffer.read())))
    except ValueError as error:
        print(f"the certificate does not parse: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
