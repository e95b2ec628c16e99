"""Reads the settings of a program into a frozen dataclass: flags over `LATTICE_<PROGRAM>_<FIELD>` over a YAML file over defaults.

A field's `metadata={"help": …}` is shown by `--help`; `metadata={"choices": (…)}` limits a text. Field types: str, int, float, bool,
tuple[str, …] (comma-separated), Path, each also with `| None`. Unknown settings are refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lattice.errors import Rejected

S = TypeVar("S")

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """The settings that every daemon has."""

    kubeconfig: str = dataclasses.field(default="", metadata={"help": "kubeconfig file; empty: the pod's own service account"})
    metrics_address: str = dataclasses.field(default="", metadata={"help": "HOST:PORT of /metrics, /readyz, /healthz; empty: none"})
    metrics_certificate: str = dataclasses.field(default="", metadata={"help": "PEM file: serve these over TLS with this certificate"})
    metrics_key: str = dataclasses.field(default="", metadata={"help": "PEM file of its key"})
    log_format: str = dataclasses.field(default="text", metadata={"help": "how log lines look", "choices": ("text", "json")})
    log_level: str = dataclasses.field(
        default="info", metadata={"help": "least severity that is logged", "choices": ("debug", "info", "warning", "error")}
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartSettings(CommonSettings):
    """The settings of daemons that take part in the start of work."""

    trace_starts: bool = dataclasses.field(
        default=False, metadata={"help": "log each step of an allocation on its way to its first process, with its time"}
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Option:
    """One field of the settings, with what is needed to read it from text."""

    name: str
    kind: str
    optional: bool
    required: bool
    default: Any
    help: str
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        """Returns the flag of a setting."""
        return "--" + self.name.replace("_", "-")


def load(cls: type[S], *, program: str, argv: Sequence[str], environ: Mapping[str, str]) -> S:
    """Returns the settings of a program (such as `lattice-scheduler`); `--help` and `--print-settings` print and end the process with 0.

    Raises SystemExit 2, after a sentence on stderr, for a setting that is unknown, missing or wrong; Rejected for a field type that no flag
    can give.
    """
    options = {option.name: option for option in _options(cls)}
    parser = _parser(cls, program, options)
    given = parser.parse_args(list(argv))
    try:
        settings = cls(**_merged(options, vars(given), program, environ))
    except Rejected as error:
        parser.error(error.message)
    if given.print_settings:
        sys.stdout.write(render(settings))
        raise SystemExit(0)
    return settings


def render(settings: object) -> str:
    """Returns the settings as the YAML that `--config` reads, every field included."""
    import yaml

    shown: dict[str, Any] = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        plain = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
        shown[field.name.replace("_", "-")] = plain
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def _options(cls: type[Any]) -> list[_Option]:
    """Returns the settings of a dataclass, one for each field that its construction takes.

    Raises Rejected for a field that no flag can give.
    """
    hints = typing.get_type_hints(cls)
    return [_option(field, hints[field.name]) for field in dataclasses.fields(cls) if field.init]


def _option(field: dataclasses.Field[Any], hint: Any) -> _Option:
    """Returns the setting of one field. Raises Rejected for a type that no flag can give."""
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    inner = parts[0] if is_union and len(parts) == 1 else hint
    kind = "tuple" if typing.get_origin(inner) is tuple else getattr(inner, "__name__", "?")
    if kind not in _READERS:
        raise Rejected(f"field {field.name} has the type {hint}, which no flag can give", reason="SettingUnsupported")
    default, required = None, False
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    else:
        required = True
    told = field.metadata
    return _Option(field.name, kind, is_union, required, default, str(told.get("help", "")), tuple(told.get("choices", ())))


def _parser(cls: type[Any], program: str, options: Mapping[str, _Option]) -> argparse.ArgumentParser:
    """Returns the parser of a program's flags: one for each setting, --config and --print-settings."""
    parser = argparse.ArgumentParser(prog=program, description=(cls.__doc__ or "").strip(), allow_abbrev=False)
    for option in options.values():
        text = option.help + (f" (one of: {', '.join(option.choices)})" if option.choices else "")
        text += "" if option.required or option.default in ("", None, ()) else f" [{_shown(option.default)}]"
        extra: dict[str, Any] = {"nargs": "?", "const": "true"} if option.kind == "bool" else {}
        metavar = {"bool": "true|false", "tuple": "A,B"}.get(option.kind, option.kind.upper())
        parser.add_argument(option.flag, dest=option.name, default=None, metavar=metavar, help=text.replace("%", "%%"), **extra)
    parser.add_argument("--config", default=None, metavar="FILE", help="YAML file of the same settings")
    parser.add_argument("--print-settings", action="store_true", help="show the settings in force as YAML, and end")
    return parser


def _shown(value: Any) -> str:
    """Returns a value as it is written on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _merged(options: Mapping[str, _Option], flags: Mapping[str, Any], program: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values in force: flags over variables over the file over defaults.

    Raises Rejected where a value does not parse, a name is unknown, or a required setting is missing.
    """
    variables = _variables(options, program, environ)
    named = variables.pop("config", None)
    path = flags["config"] or named
    values: dict[str, Any] = {name: option.default for name, option in options.items() if not option.required}
    if path:
        values.update(_from_file(options, str(path)))
    for name, text in variables.items():
        values[name] = _read(options[name], text, f"variable {_prefix(program)}{name.upper()}")
    for name, option in options.items():
        if flags.get(name) is not None:
            values[name] = _read(option, flags[name], option.flag)
    missing = [options[name].flag for name in options if name not in values]
    if missing:
        raise Rejected(f"missing: {', '.join(missing)}", reason="SettingMissing")
    return values


def _prefix(program: str) -> str:
    """Returns the prefix of a program's variables."""
    return "LATTICE_" + program.removeprefix("lattice-").replace("-", "_").upper() + "_"


def _variables(options: Mapping[str, _Option], program: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the texts of a program's variables by setting, `config` among them.

    Raises Rejected for one that names no setting, except those that Kubernetes sets for services.
    """
    prefix = _prefix(program)
    found: dict[str, str] = {}
    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue
        name = variable[len(prefix) :].lower()
        if name in options or name == "config":
            found[name] = text
        elif not _is_service_link(name):
            raise Rejected(f"variable {variable} names no setting of {program}", reason="SettingUnknown")
    return found


def _is_service_link(name: str) -> bool:
    """Tells whether Kubernetes made the variable for a Service of the program's name (`…_SERVICE_HOST`, `…_PORT_443_TCP`)."""
    return name == "port" or name.startswith(("service_host", "service_port", "port_"))


def _from_file(options: Mapping[str, _Option], path: str) -> dict[str, Any]:
    """Returns the values of a YAML file of settings. Raises Rejected where it cannot be read, is no map, or names an unknown setting."""
    import yaml

    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Rejected(f"--config {path} cannot be read: {error}", reason="SettingsUnreadable") from error
    if not isinstance(document, dict | None):
        raise Rejected(f"--config {path} must be a map of settings, and is a {type(document).__name__}", reason="SettingsUnreadable")
    values: dict[str, Any] = {}
    for key, value in (document or {}).items():
        name = str(key).replace("-", "_")
        if name not in options:
            raise Rejected(f"--config {path}: {key} is unknown; known are {', '.join(sorted(options))}", reason="SettingUnknown")
        values[name] = _read(options[name], value, f"{path}: {key}")
    return values


def _read(option: _Option, raw: Any, source: str) -> Any:
    """Returns the value of a text or a YAML scalar, None for nothing where the field is optional; raises Rejected naming its source where
    it does not parse or is none of the choices.
    """
    if raw is None and option.optional:
        return None
    try:
        value = _READERS[option.kind](raw)
    except (TypeError, ValueError) as error:
        raise Rejected(f"{source}: {raw!r} is no {option.kind}", reason="SettingWrong") from error
    if option.choices and value not in option.choices:
        raise Rejected(f"{source}: {raw!r} is none of {', '.join(option.choices)}", reason="SettingWrong")
    return value


def _read_bool(raw: Any) -> bool:
    """Returns a switch from text, whatever its case. Raises ValueError for any other text."""
    text = str(raw).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(text)


def _read_text(raw: Any) -> str:
    """Returns a value as text. Raises TypeError for a map, a list, a switch or nothing."""
    if isinstance(raw, dict | list | bool) or raw is None:
        raise TypeError(raw)
    return str(raw)


def _read_tuple(raw: Any) -> tuple[str, ...]:
    """Returns texts from a list, or from one text with commas, without empty ones. Raises TypeError for anything else."""
    parts = raw if isinstance(raw, list) else _read_text(raw).split(",")
    return tuple(text for text in (_read_text(part).strip() for part in parts) if text)


def _read_int(raw: Any) -> int:
    """Returns a whole number. Raises TypeError for a switch or a number with a point, ValueError for other text."""
    if isinstance(raw, bool | float):
        raise TypeError(raw)
    return int(raw)


_READERS: dict[str, Callable[[Any], Any]] = {
    "str": _read_text,
    "int": _read_int,
    "float": float,
    "bool": _read_bool,
    "tuple": _read_tuple,
    "Path": lambda raw: Path(_read_text(raw)),
}
