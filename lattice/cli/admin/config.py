"""`lattice admin config`: the options of the cluster, in the object LatticeConfig `lattice`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.errors import NotFound, Rejected
from lattice.kube.resources import CONFIGS

if TYPE_CHECKING:
    from lattice.cli.console import Console


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    get = actions.add_parser("get", help="show options, with the defaults in force")
    get.add_argument("key", nargs="?", default="", metavar="KEY", help="for example scheduling.cycleInterval, or scheduling")
    change = actions.add_parser("set", help="set options")
    change.add_argument("pairs", nargs="+", metavar="KEY=VALUE")


def run(console: Console) -> int:
    """Shows or sets options."""
    return _get(console) if console.args.action == "get" else _set(console)


def defaults() -> dict[str, Any]:
    """Returns every option that is served, with its default, in sections as the object has them."""
    from lattice.models.config import LatticeConfigSpec

    return LatticeConfigSpec().model_dump(by_alias=True, mode="json")


def flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields `section.option` and value, in order; an empty map is a value."""
    for key, value in options.items():
        if isinstance(value, Mapping) and value and "Mapping" not in key:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def overlay(base: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `base` with those of `above` in their place, section by section; both stay as they are, and None in `above`
    replaces too.
    """
    merged = dict(base)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = overlay(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return merged


def camel(key: str) -> str:
    """Returns an option's path in camelCase, as the object has it; the book's snake_case is accepted."""
    parts = []
    for part in key.split("."):
        head, *rest = part.split("_")
        parts.append(head + "".join(word[:1].upper() + word[1:] for word in rest))
    return ".".join(parts)


def _get(console: Console) -> int:
    """Prints the options in force, defaults included: all, or that of the key given and those below it; returns DONE.

    Raises NotFound where there is none.
    """
    try:
        spec = console.cluster.get(CONFIGS, "lattice", type=dict[str, Any]).get("spec") or {}
    except NotFound:
        spec = {}
    options = dict(flat(overlay(defaults(), spec)))
    wanted = camel(console.args.key)
    found = {key: value for key, value in options.items() if not wanted or key == wanted or key.startswith(wanted + ".")}
    if not found:
        raise NotFound(
            f"no option {console.args.key!r}{_near(wanted, options)}. Hint: `lattice admin config get` lists them", reason="OptionUnknown"
        )
    if console.format in ("json", "yaml"):
        console.document(found)
    elif len(found) == 1 and wanted in found:
        console.say(_value_text(found[wanted]))
    else:
        console.say(*(f"{key}={_value_text(value)}" for key, value in found.items()))
    return exits.DONE


def _value_text(value: Any) -> str:
    """Returns an option's value as text; anything but text as JSON."""
    import json

    return value if isinstance(value, str) else json.dumps(value)


def _near(path: str, known: Mapping[str, Any]) -> str:
    """Returns `; did you mean scheduling.events?` for a misspelt option; empty where no option is near."""
    import difflib

    last = {option.rpartition(".")[2].lower(): option for option in known}
    near = difflib.get_close_matches(path.rpartition(".")[2].lower(), last, n=1)
    return f"; did you mean {last[near[0]]}?" if near else ""


def parse_pairs(pairs: list[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of spec that `KEY=VALUE` pairs set; raises Rejected for a text that is no pair, an unknown option, and a single
    value for an option that holds several.

    `known`: the options with their defaults, by path; a text as default keeps the value as text, else it is read as YAML.
    """
    import yaml

    spec: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        path = camel(key)
        parent = next((option for option in known if path == option or path.startswith(option + ".")), None)
        if not equals:
            raise Rejected(f"{pair!r}: write KEY=VALUE, for example scheduling.cycleInterval=2s", reason="BadInput")
        if parent is None:
            raise Rejected(f"no option {key!r}{_near(path, known)}. Hint: `lattice admin config get` lists them", reason="BadInput")
        value = text if isinstance(known[parent], str) else yaml.safe_load(text)
        if path == parent and isinstance(known[parent], dict) and not isinstance(value, dict):
            raise Rejected(
                f"{pair!r}: the option holds several: write {parent}.NAME={text.rpartition('=')[2] or 'VALUE'}", reason="BadInput"
            )
        if known[parent] is None and not isinstance(value, int | None):
            value = text  # 0.3 and times are texts in the object
        at = spec
        *above, last = path.split(".")
        for part in above:
            at = at.setdefault(part, {})
        at[last] = value
    return spec


def _set(console: Console) -> int:
    """Changes options to the values given, makes the configuration where there is none, and prints what it set; other options stay; returns
    DONE.

    Raises Rejected for an option that does not exist or a value that is not allowed.
    """
    from lattice.admission.strict import parse_strict

    change = parse_pairs(console.args.pairs, dict(flat(defaults())))
    problems = parse_strict("LatticeConfig", {"kind": "LatticeConfig", "metadata": {"name": "lattice"}, "spec": change})
    if problems:
        raise Rejected("; ".join(problems), reason="BadInput")
    try:
        made = console.cluster.patch(CONFIGS, "lattice", {"spec": change}, type=dict[str, Any])
    except NotFound:
        made = console.cluster.create(CONFIGS, {"metadata": {"name": "lattice"}, "spec": change}, type=dict[str, Any])
    if console.is_document:
        console.objects("LatticeConfig", [made], one=True)
    else:
        console.say(*(f"Set {key}={_value_text(value)}" for key, value in flat(change)))
    return exits.DONE
