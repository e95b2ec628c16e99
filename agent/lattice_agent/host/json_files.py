"""Reads JSON files that an administrator keeps on the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lattice.errors import Rejected


def read_json(path: Path) -> Any:
    """Returns the JSON of a file. Raises Rejected (PrologueFailed) where it cannot be read or does not parse."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Rejected(f"{path} cannot be read: {error}", reason="PrologueFailed") from error
