"""Reads `~/.config/lattice/config.yaml`: the person's defaults (book, "CLI Design")."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lattice.errors import NotFound, Rejected


class Configuration(NamedTuple):
    """The person's defaults, which flags and environment variables override; unknown keys are refused."""

    default_tenant: str = ""
    default_vcluster: str = ""
    default_uenv: str = ""
    output_format: str = ""
    color: bool = True
    kubeconfig: str = ""
    gateway: str = ""
    """URL of the gateway; empty: the one that the cluster publishes."""


def read_configuration(given: str | None, home: str) -> Configuration:
    """Returns the defaults in the file that `given` names, which must exist; None or empty: in the person's own file below `home`, which
    need not.

    Raises NotFound for an absent file that was named, Rejected for one that cannot be read or is wrong.
    """
    path = Path(given).expanduser() if given else Path(home) / ".config" / "lattice" / "config.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if given:
            raise NotFound(f"there is no configuration file {path}", reason="ConfigurationNotFound") from error
        return Configuration()
    except (OSError, ValueError) as error:
        raise Rejected(f"the configuration file {path} cannot be read: {error}", reason="BadInput") from error
    return parse_configuration(text, str(path))


def parse_configuration(text: str, path: str) -> Configuration:
    """Returns the defaults in a file's text; raises Rejected for unknown keys and wrong types."""
    import yaml

    try:
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise Rejected(f"{path} is no YAML: {error}", reason="BadInput") from error
    known = {name: type(default).__name__ for name, default in Configuration._field_defaults.items()}
    if not isinstance(document, dict):
        raise Rejected(f"{path} must be a map with keys of {', '.join(known)}", reason="BadInput")
    for key, value in document.items():
        if key not in known:
            raise Rejected(f"{path}: {key!r} is no option. Known: {', '.join(known)}", reason="BadInput")
        if type(value).__name__ != known[key]:
            raise Rejected(f"{path}: {key} must be a {known[key]}, not {value!r}", reason="BadInput")
    return Configuration(**document)
