"""The cycle again, naively: plain loops over all nodes for every question; no buckets, no memo, nothing kept.

It follows the same rules as `lattice.scheduling.cycle.cycle` and shares with it only the words (work, machine facts, policies) and
the rounding of times. Places for several groups are found by trying every stretch of neighbours and every set of sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.cluster.releases import round_up
from lattice.scheduling.model.hardware import Hardware, Need, NodeFacts, natural
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import IGNORED, REQUIRED, SPREAD, TIGHT, Candidate

Cell = tuple[Hardware, str, str, str, frozenset[int]]
"""What makes nodes interchangeable: hardware, group, switch, fingerprint, the node sets that they lie in."""
Counts = dict[Cell, int]


@dataclass
class Instance:
    """One vcluster's cycle: nodes, when the held ones come free, windows, promises by uid, the queue in order."""

    nodes: list[NodeFacts]
    held: dict[int, float]
    windows: list[ReservationWindow]
    queue: list[Candidate]
    depth: int
    now: float
    quota: int | None = None
    """Nodes that the one tenant may still get."""
    promises: dict[str, tuple[float, float, Counts]] = field(default_factory=dict)
    given: dict[str, float] = field(default_factory=dict)
    """When the reservation of each was given, of all that are planned first."""
    lists: Sequence[int] = ()
    """Node lists that others brought."""


@dataclass
class Answer:
    """Nodes by uid of what was placed; start of the reservation by uid of what was promised one."""

    placed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    promised: dict[str, float] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    rearranged: list[str] = field(default_factory=list)
    """Whose start came earlier since those behind moved."""


def hardware_of(facts: NodeFacts) -> Hardware:
    return Hardware(
        facts.cpus, facts.memory, facts.gpus, facts.features, facts.hollow,
        facts.cxl_memory, facts.gpu_type, facts.gpu_memory, facts.unified, facts.watts, facts.scratch, facts.architecture,
    )  # fmt: skip


def decide_naively(instance: Instance, allowance: float, overrun: float) -> Answer:
    return _Naive(instance, allowance, overrun).run()


class _Naive:
    def __init__(self, instance: Instance, allowance: float, overrun: float) -> None:
        self.instance = instance
        self.allowance, self.overrun, self.now = allowance, overrun, instance.now
        self.held = dict(instance.held)
        self.left = instance.quota if instance.quota is not None else 1 << 30
        self.promises = dict(instance.promises)
        self.sets = {window.nodes for window in instance.windows} | set(instance.lists)
        for candidate in instance.queue:
            self.sets |= {mask for mask in (candidate.need.only, candidate.need.without) if mask}
        self.cells = {facts.index: self.make_cell(facts) for facts in instance.nodes}
        self.orders = {cell: self.make_order(cell) for cell in self.cells.values()}
        self.groups = sorted({facts.group for facts in instance.nodes}, key=lambda name: (natural(name), name))

    def run(self) -> Answer:
        answer = Answer()
        waiting = {candidate.uid for candidate in self.instance.queue}
        self.promises = {uid: promise for uid, promise in self.promises.items() if uid in waiting}
        given = {uid: moment for uid, moment in self.instance.given.items() if uid in waiting}
        queue = self.planned(given)
        answer.order = [candidate.uid for candidate in queue]
        levels = {one.uid: one.preemption_class for one in queue if one.uid in self.promises}
        inherited = set(self.promises)
        dropped: dict[str, tuple[float, float, Counts]] = {}
        if self.overbooked():
            dropped, self.promises, inherited = self.promises, {}, set()
        for candidate in queue:
            uid, level = candidate.uid, candidate.preemption_class
            before = self.promises.pop(uid, None)
            inherited.discard(uid)
            if candidate.held or candidate.minimum > self.left:
                levels.pop(uid, None)
                continue
            lower = {other for other in inherited if levels[other] < level}
            overtakes = bool(lower) and (before is None or self.held_up(candidate, before, lower))
            counts, lifted, nodes = self.start(candidate), {}, list[int]()
            if counts is None and overtakes and self.exist(candidate):
                lifted = {other: self.promises.pop(other) for other in sorted(lower)}
                counts = self.start(candidate)
            promise = None
            if counts is None:
                if before is not None:
                    self.promises |= lifted
                    lifted = {}
                if self.exist(candidate) and (uid in given or len(answer.promised) < self.instance.depth):
                    promise = self.reserve(candidate, before or dropped.get(uid))
                if promise is None:
                    self.promises |= lifted
                    lifted = {}
            if before is not None and promise is before:
                behind = [other for other in queue if other.uid in inherited]
                sooner = self.rearrange(candidate, before, behind)
                if sooner is not None:
                    answer.rearranged.append(uid)
                    promise, nodes = sooner
            inherited -= lifted.keys()
            dropped |= lifted
            levels.pop(uid, None)
            if counts is not None:
                nodes = self.nodes(candidate, counts)
            if nodes:
                self.take(candidate, nodes, answer)
            elif promise is not None:
                levels[uid] = level
                self.promises[uid] = promise
                answer.promised[uid] = promise[0]
        return answer

    def planned(self, given: dict[str, float]) -> list[Candidate]:
        """Who holds a reservation goes before the first that holds none and is of its class or a lower one."""
        queue = list(self.instance.queue)
        ranks = sorted(given, key=lambda uid: given[uid])
        holders = sorted((one for one in queue if one.uid in given), key=lambda one: (-one.preemption_class, ranks.index(one.uid)))
        found: list[Candidate] = []
        for one in queue:
            while holders and holders[0].preemption_class >= one.preemption_class:
                found.append(holders.pop(0))
            if one.uid not in given:
                found.append(one)
        return found + holders

    def overbooked(self) -> bool:
        cells = {cell for _, _, counts in self.promises.values() for cell in counts}
        for cell in cells:
            mine = [(begin, stop, counts.get(cell, 0)) for begin, stop, counts in self.promises.values()]
            for start, _, count in mine:
                point = max(start, self.now)
                if count and self.free_at(cell, point) < sum(n for begin, stop, n in mine if begin <= point < stop):
                    return True
        return False

    # -- questions ----------------------------------------------------------------------------------

    def held_up(self, candidate: Candidate, promise: tuple[float, float, Counts], lower: set[str]) -> bool:
        free = sum(facts.usable and facts.index not in self.held for facts in self.eligible(candidate.need))
        before = min(promise[0], self.now + self.duration(candidate))
        return free >= candidate.minimum and any(self.promises[uid][0] < before for uid in lower if uid in self.promises)

    def duration(self, candidate: Candidate) -> float:
        return NEVER if candidate.walltime is None else self.allowance + candidate.walltime + candidate.grace

    def marks(self, index: int) -> frozenset[int]:
        return frozenset(mask for mask in self.sets if mask >> index & 1)

    def cell(self, facts: NodeFacts) -> Cell:
        return self.cells[facts.index]

    def make_cell(self, facts: NodeFacts) -> Cell:
        return (hardware_of(facts), facts.group, facts.switch, facts.fingerprint, self.marks(facts.index))

    def eligible(self, need: Need) -> list[NodeFacts]:
        return [facts for facts in self.instance.nodes if need.admits_node(facts)]

    def exist(self, candidate: Candidate) -> bool:
        return sum(facts.usable for facts in self.eligible(candidate.need)) >= candidate.minimum

    def closed(self, cell: Cell, start: float, end: float, reservation: str) -> bool:
        mine = False
        for window in self.instance.windows:
            if window.end <= self.now or window.nodes not in cell[4]:
                continue
            if window.name == reservation:
                mine = mine or (window.start <= start and end <= window.end)
            elif window.start < end and start < window.end:
                return True
        return bool(reservation) and not mine

    def free_at(self, cell: Cell, time: float) -> int:
        count = 0
        for facts in self.instance.nodes:
            if facts.usable and self.cell(facts) == cell:
                end = self.held.get(facts.index)
                if end is None:
                    count += 1
                elif end < NEVER and time > self.now:
                    count += round_up(end if end > self.now else self.now + self.overrun, self.now) <= time
        return count

    def capacity(self, cell: Cell, start: float, end: float, reservation: str) -> int:
        if self.closed(cell, start, end, reservation):
            return 0
        mine = [(begin, stop, counts.get(cell, 0)) for begin, stop, counts in self.promises.values()]
        points = [start, *(begin for begin, _, count in mine if count and start < begin < end)]
        return max(0, min(self.free_at(cell, point) - sum(n for begin, stop, n in mine if begin <= point < stop) for point in points))

    def capacities(self, candidate: Candidate, start: float, end: float) -> Counts:
        cells = {self.cell(facts): None for facts in self.eligible(candidate.need)}
        return {cell: self.capacity(cell, start, end, candidate.reservation) for cell in cells}

    # -- decisions ----------------------------------------------------------------------------------

    def start(self, candidate: Candidate) -> Counts | None:
        caps = self.capacities(candidate, self.now, self.now + self.duration(candidate))
        return self.choose(candidate, caps, candidate.minimum, min(candidate.minimum, self.left))

    def rearrange(
        self, candidate: Candidate, before: tuple[float, float, Counts], behind: list[Candidate]
    ) -> tuple[tuple[float, float, Counts], list[int]] | None:
        """An earlier promise for one that found none, where the totals leave one and those behind all start no later elsewhere; with the
        nodes, if it starts now."""
        now, duration, saved = self.now, self.duration(candidate), dict(self.promises)
        starts = [
            time for time in (now, *self.times(candidate)) if time < before[0] and self.left_in_all(candidate, time) >= candidate.minimum
        ]
        cells = {self.cell(facts) for facts in self.eligible(candidate.need)}
        former: dict[str, tuple[float, float, Counts]] = {}
        for other in behind:
            start, stop, counts = self.promises[other.uid]
            fits = sum(counts.values()) == other.minimum and stop >= start + self.duration(other) and start > now
            passes = not other.held and other.minimum <= self.left and self.exist(other)
            if fits and passes and any(cell in cells for cell, n in counts.items() if n):
                former[other.uid] = self.promises[other.uid]
        if not former:
            return None
        for uid in former:
            del self.promises[uid]
        found, nodes = None, list[int]()
        for start in starts:
            end = round_up(start + duration, now)
            some = self.start(candidate) if start == now else self.at(candidate, start)
            if some is not None:
                found = start, end, some
                break
        if found is not None:
            nodes = self.nodes(candidate, found[2]) if found[0] == now else []
            self.promises[candidate.uid] = (found[0], found[1], Counter(self.cells[index] for index in nodes) if nodes else found[2])
            for other in behind:
                if other.uid in former:
                    moved = self.no_later(other, former[other.uid])
                    if moved is None:
                        found = None
                        break
                    self.promises[other.uid] = moved
        if found is None:
            self.promises = saved
            return None
        del self.promises[candidate.uid]
        return found, nodes

    def left_in_all(self, candidate: Candidate, start: float) -> int:
        """The fewest nodes that could work for it and that no promise keeps, from a time on for as long as it lasts; windows aside."""
        cells = {self.cell(facts) for facts in self.eligible(candidate.need)}
        mine = [(begin, stop, sum(n for cell, n in counts.items() if cell in cells)) for begin, stop, counts in self.promises.values()]
        points = [start, *(begin for begin, _, _ in mine if start < begin < start + self.duration(candidate))]
        return min(
            sum(self.free_at(cell, point) for cell in cells) - sum(n for begin, stop, n in mine if begin <= point < stop)
            for point in points
        )

    def at(self, candidate: Candidate, start: float) -> Counts | None:
        end = round_up(start + self.duration(candidate), self.now)
        return self.choose(candidate, self.capacities(candidate, start, end), candidate.minimum, candidate.minimum)

    def no_later(self, candidate: Candidate, former: tuple[float, float, Counts]) -> tuple[float, float, Counts] | None:
        start, stop, counts = former
        if all(self.capacity(cell, start, stop, candidate.reservation) >= n for cell, n in counts.items()):
            return former
        for time in [time for time in self.times(candidate) if time < start] + [start]:
            found = self.at(candidate, time)
            if found is not None:
                return time, round_up(time + self.duration(candidate), self.now), found
        return None

    def nodes(self, candidate: Candidate, counts: Counts) -> list[int]:
        """The nodes to take now for these counts: the lowest of those that differ in their lists only."""
        end = self.now + self.duration(candidate)
        alike: dict[tuple[object, ...], int] = {}
        for cell, count in counts.items():
            alike[cell[:4]] = alike.get(cell[:4], 0) + count
        caps = self.capacities(candidate, self.now, end)
        chosen: list[int] = []
        for kind, count in alike.items():
            offered: list[int] = []
            for cell in caps:
                if cell[:4] == kind:
                    free = [
                        one.index for one in self.instance.nodes if one.usable and self.cell(one) == cell and one.index not in self.held
                    ]
                    offered += sorted(free)[: caps[cell]]
            chosen += sorted(offered)[:count]
        return chosen

    def take(self, candidate: Candidate, chosen: list[int], answer: Answer) -> None:
        for index in chosen:
            self.held[index] = self.now + self.duration(candidate)
        self.left -= len(chosen)
        answer.placed[candidate.uid] = tuple(sorted(chosen))

    def reserve(self, candidate: Candidate, before: tuple[float, float, Counts] | None) -> tuple[float, float, Counts] | None:
        duration, now = self.duration(candidate), self.now
        if before is not None:
            start, stop, counts = before
            kept = all(self.capacity(cell, start, max(stop, start + duration), candidate.reservation) >= n for cell, n in counts.items())
            if start <= now or not kept or stop < start + duration:
                before = None
        for start in self.times(candidate):
            if before is not None and start >= before[0]:
                return before
            end = round_up(start + duration, now)
            found = self.choose(candidate, self.capacities(candidate, start, end), candidate.minimum, candidate.minimum)
            if found is not None:
                return start, end, found
        return before

    def times(self, candidate: Candidate) -> list[float]:
        nodes = {facts.index for facts in self.eligible(candidate.need)}
        times = {
            round_up(end if end > self.now else self.now + self.overrun, self.now)
            for i, end in self.held.items()
            if end < NEVER and i in nodes
        }
        times |= {stop for _, stop, _ in self.promises.values() if stop < NEVER}
        for window in self.instance.windows:
            times |= {window.start, window.end}
        return sorted(time for time in times if self.now < time < NEVER)

    def choose(self, candidate: Candidate, caps: Counts, least: int, most: int) -> Counts | None:
        for nodes in range(min(most, sum(caps.values())), least - 1, -1):
            found = self.choose_exactly(candidate, caps, nodes)
            if found is not None:
                return found
        return None

    def choose_exactly(self, candidate: Candidate, caps: Counts, nodes: int) -> Counts | None:
        found = self.find(candidate, caps, nodes)
        if found is None:
            return None
        classes = sorted({cell[0] for cell in caps}, key=lambda one: (self.pressure(one), one.worth))
        for last in range(1, len(classes)):
            plain = {cell: count for cell, count in caps.items() if cell[0] in classes[:last]}
            less = self.find(candidate, plain, nodes)
            if less is not None and less[1:] == found[1:]:
                found = less
                break
        part = found[0]
        shares = self.spread(part, nodes) if candidate.topology == SPREAD else self.pack(self.by(part, self.rank), nodes, adjacent=True)
        counts: Counts = {}
        for rank, share in shares.items():
            inside = {cell: count for cell, count in part.items() if self.rank(cell) == rank and count}
            order = {name: min(self.order(cell) for cell in inside if cell[2] == name) for name in {cell[2] for cell in inside}}
            switches = sorted(order, key=lambda name: order[name])
            by_switch = self.pack(self.by(inside, {cell: switches.index(cell[2]) for cell in inside}.__getitem__), share, adjacent=False)
            for place, count in by_switch.items():
                cells = [cell for cell in inside if cell[2] == switches[place]]
                for cell in sorted(cells, key=lambda cell: (self.pressure(cell[0]), self.order(cell))):
                    got = min(count, inside[cell])
                    if got:
                        counts[cell] = got
                    count -= got
        return counts

    def find(self, candidate: Candidate, caps: Counts, nodes: int) -> tuple[Counts, int, int] | None:
        """(the part to take from, fingerprints, groups)."""
        if sum(caps.values()) < nodes:
            return None
        conformance = candidate.conformance
        whole = (caps, 1, self.span(caps, nodes))
        if nodes > 1 and conformance != IGNORED:
            alike = {name: {cell: count for cell, count in caps.items() if cell[3] == name} for name in sorted({cell[3] for cell in caps})}
            fits = [(name, part) for name, part in alike.items() if name and sum(part.values()) >= nodes]
            if fits:
                if candidate.topology == SPREAD:
                    widths = [len([n for n in self.by(part, self.rank).values() if n]) for _, part in fits]
                    fits = [fit for fit, width in zip(fits, widths, strict=True) if width >= min(nodes, max(widths))]
                else:
                    fewest = min(self.span(part, nodes) for _, part in fits)
                    fits = [fit for fit in fits if self.span(fit[1], nodes) == fewest]
                name, part = min(fits, key=lambda fit: (self.mean_pressure(candidate, fit[0]) if len(fits) > 1 else 0.0, fit[0]))
                whole = (part, 1, self.span(part, nodes))
            elif conformance == REQUIRED:
                return None
            else:
                merged: Counts = {}
                kinds = 0
                for name, part in sorted(alike.items(), key=lambda entry: (not entry[0], -sum(entry[1].values()), entry[0])):
                    if sum(merged.values()) < nodes and any(part.values()):
                        kinds += 1 if name else nodes - sum(merged.values())
                        merged |= part
                whole = (merged, kinds, self.span(merged, nodes))
        if candidate.topology == TIGHT:
            limit = self.limit(candidate, nodes)
            if whole[2] > limit:
                if conformance == REQUIRED or self.span(caps, nodes) > limit:
                    return None
                return caps, len({cell[3] for cell, count in caps.items() if count}), self.span(caps, nodes)
        return whole

    def limit(self, candidate: Candidate, nodes: int) -> int:
        empty = Counter(self.cell(facts) for facts in self.eligible(candidate.need) if facts.usable)
        if candidate.conformance == REQUIRED and nodes > 1:
            parts = [{cell: n for cell, n in empty.items() if cell[3] == name} for name in {cell[3] for cell in empty} if name]
        else:
            parts = [dict(empty)]
        return min((self.span(part, nodes) for part in parts if sum(part.values()) >= nodes), default=0)

    # -- counting -----------------------------------------------------------------------------------

    def rank(self, cell: Cell) -> int:
        return self.groups.index(cell[1])

    def order(self, cell: Cell) -> tuple[object, ...]:
        return self.orders[cell]

    def make_order(self, cell: Cell) -> tuple[object, ...]:
        hardware, group, switch, fingerprint, marks = cell
        return natural(group), group, fingerprint, natural(switch), switch, hardware.worth, "", tuple(sorted(marks))

    def by(self, part: Counts, key: Callable[[Cell], int]) -> dict[int, int]:
        totals: dict[int, int] = {}
        for cell, count in part.items():
            totals[key(cell)] = totals.get(key(cell), 0) + count
        return totals

    def span(self, part: Counts, nodes: int) -> int:
        sizes = list(self.by(part, self.rank).values())
        return next(count for count in range(1, len(sizes) + 1) if any(sum(some) >= nodes for some in combinations(sizes, count)))

    def pack(self, sizes: dict[int, int], nodes: int, *, adjacent: bool) -> dict[int, int]:
        """The fewest parts; of one the best fit; of several the closest, the largest first, the last best fit."""
        sizes = {name: size for name, size in sizes.items() if size}
        single = sorted((size, name) for name, size in sizes.items() if size >= nodes)
        if single:
            return {single[0][1]: nodes}
        if adjacent:
            fewest = next(n for n in range(1, len(sizes) + 1) if sum(sorted(sizes.values())[-n:]) >= nodes)
            stretches = [
                (last - first, first, last)
                for first in sizes
                for last in sizes
                if first <= last and sum(sorted(size for name, size in sizes.items() if first <= name <= last)[-fewest:]) >= nodes
            ]
            _, first, last = min(stretches)
            sizes = {name: size for name, size in sizes.items() if first <= name <= last}
        shares: dict[int, int] = {}
        while max(sizes.values()) < nodes:
            name = min(sizes, key=lambda one: (-sizes[one], one))
            shares[name] = sizes.pop(name)
            nodes -= shares[name]
        _, name = min((size, name) for name, size in sizes.items() if size >= nodes)
        return shares | {name: nodes}

    def spread(self, part: Counts, nodes: int) -> dict[int, int]:
        """One node to each group in turn, as long as there are any; the turns that are not complete go to the first groups."""
        sizes = {rank: size for rank, size in self.by(part, self.rank).items() if size}
        level = 0
        while sum(min(size, level + 1) for size in sizes.values()) <= nodes and level < max(sizes.values()):
            level += 1
        shares = {rank: min(size, level) for rank, size in sizes.items()}
        for rank in sorted(shares):
            if sum(shares.values()) < nodes and shares[rank] < sizes[rank]:
                shares[rank] += 1
        return {rank: share for rank, share in shares.items() if share}

    def pressure(self, hardware: Hardware) -> float:
        asked: dict[Need, int] = {}
        for candidate in self.instance.queue:
            asked[candidate.need] = asked.get(candidate.need, 0) + candidate.minimum
        total = 0.0
        for need, nodes in asked.items():
            fitting = self.eligible(need)
            if any(hardware_of(facts) == hardware for facts in fitting):
                total += nodes / max(1, sum(facts.usable for facts in fitting))
        return total

    def mean_pressure(self, candidate: Candidate, fingerprint: str) -> float:
        alike = [hardware_of(facts) for facts in self.eligible(candidate.need) if facts.usable and facts.fingerprint == fingerprint]
        sizes = Counter(alike)
        some = sorted(sizes, key=lambda one: one.worth)
        if len({self.pressure(one) for one in some}) <= 1:
            return self.pressure(some[0]) if some else 0.0
        return sum(sizes[one] * self.pressure(one) for one in some) / len(alike)
