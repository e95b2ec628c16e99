"""Traces how an allocation starts: one log line for each step on its way, where the setting `--trace-starts` asks for them.

A line names the step that is done, the allocation, the node where there is one, and the moment on two clocks: `boottime`, which all
processes of one machine share, and `epoch`, for machines whose clocks are kept in step. Whoever has the logs joins them by uid:
`lattice_dev.bench.starts` does. While the setting is off a step costs one look at a log level.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from lattice.daemon.logs import event
from lattice.kube.clock import Clock

LINE: Final = "StartStep"
"""The message of every line."""
STEPS: Final = (
    "post", "webhook", "informer", "queue", "cycle", "batch", "commit", "plan", "watch", "ask", "read", "probe", "prepare", "gather",
    "ready", "fork", "exec",
)  # fmt: skip
"""In their order; each line says that its step is done (docs/howto/measure.md has a table of what each one covers)."""
_NEVER: Final = logging.CRITICAL + 1

log = logging.getLogger("lattice.starts")
log.setLevel(_NEVER)


def trace(*, on: bool) -> None:
    """Turns the lines of this process on or off, whatever its log level is."""
    log.setLevel(logging.INFO if on else _NEVER)


def traced() -> bool:
    """Tells whether the lines are on: whoever would have to remember something for a line asks first."""
    return log.isEnabledFor(logging.INFO)


def reached(clock: Clock, step: str, allocation: str, *, node: str = "", key: str = "", at: float | None = None) -> None:
    """Logs that a step of `STEPS` is done; `allocation` is the uid, or the key where the object has no uid yet.

    `key` is `namespace/name`, said once beside the uid; `at` is the moment in seconds of `clock.monotonic`, None: now.
    """
    if log.isEnabledFor(logging.INFO):
        boottime, epoch = clock.monotonic(), clock.now()
        if at is not None:
            boottime, epoch = at, epoch - (boottime - at)
        fields: dict[str, Any] = {name: value for name, value in (("node", node), ("key", key)) if value}
        event(log, LINE, allocation=allocation, step=step, boottime=f"{boottime:.6f}", epoch=f"{epoch:.6f}", **fields)
