"""Weight profiles of a replay: reads the book's YAML of vcluster → weights, with the settings of each vcluster's policy beside
them.

    hpc-batch:
      priority: 0.15
      wait_time: 0.20
      fair_share: 0.35
      depth: 20   # optional: policy, profile, depth, borrowing and limits, as `SETTINGS` names them

Unknown words, negative weights and values that are no numbers are refused with their line and field. Weights that do not sum to 1
are normalised, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, Final

import yaml

from lattice.errors import Rejected
from lattice.scheduling.model.policy import POLICIES, PROFILES, Borrowing, Limits, Policy, Weights
from lattice.units import parse_duration

WEIGHTS: Final = tuple(field.name for field in fields(Weights))
MOST_DEPTH: Final = 1000
_ROUNDING: Final = 1e-6


def _count(value: Any) -> int:
    """Returns a whole number from 0 to 1,000,000. Raises Rejected for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**6:
        raise Rejected(f"{value!r} is no whole number from 0 to 1000000")
    return value


def _depth(value: Any) -> int:
    """Returns a whole number from 0 to MOST_DEPTH. Raises Rejected for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_DEPTH:
        raise Rejected(f"{value!r} is no whole number from 0 to {MOST_DEPTH}")
    return value


def _seconds(value: Any) -> float:
    """Returns a number of seconds, also from a duration's text. Raises Rejected where it does not parse."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    return parse_duration(str(value))


def _switch(value: Any) -> bool:
    """Returns true or false. Raises Rejected for anything else."""
    if not isinstance(value, bool):
        raise Rejected(f"{value!r} is neither true nor false")
    return value


def _one_of(known: Mapping[str, str]) -> Callable[[Any], str]:
    """Returns a function that returns the known word which a value means, whatever its case and dashes, and raises Rejected for any
    other.
    """

    def read(value: Any) -> str:
        """Returns the known word that a value means. Raises Rejected for any other."""
        found = known.get(str(value).replace("-", "").replace("_", "").lower())
        if found is None:
            raise Rejected(f"{value!r} is none of {', '.join(known.values())}")
        return found

    return read


_POLICY: Final = _one_of({name.lower(): name for name in POLICIES})
_PROFILE: Final = _one_of({name.lower(): name for name in PROFILES})
_BORROWING: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "lend": ("lend", _switch),
    "borrow": ("borrow", _switch),
    "max_borrowed": ("max_borrowed", _count),
    "borrow_priority": ("priority", _count),
    "max_borrowed_duration": ("max_duration", _seconds),
    "return_grace": ("return_grace", _seconds),
}
_LIMITS: Final = tuple(field.name for field in fields(Limits))
SETTINGS: Final = ("policy", "profile", "depth", *_BORROWING, *_LIMITS)
"""The words that may stand beside the weights of a vcluster."""


@dataclass(frozen=True)
class Profile:
    """The settings of each vcluster in one replay, as one file of weights has them; `notes` name the weights that are normalised."""

    name: str
    vclusters: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()

    def policy(self, vcluster: str, base: Policy) -> Policy:
        """Returns the policy of a vcluster: `base` with the settings that the profile has for it; `base` itself where it has none."""
        return with_settings(base, self.vclusters.get(vcluster, {}))


def read_profile(text: str, name: str) -> Profile:
    """Returns the profile of a YAML text; raises Rejected (`BadWeights`), with the line, for what is not known, wrong or given twice.

    `name`: what errors and reports call it; weights that do not sum to 1 are noted.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise Rejected(f"{name} is no YAML: {' '.join(str(error).split())}", reason="BadWeights") from error
    if not isinstance(root, yaml.MappingNode) or not root.value:
        raise Rejected(f"{name} is no file of weights: it is a map of vclusters and their weights", reason="BadWeights")
    found: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    for key, node in root.value:
        vcluster, line = str(key.value), key.start_mark.line + 1
        if vcluster in found:
            raise _bad(name, line, vcluster, "the vcluster stands there twice")
        if not isinstance(node, yaml.MappingNode):
            raise _bad(name, line, vcluster, "a vcluster is a map of weights")
        found[vcluster] = _settings(name, vcluster, node)
        notes += _sum(name, line, vcluster, found[vcluster])
    return Profile(name, found, tuple(notes))


def _settings(name: str, vcluster: str, node: yaml.MappingNode) -> dict[str, Any]:
    """Returns the checked settings of one vcluster of a file.

    Raises Rejected, with the line, for one that is wrong, not known, or given twice.
    """
    settings: dict[str, Any] = {}
    for key, value in node.value:
        word, line = str(key.value), key.start_mark.line + 1
        if word in settings:
            raise _bad(name, line, f"{vcluster}.{word}", "it is given twice")
        try:
            settings[word] = _checked(word, yaml.SafeLoader("").construct_object(value, deep=True))
        except Rejected as error:
            raise _bad(name, line, f"{vcluster}.{word}", error.message) from error
        except yaml.YAMLError as error:
            raise _bad(name, line, f"{vcluster}.{word}", " ".join(str(error).split())) from error
    return settings


def read_settings(vcluster: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checked settings of one vcluster in a trace; raises Rejected (`BadWeights`)."""
    settings: dict[str, Any] = {}
    for word, value in given.items():
        try:
            settings[word] = _checked(word, value)
        except Rejected as error:
            raise Rejected(f'the trace\'s vcluster "{vcluster}": {word}: {error.message}', reason="BadWeights", fields=(word,)) from error
    return settings


def with_settings(base: Policy, settings: Mapping[str, Any]) -> Policy:
    """Returns `base` with these settings, its weights normalised to a sum of 1; what they do not name stays.

    As soon as one weight is given, the others are 0, or those of the given profile.
    """
    weights = PROFILES[settings["profile"]] if "profile" in settings else base.weights
    named = {word: settings[word] for word in WEIGHTS if word in settings}
    if named:
        weights = replace(weights, **named) if "profile" in settings else Weights(**{word: named.get(word, 0.0) for word in WEIGHTS})
    borrowing = {field: settings[word] for word, (field, _) in _BORROWING.items() if word in settings}
    limits = {word: settings[word] for word in _LIMITS if word in settings}
    return replace(
        base,
        kind=settings.get("policy", base.kind),
        depth=settings.get("depth", base.depth),
        weights=weights if abs(sum(astuple(weights)) - 1) <= _ROUNDING else weights.normalised(),
        borrowing=replace(base.borrowing, **borrowing) if borrowing else base.borrowing,
        limits=replace(base.limits, **limits) if limits else base.limits,
    )


def settings_of(policy: Policy) -> dict[str, Any]:
    """Returns the settings of a policy by their words in a file of weights; `with_settings` makes an equal policy of them."""
    found: dict[str, Any] = {"policy": policy.kind, "depth": policy.depth}
    found |= {word: weight for word, weight in zip(WEIGHTS, astuple(policy.weights), strict=True) if weight}
    found |= {word: value for word, (field, _) in _BORROWING.items() if (value := getattr(policy.borrowing, field)) is not None}
    return found | {word: value for word in _LIMITS if (value := getattr(policy.limits, word)) is not None}


def _checked(word: str, value: Any) -> Any:
    """Returns the checked value of one setting; the message of Rejected says what is wrong, without file and line."""
    if word in WEIGHTS:
        return _weight(value)
    if word in ("policy", "profile"):
        return (_POLICY if word == "policy" else _PROFILE)(value)
    if word == "depth":
        return _depth(value)
    if word in _BORROWING:
        return _BORROWING[word][1](value)
    if word in _LIMITS:
        return _count(value)
    raise Rejected(f"it is not known; weights are {', '.join(WEIGHTS)}; beside them stand {', '.join(SETTINGS)}")


def _weight(value: Any) -> float:
    """Returns a weight of at least 0. Raises Rejected for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e9 < value < 1e9:
        raise Rejected(f"{value!r} is no number")
    if value < 0:
        raise Rejected(f"{value:g} is negative; a weight is 0 or more")
    return float(value)


def _sum(name: str, line: int, vcluster: str, settings: Mapping[str, Any]) -> list[str]:
    """Returns a note where the weights given do not sum to 1 (with those of the given profile), else nothing, also without a weight; raises
    Rejected where all of them are 0.
    """
    if not any(word in settings for word in WEIGHTS):
        return []
    base = PROFILES[settings["profile"]] if "profile" in settings else Weights(*(0.0 for _ in WEIGHTS))
    total = sum(settings.get(word, given) for word, given in zip(WEIGHTS, astuple(base), strict=True))
    if total <= 0:
        raise _bad(name, line, vcluster, "every weight is 0: nothing would order its queue")
    return [f'{name}: the weights of "{vcluster}" sum to {total:g} and are normalised'] if abs(total - 1) > _ROUNDING else []


def _bad(name: str, line: int, field: str, what: str) -> Rejected:
    """Returns the error that says what is wrong with a field, with file and line."""
    return Rejected(f"{name}, line {line}: {field}: {what}", reason="BadWeights", fields=(field,))


BASES: Final = {
    "hpc-batch": Policy("hpc-batch", weights=PROFILES["HpcBatch"]),
    "ml-training": Policy("ml-training", weights=PROFILES["MlTraining"]),
    "service": Policy("service", kind="BinPack", weights=PROFILES["Service"]),
    "sensitive": Policy("sensitive", kind="SensitiveReservation", weights=PROFILES["Sensitive"]),
    "interactive": Policy("interactive", kind="InteractiveFifo", weights=PROFILES["Interactive"]),
}
"""The policies of the book's vclusters, by name; used where neither the trace nor a profile says otherwise."""


def base_policy(vcluster: str, *, depth: int | None = None, profile: str = "", borrowing: Borrowing | None = None) -> Policy:
    """Returns the policy of a vcluster before settings: the book's by its name, else backfill with balanced weights.

    `depth`, `profile` (a name of `PROFILES`) and `borrowing` replace its own where given.
    """
    base = BASES.get(vcluster, Policy(vcluster))
    if profile:
        base = replace(base, weights=PROFILES[profile])
    if depth is not None:
        base = replace(base, depth=depth)
    return replace(base, borrowing=borrowing) if borrowing is not None else base
