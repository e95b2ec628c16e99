"""YAML as people read it: scripts and other texts of several lines as blocks, keys in the order given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from lattice.cli.render.text import printable

_UNFIT = frozenset("\ufeff\ufffe\uffff\U0010ffff")
"""Characters that YAML escapes, beside those that a terminal would obey."""


class _Dumper(yaml.SafeDumper):
    """Dumps safely, with blocks."""

    def analyze_scalar(self, scalar: str) -> Any:
        """Finds the styles that can write the text; PyYAML allows no block where a line ends with a blank or holds a tab, YAML does."""
        found = super().analyze_scalar(scalar)
        if isinstance(self.event, yaml.ScalarEvent) and self.event.style == "|":
            found.allow_block = True
        return found


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    escaped = printable(text) != text or not _UNFIT.isdisjoint(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if escaped else "|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def dump(documents: Sequence[Any]) -> str:
    """Writes one YAML document for each object; a character that a terminal would obey is escaped, the values are the same."""
    return printable(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
