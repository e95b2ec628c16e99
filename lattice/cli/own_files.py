"""The folders of a person's own files of this program, one of each kind for every cluster: lasting ones, and ones that may be deleted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lattice.kube.kubeconfig import ClusterConfig


def state_folder(environ: Mapping[str, str], config: ClusterConfig) -> Path | None:
    """Returns the folder of files that must last for this cluster, below XDG_STATE_HOME (if absolute) or ~/.local/state; None without a
    home directory.

    It is not made.
    """
    return _folder(environ, "XDG_STATE_HOME", ".local/state", config)


def cache_folder(environ: Mapping[str, str], config: ClusterConfig) -> Path | None:
    """Returns the folder of files that may be deleted for this cluster, below XDG_CACHE_HOME (if absolute) or ~/.cache; None without a home
    directory.

    It is not made.
    """
    return _folder(environ, "XDG_CACHE_HOME", ".cache", config)


def _folder(environ: Mapping[str, str], variable: str, below_home: str, config: ClusterConfig) -> Path | None:
    """Returns this cluster's own folder below the one that a variable names, or else below the home folder; None where neither is set."""
    given, home = environ.get(variable, ""), environ.get("HOME", "")
    if given and Path(given).is_absolute():
        return Path(given, "lattice", _key(config))
    return Path(home, below_home, "lattice", _key(config)) if home and Path(home).is_dir() else None


def _key(config: ClusterConfig) -> str:
    """Returns a name for the cluster, from server and authority: another cluster may later have the same address."""
    from binascii import crc32  # of names that nobody forges against himself; a real digest takes longer to load than to ask

    authority = config.ca_data
    if config.ca_file and not authority:
        try:
            authority = Path(config.ca_file).read_bytes()
        except OSError:
            authority = config.ca_file.encode()
    return f"{crc32(config.server.encode()):08x}{crc32(authority):08x}"
