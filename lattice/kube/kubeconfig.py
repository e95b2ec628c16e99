"""Finds the API server and the credentials: from a kubeconfig file, several of them, or the pod's service account.

Exec and auth-provider plugins go through the `kubernetes` package, which is loaded only for them.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lattice.errors import Denied, NotFound, Rejected
from lattice.kube import plain_yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class PluginCredentials(NamedTuple):
    """The output of a plugin: an Authorization header, or the files of a client certificate."""

    authorization: str
    cert_file: str
    key_file: str


class ClusterConfig(NamedTuple):
    """The address of a server and the credentials to use there; each credential is a file, or bytes from inside the kubeconfig."""

    server: str
    ca_file: str = ""
    ca_data: bytes = b""
    cert_file: str = ""
    cert_data: bytes = b""
    key_file: str = ""
    key_data: bytes = b""
    token: str = ""
    token_file: str = ""
    username: str = ""
    password: str = ""
    namespace: str = ""
    user: str = ""
    context: str = ""
    insecure: bool = False
    server_name: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    source: str = ""
    """The file that it was read from; it is read again when that changes."""
    plugin: Callable[[], PluginCredentials] | None = None
    """Runs an exec or auth-provider plugin; None: there is none."""

    @property
    def files(self) -> tuple[str, ...]:
        """Returns the files whose change means new credentials."""
        return tuple(path for path in (self.source, self.ca_file, self.cert_file, self.key_file, self.token_file) if path)


def load(path: str | None = None, context: str | None = None, *, environ: Mapping[str, str] | None = None) -> ClusterConfig:
    """Returns the configuration of a file; empty: the pod's service account; None: the one that kubectl would use (KUBECONFIG,
    `~/.kube/config`, in a pod without one its service account). `context` None or empty: the file's current one.

    Raises NotFound when there is none, Rejected when a file is wrong, Denied when it may not be read or its plugin cannot be run.
    """
    variables = os.environ if environ is None else environ
    if path == "":
        return in_cluster(variables)
    if path is not None:
        return _from_files([Path(path).expanduser()], context)
    named = [Path(part) for part in variables.get("KUBECONFIG", "").split(os.pathsep) if part]
    files = [file for file in named if file.exists()] if named else [Path(variables.get("HOME", "~")).expanduser() / ".kube" / "config"]
    if not named and not files[0].exists() and "KUBERNETES_SERVICE_HOST" in variables:
        return in_cluster(variables)
    if not files:
        raise NotFound(f"KUBECONFIG names {', '.join(map(str, named))}, and none of them exists", reason="KubeconfigNotFound")
    return _from_files(files, context)


def in_cluster(environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> ClusterConfig:
    """Returns the configuration of the pod's service account; raises NotFound outside a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = directory / "token"
    if not host or not token.exists():
        raise NotFound(
            "this is no pod with a service account, and no kubeconfig was given (--kubeconfig FILE)", reason="KubeconfigNotFound"
        )
    namespace = directory / "namespace"
    return ClusterConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca_file=str(directory / "ca.crt"),
        token_file=str(token),
        namespace=namespace.read_text().strip() if namespace.exists() else "",
        user="serviceaccount",
    )


def _from_files(files: list[Path], context: str | None) -> ClusterConfig:
    """Returns the configuration of a context from merged kubeconfig files; `context` None or empty: the current one. `source` stays empty
    for several files.

    Raises Rejected, NotFound or Denied for files or contexts that cannot be used.
    """
    merged = _merged(files)
    name = context or merged["current-context"]
    if not name:
        raise Rejected(f"{files[0]} has no current-context; choose one with --context", reason="ContextMissing")
    chosen = _entry(merged, "contexts", "context", name, files)
    cluster_name, user_name = str(chosen.get("cluster", "")), str(chosen.get("user", ""))
    cluster = _entry(merged, "clusters", "cluster", cluster_name, files)
    user = _entry(merged, "users", "user", user_name, files) if user_name else {}
    if not cluster.get("server"):
        raise Rejected(f"{files[0]}: cluster {cluster_name!r} names no server", reason="KubeconfigWrong")
    plugin = _plugin(files, name) if "exec" in user or "auth-provider" in user else None
    return ClusterConfig(
        server=str(cluster["server"]).rstrip("/"),
        ca_file=str(cluster.get("certificate-authority", "")),
        ca_data=_data(cluster, "certificate-authority-data", files),
        cert_file=str(user.get("client-certificate", "")),
        cert_data=_data(user, "client-certificate-data", files),
        key_file=str(user.get("client-key", "")),
        key_data=_data(user, "client-key-data", files),
        token=str(user.get("token", "")),
        token_file=str(user.get("tokenFile", "")),
        username=str(user.get("username", "")),
        password=str(user.get("password", "")),
        namespace=str(chosen.get("namespace", "")),
        user=user_name,
        context=name,
        insecure=bool(cluster.get("insecure-skip-tls-verify", False)),
        server_name=str(cluster.get("tls-server-name", "")),
        headers=_impersonation(user),
        source=str(files[0]) if len(files) == 1 else "",
        plugin=plugin,
    )


def _merged(files: list[Path]) -> dict[str, Any]:
    """Merges several files as kubectl does: of equal names, and of current contexts, the first counts; paths become absolute.

    Raises Rejected for an entry without a name, and what `_read` raises.
    """
    merged: dict[str, Any] = {"clusters": {}, "contexts": {}, "users": {}, "current-context": ""}
    for file in files:
        document = _read(file)
        merged["current-context"] = merged["current-context"] or str(document.get("current-context") or "")
        for kind, part in (("clusters", "cluster"), ("contexts", "context"), ("users", "user")):
            for entry in document.get(kind) or ():
                if not isinstance(entry, dict) or "name" not in entry:
                    raise Rejected(f"{file}: an entry of {kind} has no name", reason="KubeconfigWrong")
                merged[kind].setdefault(str(entry["name"]), _rooted(entry.get(part) or {}, file.parent))
    return merged


def _read(file: Path) -> dict[str, Any]:
    """Returns the map that a kubeconfig file holds.

    Raises NotFound where it is absent, Denied where it may not be read, Rejected where it does not parse or is no map.
    """
    try:
        document = _parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFound(f"there is no kubeconfig {file}", reason="KubeconfigNotFound") from error
    except PermissionError as error:
        raise Denied(f"kubeconfig {file} may not be read", reason="KubeconfigUnreadable") from error
    except (OSError, ValueError) as error:
        raise Rejected(f"kubeconfig {file} cannot be read: {error}", reason="KubeconfigWrong") from error
    if not isinstance(document, dict):
        raise Rejected(f"kubeconfig {file} is empty or no map", reason="KubeconfigWrong")
    return document


def _parse(text: str) -> Any:
    """Returns the document; ValueError where it is no YAML."""
    plain = plain_yaml.read(text)
    if plain is not None:
        return plain
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader, in C where there is one
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _rooted(part: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Returns the part with its paths made absolute: in a kubeconfig they are relative to its folder."""
    paths = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
    return {key: str(directory / str(value)) if key in paths and value else value for key, value in part.items()}


def _entry(merged: Mapping[str, Any], kind: str, part: str, name: str, files: list[Path]) -> dict[str, Any]:
    """Returns the entry of a cluster, user or context (`kind`) by its name.

    Raises Rejected, which names the known ones, where there is none.
    """
    entries = merged[kind]
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise Rejected(f"{part} {name!r} is not in {', '.join(map(str, files))}; there are: {known}", reason="KubeconfigWrong")
    found: dict[str, Any] = entries[name]
    return found


def _data(part: Mapping[str, Any], key: str, files: list[Path]) -> bytes:
    """Returns the bytes of a field in base64; empty where it is absent. Raises Rejected where it is no base64."""
    try:
        return base64.b64decode(str(part.get(key) or ""), validate=True)
    except (ValueError, binascii.Error) as error:
        raise Rejected(f"{files[0]}: {key} is no base64", reason="KubeconfigWrong") from error


def _impersonation(user: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the headers for the user, groups and uid that a kubeconfig user acts as; empty where it names no user to act as."""
    headers: list[tuple[str, str]] = []
    if user.get("as"):
        headers.append(("Impersonate-User", str(user["as"])))
        headers += [("Impersonate-Group", str(group)) for group in user.get("as-groups") or ()]
        if user.get("as-uid"):
            headers.append(("Impersonate-Uid", str(user["as-uid"])))
    return tuple(headers)


def _plugin(files: list[Path], context: str) -> Callable[[], PluginCredentials]:
    """Returns a function that gets credentials through the official client, which runs the plugin and renews them.

    Raises Denied where that client is not installed.
    """
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException, load_kube_config
    except ImportError as error:
        text = "this kubeconfig uses an exec or auth plugin: pip install 'lattice-hpc[exec-auth]'"
        raise Denied(text, reason="PluginSupportMissing") from error
    read: Callable[..., None] = load_kube_config

    def credentials() -> PluginCredentials:
        """Returns what the context's auth plugin gives, asked anew at each call. Raises Denied where it fails or gives nothing."""
        configuration = Configuration()
        try:
            read(os.pathsep.join(map(str, files)), context, client_configuration=configuration, persist_config=False)
        except (ConfigException, OSError, ValueError, KeyError) as error:
            raise Denied(f"the auth plugin of context {context} failed: {error}", reason="PluginFailed") from error
        authorization = str(configuration.get_api_key_with_prefix("BearerToken", "authorization") or "")
        if not authorization and not configuration.cert_file:  # the client only logs what went wrong
            raise Denied(f"the auth plugin of context {context} gave no credentials: run it by hand to see why", reason="PluginFailed")
        return PluginCredentials(authorization, str(configuration.cert_file or ""), str(configuration.key_file or ""))

    return credentials
