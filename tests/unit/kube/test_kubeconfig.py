"""Where the server is and who we are: files as kubectl reads them, and a sentence for what is wrong."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.credentials import Credentials
from lattice.kube.kubeconfig import in_cluster, load


def document(name: str = "a", **user: object) -> dict[str, Any]:
    return {
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443/", "certificate-authority": "ca.crt"}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
    }


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = load(write(tmp_path / "k", document(**{"client-certificate": "c", "client-key": "/abs/k", "tokenFile": "t"})))
    assert (config.server, config.ca_file, config.namespace) == ("https://a:6443", str(tmp_path / "ca.crt"), "ns-a")
    assert (config.cert_file, config.key_file, config.token_file) == (str(tmp_path / "c"), "/abs/k", str(tmp_path / "t"))
    assert set(config.files) == {str(tmp_path / name) for name in ("k", "ca.crt", "c", "t")} | {"/abs/k"}


def test_data_impersonation_and_basic_credentials_are_read(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    user = {
        "client-certificate-data": data,
        "client-key-data": data,
        "as": "alice",
        "as-groups": ["g", "h"],
        "username": "u",
        "password": "p",
    }
    config = load(write(tmp_path / "k", document("a", **user)))
    assert (config.cert_data, config.key_data, config.username, config.password) == (b"PEM", b"PEM", "u", "p")
    assert config.headers == (("Impersonate-User", "alice"), ("Impersonate-Group", "g"), ("Impersonate-Group", "h"))


def test_of_several_files_the_first_counts(tmp_path: Path) -> None:
    first = write(tmp_path / "1", document("a", username="1"))
    second = write(tmp_path / "2", document("a", username="2") | {"current-context": "b"})
    third = write(tmp_path / "3", document("c", username="3"))
    environ = {"KUBECONFIG": f"{first}:{second}:{third}:{tmp_path / 'none'}"}
    assert (load(environ=environ).username, load(environ=environ).context) == ("1", "a")
    assert load(None, "c", environ=environ).username == "3"


def test_without_a_file_the_home_of_the_user_counts(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", document("home"))
    assert load(environ={"HOME": str(tmp_path)}).context == "home"


def test_a_pod_has_its_service_account(tmp_path: Path) -> None:
    for name, text in (("token", "t"), ("ca.crt", "c"), ("namespace", "n\n")):
        (tmp_path / name).write_text(text)
    config = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)
    assert (config.server, config.token_file, config.namespace) == ("https://[fd00::1]:443", str(tmp_path / "token"), "n")


@pytest.mark.parametrize(
    ("content", "error", "sentence"),
    [
        (None, NotFound, "there is no kubeconfig"),
        ("a: [", Rejected, "cannot be read"),
        ("", Rejected, "is empty or no map"),
        (document() | {"current-context": ""}, Rejected, "no current-context"),
        (document() | {"current-context": "z"}, Rejected, "context 'z' is not in .*; there are: a"),
        (document() | {"users": []}, Rejected, "user 'a' is not in .*; there are: none"),
        (document() | {"clusters": [{"name": "a", "cluster": {}}]}, Rejected, "names no server"),
        (document() | {"clusters": [{"cluster": {}}]}, Rejected, "an entry of clusters has no name"),
        (document(**{"client-key-data": "%"}), Rejected, "client-key-data is no base64"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: Any, error: type[LatticeError], sentence: str) -> None:
    path = tmp_path / "k"
    if content is not None:
        write(path, content)
    with pytest.raises(error, match=sentence):
        load(str(path))


def test_outside_a_pod_an_empty_path_is_not_found() -> None:
    with pytest.raises(NotFound, match="--kubeconfig FILE"):
        load("", environ={})


def test_an_exec_plugin_gives_its_token(tmp_path: Path) -> None:
    given = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}'
    script = tmp_path / "plugin"
    script.write_text(f"#!/bin/sh\ncat <<'E'\n{given}\nE\n")
    script.chmod(0o755)
    execution = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script), "interactiveMode": "Never"}
    config = load(write(tmp_path / "k", document(exec=execution) | {"clusters": [{"name": "a", "cluster": {"server": "http://a"}}]}))
    assert config.plugin is not None
    assert config.plugin().authorization == "Bearer from-plugin"


def test_a_plugin_that_gives_nothing_and_a_certificate_that_is_not_there_are_named(tmp_path: Path) -> None:
    execution = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(tmp_path / "none"), "interactiveMode": "Never"}
    config = load(write(tmp_path / "k", document(exec=execution) | {"clusters": [{"name": "a", "cluster": {"server": "http://a"}}]}))
    assert config.plugin is not None
    with pytest.raises(Denied, match="gave no credentials"):
        config.plugin()
    gone = {"client-certificate": str(tmp_path / "gone.crt"), "client-key": str(tmp_path / "gone.key")}
    with pytest.raises(Denied, match=r"there is no file .*gone\.crt, .*gone\.key"):
        Credentials(load(write(tmp_path / "k", document(**gone))))
