"""Traces the start of allocations: one log line for each step, where the setting `--trace-starts` asks for it.

A line names the step that is done, the allocation, the node where there is one, and the time on two clocks: `boottime`, which all processes
of a machine share, and `epoch`, for machines with synchronised clocks. `lattice_dev.bench.starts` joins the lines of all processes by uid.
While the setting is off, a step costs one check of a log level.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from lattice.daemon.logs import event
from lattice.kube.clock import Clock

LINE: Final = "StartStep"
"""The message of every such log line."""
STEPS: Final = (
    "post", "webhook", "informer", "queue", "cycle", "batch", "commit", "plan", "watch", "ask", "read", "probe", "prepare", "gather",
    "ready", "fork", "exec",
)  # fmt: skip
"""All steps in their order; each line says that its step is done (docs/howto/measure.md says what each one covers)."""
_NEVER: Final = logging.CRITICAL + 1

log = logging.getLogger("lattice.starts")
log.setLevel(_NEVER)


def trace(*, on: bool) -> None:
    """Turns the log lines on the steps of starts on or off for this process, whatever its log level."""
    log.setLevel(logging.INFO if on else _NEVER)


def traced() -> bool:
    """Tells whether this process logs the steps of starts; callers that must remember something for such a line ask first."""
    return log.isEnabledFor(logging.INFO)


def reached(clock: Clock, step: str, allocation: str, *, node: str = "", key: str = "", at: float | None = None) -> None:
    """Logs that a step of `STEPS` is done, nothing while `trace` is off; `allocation` is the uid, or namespace/name where the object has no
    uid yet.

    `key` is namespace/name, logged once beside the uid; `at` is the time of the step by `clock.monotonic`, None: now.
    """
    if log.isEnabledFor(logging.INFO):
        boottime, epoch = clock.monotonic(), clock.now()
        if at is not None:
            boottime, epoch = at, epoch - (boottime - at)
        fields: dict[str, Any] = {name: value for name, value in (("node", node), ("key", key)) if value}
        event(log, LINE, allocation=allocation, step=step, boottime=f"{boottime:.6f}", epoch=f"{epoch:.6f}", **fields)
