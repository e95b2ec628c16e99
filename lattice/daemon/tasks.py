"""Tells cancellations that were asked of this task from those that came out of what it awaits."""

from __future__ import annotations

import asyncio
from typing import Final

CANCELLED_INSIDE: Final = "something that it waited for was cancelled, and nobody had asked that of it"


def is_cancelled() -> bool:
    """Tells whether the current task was asked to end; if not, a CancelledError in it is an error like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
