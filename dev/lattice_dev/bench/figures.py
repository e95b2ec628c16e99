"""Figures of a benchmark: a value with unit, aim and baseline, as a table or JSON; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lattice.errors import Rejected

FORMAT = 1


@dataclass(frozen=True)
class Aim:
    """The value that a figure must reach (`at_least`) or stay below."""

    value: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Tells whether a value meets the aim; the aim's own value does."""
        return value >= self.value if self.at_least else value <= self.value

    def __str__(self) -> str:
        """Returns `≥ 300` or `≤ 300`."""
        return f"{'≥' if self.at_least else '≤'} {shown(self.value)}"


@dataclass(frozen=True)
class Baseline:
    """A value of the same machine in the same run without Lattice: its name, and its value in the figure's unit."""

    what: str
    value: float


@dataclass(frozen=True)
class Figure:
    """One measured value; `detail` says in a few words what else was seen."""

    name: str
    value: float
    unit: str
    aim: Aim | None = None
    baseline: Baseline | None = None
    detail: str = ""
    parts: dict[str, float] = field(default_factory=dict)
    """Values that the figure is made of, or that belong to it, by name."""

    @property
    def ratio(self) -> float | None:
        """Returns the value divided by the baseline; None without a baseline, or with one of 0."""
        if self.baseline is None or not self.baseline.value:
            return None
        return self.value / self.baseline.value

    @property
    def met(self) -> bool | None:
        """Tells whether the aim is met; None without an aim."""
        return None if self.aim is None else self.aim.met(self.value)


def percentile(values: Iterable[float], share: float) -> float:
    """Returns the nearest-rank percentile: the smallest value that at least this share (0 to 1) of all does not exceed.

    Raises Rejected for no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise Rejected("a percentile of no values was asked for", reason="NoValues")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def shown(value: float) -> str:
    """Returns a value with three significant digits (`0.0123`, `12.3`), all digits before the point, at most six after it: `1230`."""
    if value == 0 or math.isinf(value) or math.isnan(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"


def table(figures: Sequence[Figure]) -> list[str]:
    """Returns a line a figure: name, value, aim and whether it is met, ratio to the baseline, detail."""
    rows = [("FIGURE", "VALUE", "AIM", "", "BASELINE", "RATIO", "DETAIL")]
    rows += [_row(figure) for figure in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(figure: Figure) -> tuple[str, str, str, str, str, str, str]:
    """Returns the cells of a figure."""
    mark = {True: "met", False: "MISSED", None: ""}[figure.met]
    base, ratio = figure.baseline, figure.ratio
    return (
        figure.name,
        f"{shown(figure.value)} {figure.unit}",
        str(figure.aim) if figure.aim else "",
        mark,
        f"{shown(base.value)} {base.what}" if base else "",
        f"{ratio:.2f}" if ratio is not None else "",
        "; ".join(part for part in (figure.detail, _parts(figure)) if part),
    )


def _parts(figure: Figure) -> str:
    """Returns the parts of a figure as text."""
    return ", ".join(f"{name} {shown(value)}" for name, value in figure.parts.items())


def as_json(figures: Sequence[Figure], setting: dict[str, str]) -> dict[str, object]:
    """Returns the run as one JSON object; `setting` says where and how it was measured."""
    return {"format": FORMAT, "setting": setting, "figures": [_entry(figure) for figure in figures]}


def _entry(figure: Figure) -> dict[str, object]:
    """Returns a figure as a plain object for JSON."""
    base = figure.baseline
    return {
        "name": figure.name,
        "value": figure.value,
        "unit": figure.unit,
        "aim": None if figure.aim is None else {"value": figure.aim.value, "atLeast": figure.aim.at_least, "met": figure.met},
        "baseline": None if base is None else {"what": base.what, "value": base.value, "ratio": figure.ratio},
        "detail": figure.detail,
        "parts": figure.parts,
    }
