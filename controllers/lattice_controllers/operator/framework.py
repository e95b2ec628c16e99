"""kopf, loaded without the Kubernetes clients that it loads wherever they are installed: none is used, and they take 19 MiB."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

CLIENTS: Final = ("kubernetes", "kubernetes_asyncio", "pykube")


def _load() -> None:
    """Imports kopf as if no Kubernetes client were installed; the clients can still be imported afterwards."""
    hidden = [name for name in CLIENTS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: the import fails, which kopf expects
    try:
        import_module("kopf")
    finally:
        for name in hidden:
            del sys.modules[name]


_load()

import kopf  # noqa: E402 - loaded above

__all__ = ["kopf"]
