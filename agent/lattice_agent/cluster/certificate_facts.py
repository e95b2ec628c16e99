"""The facts of its own certificates that an agent must know: whose they are, when they begin and end, which key is theirs.

The library of X.509 takes 10 MiB, which an agent would hold for ever: a process of its own asks it (`certificate_program`), once for
each certificate. About keys TLS itself is asked.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

PROGRAM: Final = (sys.executable, "-m", "lattice_agent.certificate_program")
ANSWER_SECONDS: Final = 60.0
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class CertificateFacts(msgspec.Struct, frozen=True):
    """The common names of a certificate's subject, and the seconds since the epoch at which it begins and ends."""

    names: tuple[str, ...]
    begins: float
    ends: float


@lru_cache(maxsize=4)
def read_certificate(pem: bytes) -> CertificateFacts:
    """Returns the facts of the first certificate in a text, asked once for each text.

    Raises ValueError where there is none, or it does not parse, OSError where the program cannot be run.
    """
    return msgspec.json.decode(_printed(("read",), pem), type=CertificateFacts)


def made_request(node: str, hosts: Sequence[str]) -> bytes:
    """Returns a new key and a certificate request for the node's user, both as PEM, for these hosts; raises OSError where none is made."""
    try:
        return _printed(("request", node, *hosts), b"")
    except ValueError as error:
        raise OSError(f"no key is made: {error}") from error


def _printed(words: Sequence[str], given: bytes) -> bytes:
    """Returns what the program prints; raises ValueError with its sentence where it ends with an error, OSError where it cannot be run."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    try:
        done = subprocess.run(
            (*PROGRAM, *words), input=given, capture_output=True, check=False, timeout=ANSWER_SECONDS, cwd="/",
            env={**kept, "LANG": "C.UTF-8"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise OSError(f"the program that knows certificates has not answered for {ANSWER_SECONDS:g} s") from error
    if done.returncode == 1:
        raise ValueError(done.stderr.decode(errors="replace").strip()[-300:])
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise OSError(f"the program that knows certificates has ended with {done.returncode}: {said}")
    return done.stdout


def fits_key(certificate: bytes, key: bytes) -> bool:
    """Tells whether the first certificate of a text belongs to the first private key of another (PEM); False where one does not parse."""
    found = _CERTIFICATE.search(certificate)
    if found is None:
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")  # the question is whether they belong together, not whether they are any good
    held: list[int] = []
    try:
        held = [_in_memory(text) for text in (found[0], key)]
        chain, private = (f"/proc/self/fd/{fd}" for fd in held)
        context.load_cert_chain(chain, private, password="")
    except ssl.SSLError:
        return False
    finally:
        for fd in held:
            os.close(fd)
    return True


def _in_memory(text: bytes) -> int:
    """Returns the descriptor of a file in memory with this text."""
    fd = os.memfd_create("pem")
    os.write(fd, text)
    return fd
