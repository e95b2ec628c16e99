"""Kubeconfig files: those of components name their certificate files, those of people carry everything inside."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import yaml

from lattice_dev.pki import Pair


def by_files(server: str, authority: Path, pair: Pair, user: str) -> dict[str, Any]:
    """A kubeconfig that reads its certificates from files, so that a renewal needs no new kubeconfig."""
    return _config(
        {"server": server, "certificate-authority": str(authority)},
        {"client-certificate": str(pair.certificate), "client-key": str(pair.key)},
        user,
    )


def inline(server: str, authority: Path, pair: Pair, user: str, namespace: str) -> dict[str, Any]:
    """A kubeconfig in one file, to be carried anywhere."""
    return _config(
        {"server": server, "certificate-authority-data": _encode(authority)},
        {"client-certificate-data": _encode(pair.certificate), "client-key-data": _encode(pair.key)},
        user,
        namespace,
    )


def write(path: Path, config: dict[str, Any]) -> bool:
    """Writes it where it differs from what stands there; readable by the owner only."""
    text = yaml.safe_dump(config, sort_keys=False)
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    draft.rename(path)
    return True


def _config(cluster: dict[str, str], credentials: dict[str, str], user: str, namespace: str = "") -> dict[str, Any]:
    context = {"cluster": "lattice", "user": user, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lattice", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "lattice", "context": context}],
        "current-context": "lattice",
    }


def _encode(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
