"""What a call costs, counted and not timed: the same number on any machine under any load."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


def operations(call: Callable[[], object]) -> int:
    """Returns how many bytecode instructions of Python the call runs in this thread; what C functions do inside counts as one."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def growth(short: Callable[[], object], long: Callable[[], object], tries: int = 3) -> float:
    """Returns how many times as long the second call takes as the first, in CPU time of this thread.

    For work of C functions, which counts as one operation. It is the quickest of the long calls by the slowest of the short ones between
    them, so that a machine that is busy makes it smaller.
    """
    seconds = [(_seconds(short), _seconds(long)) for _ in range(tries)]
    return min(long for _, long in seconds) / max(short for short, _ in seconds)


def _seconds(call: Callable[[], object]) -> float:
    """Returns the CPU time of this thread for the call."""
    before = time.thread_time()
    call()
    return time.thread_time() - before
