"""Checks the texts of a spec against the forms that the schema demands of them, before the schema refuses one by its pattern alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lattice.admission.patterned import PATTERNED
from lattice.admission.verdicts import Object, Refused
from lattice.models.forms import FORMS, Form

MOST_TOLD: Final = 5
"""Most fields that one refusal names."""
_ENTRIES: Final = "*"
"""The key, in a tree of forms, of the entries of a list or map."""
_Tree = dict[str, Any]
"""The forms below a field, by the next step of the path; a Form at its end."""


def _tree(paths: Mapping[str, str]) -> _Tree:
    """Returns the forms of a kind as a tree, of paths such as `spec.tags.*` and the names of their forms."""
    root: _Tree = {}
    for path, name in paths.items():
        *steps, last = path.split(".")
        below = root
        for step in steps:
            below = below.setdefault(step, {})
        below[last] = FORMS[name]
    return root


_TREES: Final = {kind: _tree(paths) for kind, paths in PATTERNED.items()}


def misshapen(kind: str, old: Object, new: Object) -> Refused | None:
    """Returns the refusal of texts in the spec of an object that have not the form which their fields need: field, value, what is allowed,
    an example.

    None: all have it, or `old` (empty: the object is new) had the same wrong ones, which the API server then lets pass.
    """
    tree = _TREES.get(kind)
    if tree is None or old.get("spec") == new.get("spec"):
        return None
    before = {(field, value) for field, value, _ in _wrong(tree, old, "")} if old else set()
    found = [one for one in _wrong(tree, new, "") if one[:2] not in before]
    if not found:
        return None
    field, _, form = found[0]
    more = f"; and {len(found) - MOST_TOLD} more fields" if len(found) > MOST_TOLD else ""
    sentence = "; ".join(form.refusal(field, value) for field, value, form in found[:MOST_TOLD]) + more
    return Refused("FormInvalid", sentence, field, form.what_next(kind, field))


def _wrong(tree: _Tree, value: object, path: str) -> Iterator[tuple[str, str, Form]]:
    """Yields path, text and form of each text below a value that has not its form; other types are left to the schema."""
    if isinstance(value, dict):
        for key, inner in value.items():
            below = tree.get(key) or tree.get(_ENTRIES)
            if below is not None:
                yield from _judged(below, inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and _ENTRIES in tree:
        for index, inner in enumerate(value):
            yield from _judged(tree[_ENTRIES], inner, f"{path}[{index}]")


def _judged(below: _Tree | Form, value: object, path: str) -> Iterator[tuple[str, str, Form]]:
    """Yields a text with its path where it has not the form that is told for it, or those below a list or map."""
    if isinstance(below, dict):
        yield from _wrong(below, value, path)
    elif isinstance(value, str) and not below.matches(value):
        yield path, value, below
