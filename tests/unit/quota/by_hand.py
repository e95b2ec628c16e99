"""The rules of a tree's document a third time, from their text alone: one resource at a time, walked by recursion, in fractions.

It shares nothing with the room and knows everything that a document can say: keys that stand only at some level, lending
amounts, floors, work of parents, use as a guarantee, groups that do not scale. `strange` makes documents that say it.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

Quota = dict[str, Any]
Answers = dict[str, dict[str, dict[str, int]]]
ROOT = "koordinator-root-quota"


def divided(document: dict[str, Any]) -> Answers:
    """By group: its runtime of what it manages, and its effective min; zeros left out."""
    total, options, quotas = document["total"], document["options"], document["quotas"]
    keys = {*total, *(key for quota in quotas for part in ("min", "max", "request", "used") for key in quota.get(part, {}))}
    found: Answers = {quota["name"]: {"runtime": {}, "effectiveMin": {}} for quota in quotas}
    for key in sorted(keys):
        one = _OneKey(key, total, options, quotas)
        for name, (runtime, least) in one.answers.items():
            if key in one.quota[name]["max"]:
                for field, amount in (("runtime", runtime), ("effectiveMin", least)):
                    if amount:
                        found[name][field][key] = amount
    return found


class _OneKey:
    """The walk of one resource."""

    def __init__(self, key: str, total: dict[str, int], options: dict[str, Any], quotas: list[Quota]) -> None:
        self.key, self.total, self.options = key, total, options
        self.quota = {quota["name"]: quota for quota in quotas}
        self.children: dict[str, list[str]] = {}
        for quota in quotas:
            self.children.setdefault(quota.get("parent") or ROOT, []).append(quota["name"])
        self.limit: dict[str, int] = {}
        self.guaranteed: dict[str, int] = {}
        self.answers: dict[str, tuple[int, int]] = {}
        for name in self.children.get(ROOT, []):
            self._rise(name)
        built_in = sum(options.get(name, {}).get(key, 0) for name in ("sysUsed", "defUsed"))
        self._fall(ROOT, max(0, total.get(key, 0) - built_in))

    def _amount(self, name: str, field: str) -> int:
        quota = self.quota[name]
        if field in ("request", "used") and self.key not in quota["max"] and not quota.get("usedKeepKeys"):
            return 0
        return int(quota.get(field, {}).get(self.key, 0))

    def _rise(self, name: str) -> None:
        quota, asked, held, least = self.quota[name], self._amount(name, "request"), self._amount(name, "used"), self._amount(name, "min")
        for child in self.children.get(name, []):
            self._rise(child)
            asked, held = asked + self.limit[child], held + self.guaranteed[child]
        if not quota.get("allowLent", True) or self.options.get("guarantee"):
            asked = max(asked, least)
        elif self.key in quota.get("lendLimit", {}):
            asked = max(asked, least - quota["lendLimit"][self.key])
        self.limit[name] = min(asked, quota["max"].get(self.key, asked))
        self.guaranteed[name] = max(held, least)

    def _counted(self, parent: str) -> bool:
        if parent == ROOT:
            return self.key in self.total
        above = self.children[self.quota[parent].get("parent") or ROOT]
        return any(self.key in self.quota[name]["max"] or self.limit[name] for name in above)

    def _mins(self, parent: str, available: int) -> dict[str, int]:
        names = self.children.get(parent, [])
        mins = {name: self._amount(name, "min") for name in names}
        if sum(mins.values()) <= available or not self._counted(parent):
            return mins
        able = [name for name in names if self.quota[name].get("scaleMin", self.options.get("scaleMin", False))]
        whole = sum(mins[name] for name in able)
        rest = max(0, available - (sum(mins.values()) - whole))
        return {name: int(Fraction(rest * least, whole)) if name in able and whole else least for name, least in mins.items()}

    def _fall(self, parent: str, available: int) -> None:
        names, mins = sorted(self.children.get(parent, [])), self._mins(parent, available)
        level: dict[str, Fraction] = {}
        for name in names:
            floor = max(mins[name], self._amount(name, "allocatedFloor"), self.guaranteed[name] if self.options.get("guarantee") else 0)
            level[name] = Fraction(min(self.limit[name], floor) if self.quota[name].get("allowLent", True) else floor)
        hungry = {name: self._weight(name) for name in names if self.limit[name] > level[name] and self._weight(name)}
        pool = Fraction(available) - sum(level.values(), Fraction(0))
        thirsty = dict(hungry)
        while pool > 0 and thirsty:
            steps = [(self.limit[name] - level[name]) / weight for name, weight in thirsty.items()]
            step = min(pool / sum(thirsty.values()), *steps)
            for name, weight in thirsty.items():
                level[name] += step * weight
            pool -= step * sum(thirsty.values())
            thirsty = {name: weight for name, weight in thirsty.items() if level[name] < self.limit[name]}
        shares = {name: int(amount) for name, amount in level.items()}
        left = sum(level.values()) - sum(shares.values())
        for name in sorted(hungry, key=lambda each: (shares[each] - level[each], each))[: int(left)]:
            shares[name] += 1
        for name in names:
            self.answers[name] = (shares[name], mins[name])
            self._fall(name, shares[name])

    def _weight(self, name: str) -> int:
        quota = self.quota[name]
        given = quota.get("sharedWeight", {})
        if not given or not (self.options.get("rawWeight") or any(given.values())):
            given = {}
        return int(given.get(self.key, quota["max"].get(self.key, 0))) if self.key in quota["max"] else 0


KEYS: list[str] = ["nodes", "cpu", "memory", "nvidia.com/gpu", "gpu/GH200", "x"]
STEMS = ("A", "a", "z", "é", "B-1", "b_1", "10", "9", "Z.z", "~", "0", "a b", "ß")


def strange(rng: random.Random) -> dict[str, Any]:
    """A document of one to six levels that says anything that can be said, most of it odd."""
    keys, size = rng.sample(KEYS, rng.randint(1, 3)), rng.choice((10, 10, 100, 1000, 10**6, 2**62))
    total = {key: rng.choice((0, rng.randint(0, size), rng.randint(1, size))) for key in keys}
    if rng.random() < 0.1:
        total.pop(rng.choice(keys))
    options: dict[str, Any] = {name: rng.random() < 0.7 for name in ("scaleMin", "guarantee", "rawWeight") if rng.random() < 0.4}
    options |= {name: {key: _amount(rng, size) for key in keys} for name in ("sysUsed", "defUsed") if rng.random() < 0.2}
    quotas: list[Quota] = []
    _grow(rng, quotas, rng.choice((None, "", ROOT)), keys, size, rng.randint(1, 6))
    rng.shuffle(quotas)
    return {"total": total, "options": options, "quotas": quotas}


def _amount(rng: random.Random, most: int) -> int:
    return rng.choice((0, 1, rng.randint(0, max(1, most)), most, min(most * 2, 2**63 - 1)))


def _grow(rng: random.Random, quotas: list[Quota], parent: str | None, keys: list[str], size: int, depth: int) -> None:
    for _ in range(rng.randint(1, 4)):
        if len(quotas) >= 24:
            return
        own = keys if rng.random() < 0.6 else [key for key in keys if rng.random() < 0.8]
        most = {key: _amount(rng, size) for key in own}
        quota: Quota = {"name": f"{rng.choice(STEMS)}{len(quotas)}", "parent": parent, "max": most}
        quota["min"] = {key: rng.randint(0, most[key]) if rng.random() < 0.9 else _amount(rng, size) for key in own if rng.random() < 0.9}
        if rng.random() < 0.5:
            heavy = (0, 0, 1, 1, 2, rng.randint(0, 100), 2**62, 2**63 - 1, rng.randint(1, 2**63 - 1))
            quota["sharedWeight"] = {key: rng.choice(heavy) for key in keys if rng.random() < 0.8}
        if rng.random() < 0.25:
            quota["allowLent"] = False
        if rng.random() < 0.2:
            quota["lendLimit"] = {key: _amount(rng, quota["min"].get(key, 0)) for key in own if rng.random() < 0.7}
        for field, part in (("scaleMin", 0.1), ("usedKeepKeys", 0.05)):
            if rng.random() < part:
                quota[field] = rng.random() < 0.5
        if rng.random() < 0.05:
            quota["allocatedFloor"] = {key: _amount(rng, size) for key in own}
        quota["isParent"] = depth > 1 and rng.random() < 0.6
        for field in ("request", "used"):
            if rng.random() < (0.15 if quota["isParent"] else 0.8):
                quota[field] = {key: _amount(rng, size) for key in keys if rng.random() < 0.9}
        quotas.append(quota)
        if quota["isParent"]:
            _grow(rng, quotas, quota["name"], own if rng.random() < 0.8 else keys, size, depth - 1)
