"""YAML as people read it: scripts and other texts of several lines as blocks, keys in the order given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from lattice.cli.render import printable


class _Dumper(yaml.SafeDumper):
    """The safe dumper, with blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if printable(text) != text else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(documents: Sequence[Any]) -> str:
    """One YAML document for each object; what a terminal would obey is escaped in it, the values are the same."""
    return printable(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
