"""The three streams of the process, there whatever the caller closed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO, cast


def open_closed_streams() -> None:
    """Puts /dev/null in the place of each standard stream that was closed before the start (`>&-`), where Python has None."""
    sys.stdin, sys.stdout, sys.stderr = sys.stdin or _nothing("r"), sys.stdout or _nothing("w"), sys.stderr or _nothing("w")


def _nothing(mode: str) -> TextIO:
    return cast("TextIO", Path(os.devnull).open(mode))
