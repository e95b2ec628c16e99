"""How a node is known by its certificates."""

from __future__ import annotations

from typing import Final

AGENT: Final = "lattice:agent:"
"""With the node's name after it, the user of a node's certificates."""
