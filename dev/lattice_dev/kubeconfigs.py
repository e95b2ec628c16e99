"""Writes kubeconfig files: those of components name their certificate files, those of people contain everything."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lattice import errors
from lattice_dev.pki import Pair

_ADMISSION = "apiserver.config.k8s.io"


def by_files(server: str, authority: Path, pair: Pair, user: str) -> dict[str, Any]:
    """Returns a kubeconfig that names the files of authority, certificate and key, so that a renewal needs no new kubeconfig."""
    return _config(
        {"server": server, "certificate-authority": str(authority)},
        {"client-certificate": str(pair.certificate), "client-key": str(pair.key)},
        user,
    )


def of_webhook(address: str, pair: Pair) -> dict[str, Any]:
    """Returns the kubeconfig by which the API server shows a client certificate to the webhook at HOST:PORT."""
    user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    return {"apiVersion": "v1", "kind": "Config", "users": [{"name": address, "user": user}]}


def admission(kubeconfig: Path) -> dict[str, Any]:
    """Returns the API server's AdmissionConfiguration, by which it calls webhooks as the kubeconfig says."""
    own = {"apiVersion": f"{_ADMISSION}/v1", "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": str(kubeconfig)}
    plugins = [{"name": f"{kind}AdmissionWebhook", "configuration": own} for kind in ("Mutating", "Validating")]
    return {"apiVersion": f"{_ADMISSION}/v1", "kind": "AdmissionConfiguration", "plugins": plugins}


def inline(server: str, authority: Path, pair: Pair, user: str, namespace: str) -> dict[str, Any]:
    """Returns a kubeconfig that contains authority, certificate and key themselves, so that it can be copied anywhere."""
    return _config(
        {"server": server, "certificate-authority-data": _encode(authority)},
        {"client-certificate-data": _encode(pair.certificate), "client-key-data": _encode(pair.key)},
        user,
        namespace,
    )


def read_outside(path: Path) -> dict[str, Any]:
    """Returns the kubeconfig of another cluster, reduced to its current context, with file names made absolute.

    Raises Rejected when it cannot be read or names no current context.
    """
    try:
        given = yaml.safe_load(path.read_text())
        contexts, clusters, users = ({entry["name"]: entry for entry in given[part]} for part in ("contexts", "clusters", "users"))
        context = contexts[given["current-context"]]["context"]
        cluster, user = clusters[context["cluster"]]["cluster"], users[context["user"]]["user"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise errors.Rejected(f"--kubeconfig {path} cannot be used: {type(error).__name__}: {error}", reason="BadKubeconfig") from error
    return _config(_rooted(cluster, path.parent), _rooted(user, path.parent), context["user"])


def impersonating(outside: dict[str, Any], user: str, groups: Sequence[str], namespace: str = "") -> dict[str, Any]:
    """Returns a kubeconfig of the same cluster with the same credentials that acts as `user` in `groups`.

    `outside`: what `read_outside` returned; `namespace` empty: none is named.
    """
    credentials = {**outside["users"][0]["user"], "as": user, **({"as-groups": list(groups)} if groups else {})}
    return _config(outside["clusters"][0]["cluster"], credentials, user, namespace)


def write(path: Path, config: dict[str, Any]) -> bool:
    """Writes a kubeconfig in one step, readable by the owner only, where the file is missing or differs; returns False where it has that
    content.
    """
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


def _rooted(part: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Returns a part of a kubeconfig with absolute paths of files."""
    names = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
    return {key: str((directory / value).absolute()) if key in names else value for key, value in part.items()}


def _config(cluster: dict[str, Any], credentials: dict[str, Any], user: str, namespace: str = "") -> dict[str, Any]:
    """Returns a kubeconfig of one cluster, user and context."""
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
    """Returns a file's content in base64."""
    return base64.b64encode(path.read_bytes()).decode()
