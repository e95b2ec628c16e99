"""The published schemas of what the commands print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference" / "schemas"


def valid(text: str) -> dict[str, Any]:
    """The document, which its published schema admits."""
    document: dict[str, Any] = json.loads(text)
    name = document["schema"].removeprefix("lattice.dev/").replace("/", "-")
    jsonschema.validate(document, json.loads((FOLDER / f"{name}.json").read_text()))
    return document
