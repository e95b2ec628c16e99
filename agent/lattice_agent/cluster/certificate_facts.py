"""The facts of its own certificates that an agent must know: whose they are, when they begin and end, which key is theirs.

It reads the few fields of DER (X.690, RFC 5280) that it needs by itself, and asks TLS about keys: the library that knows all of X.509 takes
10 MiB, which an agent would hold for ever.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from lattice.units import is_digits

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _OBJECT_ID, _UTC_TIME, _GENERAL_TIME, _BMP_TEXT, _VERSION = 0x30, 0x06, 0x17, 0x18, 0x1E, 0xA0
_COMMON_NAME: Final = b"\x55\x04\x03"
_SUBJECT_AFTER_VERSION: Final = 4
"""Fields of a certificate between its version and its subject: serial number, algorithm, issuer, validity."""


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The common names of a certificate's subject, and the seconds since the epoch at which it begins and ends."""

    names: tuple[str, ...]
    begins: float
    ends: float


def read_certificate(pem: bytes) -> CertificateFacts:
    """Returns the facts of the first certificate in a text. Raises ValueError where there is none, or it does not parse."""
    der = base64.b64decode(b"".join(_certificate_block(pem).split(b"\n")[1:-1]))
    try:
        (_, whole), *_ = _elements(der)
        (_, signed), *_ = _elements(whole)
        fields = list(_elements(signed))
        if fields[0][0] == _VERSION:
            fields = fields[1:]
        begins, ends = (_time(tag, text) for tag, text in _elements(fields[_SUBJECT_AFTER_VERSION - 1][1]))
        return CertificateFacts(tuple(_common_names(fields[_SUBJECT_AFTER_VERSION][1])), begins, ends)
    except (IndexError, ValueError) as error:
        raise ValueError(f"a certificate does not parse: {error}") from error


def fits_key(certificate: bytes, key: bytes) -> bool:
    """Tells whether the first certificate of a text belongs to the first private key of another (PEM); False where one does not parse."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")  # the question is whether they belong together, not whether they are any good
    held: list[int] = []
    try:
        held = [_in_memory(text) for text in (_certificate_block(certificate), key)]
        chain, private = (f"/proc/self/fd/{fd}" for fd in held)
        context.load_cert_chain(chain, private, password="")
    except (ssl.SSLError, ValueError):
        return False
    finally:
        for fd in held:
            os.close(fd)
    return True


def _certificate_block(pem: bytes) -> bytes:
    """Returns the first certificate of a text with the lines around it. Raises ValueError where there is none."""
    found = _CERTIFICATE.search(pem)
    if found is None:
        raise ValueError("no certificate is there")
    return found[0].replace(b"\r", b"")


def _in_memory(text: bytes) -> int:
    """Returns the descriptor of a file in memory with this text."""
    fd = os.memfd_create("pem")
    os.write(fd, text)
    return fd


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and content of each element of DER. Raises ValueError or IndexError where it is cut off."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + size > len(data):
            raise ValueError("it is cut off")
        yield tag, data[at : at + size]
        at += size


def _time(tag: int, text: bytes) -> float:
    """Returns a time of DER in seconds since the epoch. Raises ValueError for one that is none in UTC."""
    digits = text.decode("ascii").removesuffix("Z")
    if tag == _UTC_TIME:
        digits = ("19" if digits >= "50" else "20") + digits
    if tag not in (_UTC_TIME, _GENERAL_TIME) or len(digits) != 14 or not is_digits(digits) or not text.endswith(b"Z"):
        raise ValueError(f"{text!r} is no time")
    month, day, hour, minute, second = (int(digits[at : at + 2]) for at in range(4, 14, 2))
    return datetime(int(digits[:4]), month, day, hour, minute, second, tzinfo=UTC).timestamp()


def _common_names(subject: bytes) -> Iterator[str]:
    """Yields the common names of a subject in DER."""
    for _, relative in _elements(subject):
        for tag, pair in _elements(relative):
            if tag != _SEQUENCE:
                continue
            (kind, name), (text, value) = _elements(pair)
            if (kind, name) == (_OBJECT_ID, _COMMON_NAME):
                yield value.decode("utf-16-be" if text == _BMP_TEXT else "utf-8")
