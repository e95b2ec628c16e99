"""The key and the digest of a script in a ConfigMap: for the command line that writes it, and gateway and agent that read it."""

from __future__ import annotations

import hashlib
from typing import Final

KEY: Final = "script"
"""The key of a ConfigMap that holds the script."""


def script_digest(text: str) -> str:
    """Returns `sha256:` and the 64 hexadecimal digits of a script in UTF-8."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
