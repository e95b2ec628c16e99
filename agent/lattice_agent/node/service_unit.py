"""`lattice-agent unit FLAGS`: prints the systemd unit that runs the agent with these flags as a service of its machine.

The unit's choices are what survival of the work needs: only the agent's own process is ended with the service (the shims live on in the
delegated scope, `host.delegation`), and the run directory stays while it restarts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

UNIT: Final = """\
# Made by `lattice-agent unit`. To install: write it to /etc/systemd/system/lattice-agent.service, then
# systemctl daemon-reload && systemctl enable --now lattice-agent
[Unit]
Description=Lattice node agent
Wants=network-online.target
After=network-online.target remote-fs.target nss-user-lookup.target

[Service]
Type=exec
# Settings not given as flags, such as LATTICE_AGENT_LOG_LEVEL=debug.
EnvironmentFile=-/etc/lattice/agent.env
ExecStart={command}
Restart=always
RestartSec=1
# Stopping or restarting the agent leaves the work alone: it stands in lattice-work.scope, and the next agent finds it.
KillMode=process
StateDirectory=lattice
RuntimeDirectory=lattice
RuntimeDirectoryPreserve=yes
OOMScoreAdjust=-900
TasksMax=infinity
LimitNOFILE=1048576
LimitMEMLOCK=infinity
LimitSTACK=infinity
LimitCORE=infinity
# The C library gives freed memory back, of which each thread else keeps some for itself.
Environment=MALLOC_ARENA_MAX=2 MALLOC_TRIM_THRESHOLD_=131072 MALLOC_MMAP_THRESHOLD_=131072

[Install]
WantedBy=multi-user.target
"""


def service_unit(flags: Sequence[str], program: str) -> str:
    """Returns the text of the systemd unit that runs `program`, an absolute path, with these flags."""
    return UNIT.format(command=" ".join(map(_quoted, (program, *flags))))


def _quoted(word: str) -> str:
    """Quotes one word of a command as systemd reads it (systemd.service(5)): specifiers and variables are doubled."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return plain if plain and not set(plain) & set(" \t'\";") else f'"{plain}"'


def main(flags: Sequence[str]) -> int:
    """Prints the unit that runs this program, by the path by which it was called, with these flags; returns the exit code 0."""
    sys.stdout.write(service_unit(flags, os.path.abspath(sys.argv[0])))  # noqa: PTH100 - a link to the program stays one
    return 0
