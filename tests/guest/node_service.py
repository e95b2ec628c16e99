"""The agent's host alone as a service, for the guest under systemd: starts one attempt, or takes over that of an earlier process.

It says what it sees as lines in the file `said` of its directory, and needs no API server.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from lattice.daemon.clock import SystemClock
from lattice_agent.attempts import ExitRecord, Key, NodeWork
from lattice_agent.host.controllers import Reserves
from lattice_agent.host.linux import open_host
from lattice_agent.host.scopes import CgroupScopes

KEY = Key("7d3c1f52-0b6e-4f0b-9a55-3a1f6d0c2e11", 1)
ENTRYPOINT = "sh -c 'touch began; until [ -e go ]; do sleep 0.1; done; exit 7'"


async def main(place: Path) -> None:
    """Serves until it is killed."""

    def say(line: str) -> None:
        with (place / "said").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def ended(key: Key, record: ExitRecord | None) -> None:
        say(f"ended {key.attempt} {record.tasks[0].code if record and record.tasks else None}")

    reserves = Reserves(memory_bytes=64 << 20)
    async with open_host(place / "state", Path("/run/lattice"), node="guest", clock=SystemClock(), reserves=reserves) as host:
        host.on_exit(ended)
        found = await host.attempts()
        for known in found:
            record = known.exit
            code = record.tasks[0].code if record and record.tasks else None
            say(f"found alive={known.alive} populated={known.populated} same_boot={known.boot_matches} code={code}")
            if not known.alive and not known.populated:
                await host.clear(known.key)
                say(f"cleared scopes={len(host.scopes.standing_scopes())} steps={host.launcher.prologue.begun(known.key)}")
        if not found:
            ours = NodeWork(
                KEY, 7, "physics", "run-42", "nobody", tenant="physics", job_name="run-42", nodes=("guest",), node="guest", rank_of_node=0,
                head="guest", tasks=1, first_rank=0, total_tasks=1, entrypoint=ENTRYPOINT, workdir=str(place / "home"), account="nobody",
                open_files=1024, private_tmp=True, max_processes=100,
            )  # fmt: skip
            await host.prepare(ours)
            await host.start(ours)
            missing = sorted(host.scopes.controllers.missing) if isinstance(host.scopes, CgroupScopes) else "all"
            say(f"started limits_missing={missing}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
