"""Reads the end of a certificate from its bytes: just enough of X.509, without a library that takes 100 ms to load."""

from __future__ import annotations

import base64
import binascii
import datetime as dt

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_SEQUENCE, _VERSION = 0x30, 0xA0
_FORMS = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""Formats of UTCTime and GeneralizedTime (RFC 5280, 4.1.2.5), by tag."""


def not_after(pem: bytes) -> float | None:
    """Returns the end of the first certificate in a PEM file, seconds since the epoch; None where there is none or it cannot be read."""
    _, begin, rest = pem.partition(_BEGIN)
    body, end, _ = rest.partition(_END)
    if not begin or not end:
        return None
    try:
        return _end(base64.b64decode(body, validate=False))
    except (binascii.Error, ValueError, IndexError):
        return None


def _end(der: bytes) -> float:
    """Returns when a certificate in DER ends, seconds since the epoch: its field validity.notAfter. Raises ValueError for other bytes."""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, end = _element(der, at)
    if tag == _VERSION:
        at = end
    for _ in ("serialNumber", "signature", "issuer"):
        at = _element(der, at)[2]
    tag, at, _ = _element(der, at)
    if tag != _SEQUENCE:
        raise ValueError(f"the validity has tag {tag}")
    _, _, at = _element(der, at)
    tag, begin, end = _element(der, at)
    text = der[begin:end].decode("ascii")
    if tag not in _FORMS:
        raise ValueError(f"the end has tag {tag}")
    moment = dt.datetime.strptime(text, _FORMS[tag]).replace(tzinfo=dt.UTC)
    if tag == 0x17 and moment.year >= 2050:  # two digits of a year mean 1950 to 2049 here, 1969 to 2068 in strptime
        moment = moment.replace(year=moment.year - 100)
    return moment.timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Returns the tag of the DER element at `at`, where its content begins, and where it ends.

    Raises ValueError where that lies beyond the text.
    """
    tag, length, begin = der[at], der[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + count]), begin + count
    if begin + length > len(der):
        raise ValueError("the certificate is cut off")
    return tag, begin, begin + length
