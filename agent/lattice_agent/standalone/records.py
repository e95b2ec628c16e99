"""Makes classes of named values, as `dataclasses` does, which with `inspect` takes 2 MiB of every shim; of standard library alone."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, without loading typing
if TYPE_CHECKING:
    from typing import Any, dataclass_transform
else:

    def dataclass_transform(**_):
        """Returns a decorator that changes nothing: only type checkers ask for it."""
        return lambda cls: cls


_NAMES: dict[type, tuple[str, ...]] = {}
"""The names of each class of which there was an instance."""


def _names_of(cls: type) -> tuple[str, ...]:
    """Returns the names that a class and its bases annotate, in order, those of the bases first."""
    found = _NAMES.get(cls)
    if found is None:
        found = _NAMES[cls] = tuple(name for base in reversed(cls.__mro__) for name in base.__dict__.get("__annotations__", ()))  # noqa: RUF063
    return found


@dataclass_transform()
class Record:
    """Holds the values that a class and its bases annotate, given by position or by name; one with a value in the class may be left out."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """Raises TypeError for a value that is missing, unknown or one too many."""
        names = _names_of(type(self))
        if len(given) == len(names) and not named:
            self.__dict__.update(zip(names, given, strict=True))
            return
        values = dict(zip(names, given, strict=False))
        missing = [name for name in names[len(given) :] if name not in named and not hasattr(type(self), name)]
        wrong = [name for name in named if name in values or name not in names]
        if missing or wrong or len(given) > len(names):
            raise TypeError(
                f"{type(self).__name__} takes {', '.join(names)}; missing: {missing}, wrong: {wrong}, by position: {len(given)}"
            )
        self.__dict__.update(values | named)

    def __eq__(self, other: object) -> bool:
        """Tells whether the other is of the same class and holds equal values."""
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        """Returns a hash of the values, all of which must have one."""
        return hash(frozenset(self.__dict__.items()))


@dataclass_transform(kw_only_default=True)
class NamedRecord:
    """Holds values as `Record` does, all of them given by name, so that a class may add to those of its base."""

    __init__ = Record.__init__
