"""Renders YAML for people: texts of several lines as blocks, keys in the order given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from lattice.cli.render.text import printable

_UNFIT = frozenset("\ufeff\ufffe\uffff\U0010ffff")
"""Characters that YAML escapes, beside those that a terminal would obey."""


class _Dumper(yaml.SafeDumper):
    """A safe YAML dumper that writes texts of several lines as blocks."""

    def analyze_scalar(self, scalar: str) -> Any:
        """Allows a block also where a line ends with a blank or holds a tab, which YAML permits and PyYAML does not."""
        found = super().analyze_scalar(scalar)
        if isinstance(self.event, yaml.ScalarEvent) and self.event.style == "|":
            found.allow_block = True
        return found


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Returns a text as a YAML node: in quotes where it has control characters, as a block where it has several lines."""
    escaped = printable(text) != text or not _UNFIT.isdisjoint(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if escaped else "|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def dump(documents: Sequence[Any]) -> str:
    """Returns one YAML document an object; characters that a terminal would obey are escaped, without changing the values."""
    return printable(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
