"""Keeps the host files of attempts on this node, where all work reads them, in containers too, and none can change them."""

from __future__ import annotations

import os
from pathlib import Path

from lattice_agent.attempts import Key, NodeWork
from lattice_agent.work import mpi_launchers


class HostFiles:
    """The host files of the attempts of one node, in a directory beside that of `srun`."""

    def __init__(self, programs: str) -> None:
        """Keeps them beside `programs`, the directory of `srun`; empty: the node serves no launches, and nothing is kept."""
        self._directory = Path(programs).parent / mpi_launchers.HOSTS if programs else None

    def write_hosts(self, work: NodeWork) -> None:
        """Writes the host files of work on several nodes; does nothing for other work. Raises OSError."""
        if self._directory is None or len(work.nodes) < 2:
            return
        self._directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._directory.chmod(0o711)  # a name holds the attempt's uid: nobody lists those of others
        for name, text in mpi_launchers.host_files(work).items():
            draft = self._directory / f".{name}.{os.getpid()}"
            draft.write_text(text, encoding="utf-8")
            draft.chmod(0o644)
            draft.rename(self._directory / name)

    def remove_hosts(self, key: Key) -> None:
        """Removes the host files of an attempt; does nothing where there are none."""
        if self._directory is not None:
            for name in mpi_launchers.file_names(key):
                (self._directory / name).unlink(missing_ok=True)
