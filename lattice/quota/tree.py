"""The quota tree: an object with one owner, changed only by named events, that divides where something changed.

Demand rises: a group's request, cut at its max, is its parent's demand, and a change stops where the cut hides it.
Runtime falls: each sibling set divides its parent's runtime. A changed set is marked, and divided when somebody below
it is asked for, so that one change and one question cost the path to the root and not the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lattice.errors import Corrupt, NotFound, Rejected
from lattice.quota.division import Claim, divide, scale_mins
from lattice.quota.groups import BUILT_IN, ROOT, Group, Options, Resources


class _Node:
    """A group in its place, with the sums that rise from below and the runtime that falls from above."""

    __slots__ = (
        "below_guaranteed",
        "below_request",
        "below_used",
        "children",
        "effective_min",
        "group",
        "guaranteed",
        "limit",
        "parent",
        "request",
        "runtime",
        "stale",
        "used",
        "weight",
    )

    def __init__(self, group: Group, parent: _Node | None) -> None:
        self.group = group
        self.parent = parent
        self.children: dict[str, _Node] = {}
        self.weight: dict[str, int] = {}
        self.below_request: dict[str, int] = {}
        self.below_guaranteed: dict[str, int] = {}
        self.below_used: dict[str, int] = {}
        self.request: dict[str, int] = {}
        self.limit: dict[str, int] = {}
        self.guaranteed: dict[str, int] = {}
        self.used: dict[str, int] = {}
        self.runtime: dict[str, int] = {}
        self.effective_min: dict[str, int] = {}
        self.stale = True

    def sum_up(self, options: Options) -> None:
        """Compute what rises from here: own demand and the children's, raised to min where min is not lent, cut at max."""
        group, most = self.group, self.group.max
        self.request = _sum(self.below_request, group.booked(group.request))
        if options.guarantee_used:
            self.request = _highest(self.request, group.min)
        elif group.lend_limit or not group.lends:
            self.request = _highest(self.request, {key: group.kept(key) for key in group.min})
        self.limit = {key: min(amount, most.get(key, amount)) for key, amount in self.request.items()}
        used = group.booked(group.used)
        self.used = _sum(self.below_used, used)
        self.guaranteed = _highest(_sum(self.below_guaranteed, used), group.min) if options.guarantee_used else {}

    def depth_first(self) -> Iterator[_Node]:
        """This node and all below it, parents first, children in the order they came."""
        waiting: list[_Node] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children.values()))


class QuotaTree:
    """The groups of one tree, the capacity they share, and what each of them may use now."""

    def __init__(self, total: Resources, options: Options, groups: Iterable[Group] = ()) -> None:
        self.options = options
        self._total = dict(total)
        self._root = _Node(Group(ROOT, parent="", is_parent=True), None)
        self._nodes = {ROOT: self._root}
        self._plant(list(groups))

    # Events

    def total_changed(self, total: Resources) -> None:
        """The capacity of the tree's nodes is another."""
        self._total = dict(total)
        self._root.stale = True

    def built_in_used_changed(self, system: Resources, default: Resources) -> None:
        """The built-in groups use another amount, which is not the tree's to divide."""
        self.options = replace(self.options, system_used=dict(system), default_used=dict(default))
        self._root.stale = True

    def group_added(self, group: Group) -> None:
        """A group appeared; its parent must be there, and its name free."""
        if group.name in self._nodes or group.name in BUILT_IN:
            raise Rejected(f'quota "{group.name}": the name is taken', reason="DuplicateName")
        self._attach(_Node(group, self._node(group.parent)))

    def group_changed(self, group: Group) -> None:
        """Limits, weight, lending or parent of a group are others; it keeps its children."""
        node, parent = self._group_node(group.name), self._node(group.parent)
        if any(above is node for above in _upwards(parent)):
            raise Rejected(f'quota "{group.name}": parent "{group.parent}" is below it, or is itself', reason="ParentCycle")
        self._detach(node)
        node.group, node.parent = group, parent
        self._attach(node)

    def group_removed(self, name: str) -> None:
        """A group went; one that has children stays."""
        node = self._group_node(name)
        if node.children:
            raise Rejected(f'quota "{name}" has {len(node.children)} children: remove or move them first', reason="HasChildren")
        self._detach(node)

    def demand_changed(self, name: str, request: Resources, used: Resources) -> None:
        """The work bound to a group asks for or holds another amount."""
        node = self._group_node(name)
        node.group = replace(node.group, request=request, used=used)
        self._rise(node)

    # Questions

    def runtime(self, name: str) -> dict[str, int]:
        """What a group may use now, of each resource that it manages; of the root, all that there is to divide."""
        node = self._node(name)
        self._refresh(node)
        return dict(node.runtime) if node is self._root else {key: node.runtime.get(key, 0) for key in node.group.max}

    def effective_min(self, name: str) -> dict[str, int]:
        """The part of its min that a group is really guaranteed now; of the root, its runtime."""
        node = self._node(name)
        self._refresh(node)
        if node is self._root:
            return dict(node.runtime)
        return {key: node.effective_min.get(key, 0) for key in node.group.max}

    def request(self, name: str) -> dict[str, int]:
        """What a group and all below it ask for, each level below cut at its max."""
        return dict(self._node(name).request)

    def child_request(self, name: str) -> dict[str, int]:
        """The same before it is raised to the part of min that a group does not lend."""
        node = self._node(name)
        return _sum(node.below_request, node.group.booked(node.group.request))

    def children(self, name: str) -> list[str]:
        """The groups right below one, in the order they came."""
        return list(self._node(name).children)

    def used(self, name: str) -> dict[str, int]:
        """What the work of a group and of all below it holds."""
        return dict(self._node(name).used)

    def guaranteed(self, name: str) -> dict[str, int]:
        """What is not taken back from a group, with `guarantee_used`; else nothing."""
        return dict(self._node(name).guaranteed)

    def group(self, name: str) -> Group:
        """A group as it is configured."""
        return self._group_node(name).group

    def names(self) -> list[str]:
        """All groups, parents first, the root left out."""
        return [node.group.name for node in self._root.depth_first()][1:]

    def depth(self, name: str) -> int:
        """How many groups stand above one; 0 on the first level."""
        return sum(1 for _ in _upwards(self._node(name))) - 2

    def validate(self) -> None:
        """Build the tree again from its groups alone and compare; raises Corrupt on a difference."""
        again = QuotaTree(self._total, self.options, [self._nodes[name].group for name in self.names()])
        for name, node in self._nodes.items():
            other = again._nodes[name]
            for kept in ("request", "limit", "used", "guaranteed", "below_request", "below_guaranteed", "below_used", "weight"):
                if getattr(node, kept) != getattr(other, kept):
                    raise Corrupt(f'quota "{name}": its {kept} differs from what its groups make', reason="QuotaTreeDiffers")
            if (self.runtime(name), self.effective_min(name)) != (again.runtime(name), again.effective_min(name)):
                raise Corrupt(f'quota "{name}": its runtime differs from a division from scratch', reason="QuotaTreeDiffers")

    # Structure

    def _plant(self, groups: list[Group]) -> None:
        """Take all groups in, in whatever order they come; each sum is made once, from below."""
        below: dict[str, list[Group]] = {}
        for group in groups:
            below.setdefault(group.parent, []).append(group)
        waiting = [self._root]
        for parent in waiting:
            for group in below.pop(parent.group.name, ()):
                if group.name in self._nodes or group.name in BUILT_IN:
                    raise Rejected(f'quota "{group.name}": the name is taken', reason="DuplicateName")
                node = self._nodes[group.name] = parent.children[group.name] = _Node(group, parent)
                waiting.append(node)
        if below:
            lost = sorted(group.name for rest in below.values() for group in rest)
            raise Rejected(f"no way leads from {', '.join(lost[:5])} to the root", reason="ParentUnknown")
        for node in reversed(waiting):
            node.weight = node.group.weight(literal=self.options.raw_weight)
            node.sum_up(self.options)
            if node.parent is not None:
                _pass_up(node.parent, node, 1)

    def _attach(self, node: _Node) -> None:
        parent = node.parent
        assert parent is not None  # noqa: S101 - only the root has none, and it is never attached
        self._nodes[node.group.name] = parent.children[node.group.name] = node
        node.weight = node.group.weight(literal=self.options.raw_weight)
        node.stale = True
        node.sum_up(self.options)
        _pass_up(parent, node, 1)
        parent.stale = True
        self._rise(parent)

    def _detach(self, node: _Node) -> None:
        parent = node.parent
        assert parent is not None  # noqa: S101 - as above
        del self._nodes[node.group.name], parent.children[node.group.name]
        _pass_up(parent, node, -1)
        parent.stale = True
        self._rise(parent)

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            raise NotFound(f'quota "{name}" is not in the tree', reason="QuotaUnknown")
        return node

    def _group_node(self, name: str) -> _Node:
        if name == ROOT:
            raise Rejected(f"{ROOT} is the root: its total changes, it does not", reason="BuiltInGroup")
        return self._node(name)

    # Sums rise

    def _rise(self, node: _Node | None) -> None:
        """Make the sums of a node again, and of those above it as far as something changes."""
        while node is not None:
            old = (node.limit, node.guaranteed, node.used)
            parent = node.parent
            if parent is not None:
                _pass_up(parent, node, -1)
            node.sum_up(self.options)
            if parent is not None:
                _pass_up(parent, node, 1)
                parent.stale = parent.stale or (node.limit, node.guaranteed) != old[:2]
            if (node.limit, node.guaranteed, node.used) == old:
                return
            node = parent

    # Runtime falls

    def _refresh(self, node: _Node) -> None:
        """Divide each marked sibling set between the root and a node, from the top."""
        if self._root.stale:
            self._root.runtime = self._divisible()
        for above in list(_upwards(node))[:0:-1]:
            if above.stale:
                self._divide(above)

    def _divisible(self) -> dict[str, int]:
        """The total without what the built-in groups use."""
        system, default = self.options.system_used, self.options.default_used
        return {key: max(0, amount - system.get(key, 0) - default.get(key, 0)) for key, amount in self._total.items()}

    def _divide(self, parent: _Node) -> None:
        """Give each child its effective min and runtime; a child whose runtime is another is marked in turn."""
        children = list(parent.children.values())
        keys: set[str] = set()
        runtimes: list[dict[str, int]] = []
        for child in children:
            keys.update(child.group.max, child.limit)
            runtimes.append({})
            child.effective_min = {}
        for key in keys:
            mins = self._mins(key, parent, children)
            claims = [
                Claim(
                    child.group.name, self._floor(key, least, child), child.limit.get(key, 0), child.weight.get(key, 0), child.group.lends
                )
                for least, child in zip(mins, children, strict=True)
            ]
            shares = divide(parent.runtime.get(key, 0), claims)
            for child, runtime, least, share in zip(children, runtimes, mins, shares, strict=True):
                child.effective_min[key] = least
                runtime[key] = share
        for child, runtime in zip(children, runtimes, strict=True):
            if runtime != child.runtime:
                child.runtime, child.stale = runtime, True
        parent.stale = False

    def _mins(self, key: str, parent: _Node, children: list[_Node]) -> list[int]:
        mins = [child.group.min.get(key, 0) for child in children]
        if key not in parent.runtime:
            return mins  # nobody counts this resource here
        if sum(mins) <= parent.runtime[key]:
            return mins
        scalable = [self.options.scale_min if child.group.scales is None else child.group.scales for child in children]
        return scale_mins(parent.runtime[key], mins, scalable)

    @staticmethod
    def _floor(key: str, least: int, child: _Node) -> int:
        if not child.guaranteed and not child.group.floor:
            return least
        return max(least, child.group.floor.get(key, 0), child.guaranteed.get(key, 0))


def _upwards(node: _Node | None) -> Iterator[_Node]:
    """A node and all above it, the root last."""
    while node is not None:
        yield node
        node = node.parent


def _pass_up(parent: _Node, child: _Node, sign: int) -> None:
    """Add (1) or take away (-1) what a child brings to its parent's sums."""
    for into, amounts in (
        (parent.below_request, child.limit),
        (parent.below_guaranteed, child.guaranteed),
        (parent.below_used, child.used),
    ):
        for key, amount in amounts.items():
            new = into.get(key, 0) + sign * amount
            if new:
                into[key] = new
            else:
                into.pop(key, None)


def _sum(some: Resources, more: Resources) -> dict[str, int]:
    added = dict(some)
    for key, amount in more.items():
        added[key] = added.get(key, 0) + amount
    return added


def _highest(some: Resources, other: Resources) -> dict[str, int]:
    highest = dict(some)
    for key, amount in other.items():
        if amount > highest.get(key, 0):
            highest[key] = amount
    return highest
