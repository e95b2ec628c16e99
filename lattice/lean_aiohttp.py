"""Loads aiohttp without the system's certificate authorities, which it reads at its import for TLS contexts of its own.

They take 2.6 MiB and 25 ms of each process. A daemon trusts the authorities that it is given, and asks others with a context made for
that; the contexts of aiohttp itself then trust nobody. A program imports this module before any that loads aiohttp.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Final

_PLACES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""The variables by which OpenSSL finds the authorities."""


def _load() -> None:
    """Imports aiohttp as if the system had no authorities; they can be read afterwards."""
    if "aiohttp" in sys.modules:
        return
    former = {name: os.environ.get(name) for name in _PLACES}
    os.environ.update(dict.fromkeys(_PLACES, os.devnull))
    try:
        import_module("aiohttp")
    finally:
        for name, value in former.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


_load()
