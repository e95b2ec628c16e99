"""Converts amounts of a resource: quantities as people write them to whole numbers, and back for status and tables.

The names of resources: `nodes`, `cpu` (millicores inside), `memory` (bytes inside), `gpu` (any model) and `gpu/MODEL`. The Kubernetes
names `nvidia.com/gpu`, or `gpu` of any other vendor, mean `gpu`. Every other name stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Final

from lattice.errors import Rejected
from lattice.units import format_bytes

LARGEST: Final = 2**63 - 1
"""The largest amount, so that every program that reads one can hold it."""
WIDEST: Final = LARGEST // 2000
"""The max of a root that a profile makes, the value that Koordinator sets."""
_NO_BOUND: Final = LARGEST // 5
"""The max of Koordinator's built-in groups; this and any larger amount mean that there is no bound."""
NODES: Final = "nodes"
CPU: Final = "cpu"
MEMORY: Final = "memory"
GPU: Final = "gpu"
KNOWN: Final = (NODES, CPU, MEMORY, GPU)
"""The resources that every tree counts, besides `gpu/MODEL`."""

_QUANTITY: Final = re.compile(r"([+-]?)([0-9]{0,30})(?:\.([0-9]{0,30}))?(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,2}))?", re.ASCII)
_SCALES: Final = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{unit + "i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}


def resource_of(name: str) -> str:
    """Returns the one name of a resource, whatever vendor or spelling people use for it."""
    if name.startswith("gpu/"):
        return gpu_of(name.removeprefix("gpu/"))
    return GPU if name.endswith("/gpu") else name


def gpu_of(model: str) -> str:
    """Returns the name of the resource that counts GPUs of one model, in upper case: `gpu/GH200`."""
    return f"gpu/{model.upper()}"


def is_whole(resource: str) -> bool:
    """Tells whether only whole units of a resource exist."""
    return resource in (NODES, GPU) or resource.startswith("gpu/")


def is_boundless(amount: int) -> bool:
    """Tells whether a max means that there is no bound, in one of Koordinator's ways of writing it."""
    return amount == WIDEST or amount >= _NO_BOUND


def amount_of(resource: str, value: int | str, *, field: str) -> int:
    """Returns an amount in the unit of its resource; raises Rejected naming the field, the value and the limit.

    `resource` is a name that `resource_of` gave. cpu and memory, and resources without a unit of their own, are rounded up as
    Kubernetes rounds them; cpu that fits only in whole cores (Koordinator's "no bound") counts as the largest amount.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        return min(LARGEST, value * 1000) if resource == CPU else value  # what most people write
    number = _number(value, field)
    if number < 0:
        raise _wrong("NegativeAmount", field, f"{field} is {value}, and the least is 0")
    if is_whole(resource) and number.denominator != 1:
        raise _wrong("NotAWholeNumber", field, f"{field} is {value}, and there are only whole {resource}: write {number.__ceil__()}")
    if number > LARGEST:
        raise _wrong("AmountTooLarge", field, f"{field} is {value}, above the largest amount, which is {LARGEST}")
    return min(LARGEST, (number * 1000 if resource == CPU else number).__ceil__())


def amounts_of(given: Mapping[str, int | str], *, field: str) -> dict[str, int]:
    """Returns amounts by resource in their units, of quantities by name; names that mean one resource are added up.

    Raises Rejected naming the field where a quantity does not parse or a sum is too large.
    """
    made: dict[str, int] = {}
    for name, value in given.items():
        resource = resource_of(name)
        made[resource] = made.get(resource, 0) + amount_of(resource, value, field=f"{field}.{name}")
        if made[resource] > LARGEST:
            raise _wrong("AmountTooLarge", field, f"{field}: {resource} is {made[resource]} in sum, above {LARGEST}")
    return made


def quantity(resource: str, amount: int) -> str:
    """Returns an amount as a Kubernetes quantity: `4500m` of cpu, `64Gi` of memory, `12` of any other resource."""
    if resource == CPU:
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    return format_bytes(amount) if resource == MEMORY else str(amount)


def quantities(amounts: Mapping[str, int]) -> dict[str, int | str]:
    """Returns amounts as Kubernetes quantities for a status: nodes and GPUs first, then cpu, memory, and the rest by name."""
    return {resource: quantity(resource, amount) for resource, amount in sorted(amounts.items(), key=_rank)}


def shown(amounts: Mapping[str, int]) -> str:
    """Returns amounts as one short text for people: `8 nodes, 32 gpu, 1Ti memory`; `-` for nothing."""
    return ", ".join(f"{quantity(resource, amount)} {resource}" for resource, amount in sorted(amounts.items(), key=_rank)) or "-"


def _rank(entry: tuple[str, int]) -> tuple[int, str]:
    """Returns a sort key that puts nodes and GPUs, which people look for first, before the rest."""
    order = (NODES, GPU, CPU, MEMORY)
    name = entry[0]
    return (order.index(name) if name in order else 1 if name.startswith("gpu/") else len(order), name)


def _number(value: int | str, field: str) -> Fraction:
    """Returns a quantity of a resource, a whole number or text such as 24, 1500m or 64Gi, as an exact number in its base unit.

    Raises Rejected, which names `field`, for anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or not (match[2] or match[3]):
        raise _wrong("QuantityInvalid", field, f"{field} is {str(value)[:40]!r}, which is no quantity: write for example 24, 1500m or 64Gi")
    sign, whole, fraction, unit, power = match[1], match[2] or "0", match[3] or "", match[4] or "", match[5]
    digits = Fraction(Decimal(f"{sign}{whole}.{fraction or 0}"))
    return digits * (Fraction(10) ** int(power) if power else _SCALES[unit])


def _wrong(reason: str, field: str, sentence: str) -> Rejected:
    """Returns the error Rejected with this reason and sentence, which names the field."""
    return Rejected(sentence, reason=reason, fields=(field,))
