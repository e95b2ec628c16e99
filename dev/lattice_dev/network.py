"""The private network of an instance: one bridge, a /24 without an uplink, a network namespace and a veth pair a node."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from lattice import errors

SPACE = IPv4Network("10.213.0.0/16")
FIRST_NODE = 10
MOST_NODES = 240
NOBODY = "02:00:00:00:00:00"
"""A link address that no device has."""


@dataclass(frozen=True)
class NodeLink:
    """One node's end of the network: its namespace file, the veth's name on the host, its address."""

    node: str
    namespace: Path
    device: str
    address: str


@dataclass(frozen=True)
class Network:
    """The bridge and its subnet; names carry the instance's tag, so that instances never collide."""

    tag: str
    subnet: str

    @property
    def bridge(self) -> str:
        """Returns the bridge's name."""
        return f"lat{self.tag}"

    @property
    def gateway(self) -> str:
        """Returns the bridge's own address, where the relay listens."""
        return str(IPv4Network(self.subnet)[1])

    def link(self, node: str, index: int, directory: Path) -> NodeLink:
        """Returns the names and the address of the link of a node by its index, from 0; makes nothing. `directory`: the node's folder."""
        return NodeLink(node, directory / "network", f"lv{self.tag}n{index}", str(IPv4Network(self.subnet)[FIRST_NODE + index]))


def can_make() -> str:
    """Returns why this process may not make namespaces and bridges; empty: it may."""
    if os.geteuid() != 0:
        return "not root: the agents are plain processes of this machine, without a network of their own"
    if not any(Path(directory, "ip").exists() for directory in ("/usr/sbin", "/sbin", "/usr/bin", "/bin")):
        return "no `ip` (iproute2) on this machine: the agents are plain processes without a network of their own"
    return ""


def free_subnet(taken: Iterable[str], claim: Callable[[str], bool]) -> str:
    """Returns a /24 of `SPACE` that overlaps no address or route of this machine (the default one aside) and none of `taken`, and that
    `claim`, asked with `subnet/CIDR`, grants.

    Raises Rejected where there is none.
    """
    used = [IPv4Network(subnet) for subnet in taken]
    addresses = [address for device in _ip_json("addr", "show") for address in device.get("addr_info", []) if address["family"] == "inet"]
    used += [IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False) for address in addresses]
    used += [IPv4Network(r["dst"], strict=False) for r in _ip_json("route", "show") if r["dst"] != "default"]
    for candidate in SPACE.subnets(new_prefix=24):
        if not any(candidate.overlaps(other) for other in used) and claim(f"subnet/{candidate}"):
            return str(candidate)
    raise errors.Rejected(f"all {2**8} subnets of {SPACE} are in use on this machine", reason="NoSubnet")


def ensure(network: Network, links: Sequence[NodeLink]) -> None:
    """Makes what is missing of bridge, namespaces and veth pairs, and sets the bridge up; a second call changes nothing, a link that `cut`
    has set down stays so.

    Raises Retry where a command fails.
    """
    devices = {device["ifname"]: device for device in _ip_json("link", "show")}
    commands: list[str] = []
    if network.bridge not in devices:
        prefix = IPv4Network(network.subnet).prefixlen
        commands += [f"link add {network.bridge} type bridge", f"addr add {network.gateway}/{prefix} dev {network.bridge}"]
    commands.append(f"link set {network.bridge} up")
    fresh = [link for link in links if not _is_namespace(link.namespace) or link.device not in devices]
    for link in fresh:
        _ensure_namespace(link.namespace)
        commands.append(f"link add {link.device} type veth peer name eth0 netns {link.namespace}")
    commands += [f"link set {link.device} master {network.bridge} up" for link in fresh]
    _ip_batch(commands)
    for link in fresh:
        inside = ["link set lo up", f"addr add {link.address}/{IPv4Network(network.subnet).prefixlen} dev eth0", "link set eth0 up"]
        _ip_batch(inside, namespace=link.namespace)


def cut(link: NodeLink) -> None:
    """Sets the node's device on the host down: the node and all others no longer reach each other."""
    _ip_batch([f"link set {link.device} down"])


def mend(link: NodeLink) -> None:
    """Sets the node's device on the host up again, after `cut`."""
    _ip_batch([f"link set {link.device} up"])


def cut_between(one: NodeLink, other: NodeLink) -> None:
    """Makes two nodes send each other's packets to a link address that nobody has, by their neighbour tables; both still reach everybody
    else.

    Raises Retry where a command fails.
    """
    for link, peer in ((one, other), (other, one)):
        _ip_batch([f"neigh replace {peer.address} lladdr {NOBODY} dev eth0 nud permanent"], namespace=link.namespace)


def mend_between(one: NodeLink, other: NodeLink) -> None:
    """Lets two nodes reach each other again; does nothing where they do."""
    for link, peer in ((one, other), (other, one)):
        _ip_batch([f"neigh replace {peer.address} lladdr {NOBODY} dev eth0 nud permanent"], namespace=link.namespace)
        _ip_batch([f"neigh del {peer.address} dev eth0"], namespace=link.namespace)


def inode(namespace: Path) -> int:
    """Returns the inode number of the network namespace mounted on this file; 0 when there is none, or it is the one of this process."""
    if not _is_namespace(namespace):
        return 0
    number = namespace.stat().st_ino
    return 0 if number == Path("/proc/self/ns/net").stat().st_ino else number


def remove_all(tag: str, directory: Path) -> None:
    """Removes every namespace mounted below `directory`, and every device of the tag, whatever was recorded."""
    for target in mounts_below(directory):
        _run(["umount", "--lazy", target])
    names = [device["ifname"] for device in _ip_json("link", "show")]
    _delete_devices([name for name in names if name.startswith(f"lv{tag}n") or name == f"lat{tag}"])


def mounts_below(directory: Path) -> list[str]:
    """Returns the mount points below the directory, the latest first."""
    prefix = f"{directory}/"
    targets = (line.split()[4].replace("\\040", " ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [target for target in targets if target.startswith(prefix)][::-1]


def _delete_devices(names: Sequence[str]) -> None:
    """Deletes network devices; those that do not exist are ignored. Raises Retry where one cannot be deleted."""
    for name in names:
        done = subprocess.run(["ip", "link", "delete", name], capture_output=True, text=True, check=False)
        if done.returncode != 0 and "Cannot find device" not in done.stderr:
            raise errors.Retry(f"ip link delete {name}: {done.stderr.strip()}", reason="NetworkFailed")


def _is_namespace(path: Path) -> bool:
    """Tells whether a file has a network namespace bound to it."""
    try:
        return path.stat().st_dev == Path("/proc/self/ns/net").stat().st_dev
    except FileNotFoundError:
        return False


def _ensure_namespace(path: Path) -> None:
    """Makes a network namespace and binds it to a file, unless one is bound."""
    if not _is_namespace(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        _run(["unshare", f"--net={path}", "true"])


def _ip_json(*arguments: str) -> list[dict[str, Any]]:
    """Returns the answer of `ip` as plain objects; empty for none. Raises Retry where it fails."""
    answer: list[dict[str, Any]] = json.loads(_run(["ip", "-j", "-4" if arguments[0] == "route" else "-d", *arguments]) or "[]")
    return answer


def _ip_batch(commands: Sequence[str], namespace: Path | None = None) -> None:
    """Runs commands of `ip` in order, inside a network namespace if one is given; the first that fails ends it and raises Retry, those
    before it stand.
    """
    prefix = ["nsenter", f"--net={namespace}"] if namespace else []
    _run([*prefix, "ip", "-batch", "-"], "\n".join(commands) + "\n")


def _run(argv: Sequence[str], given: str = "") -> str:
    """Returns what a program prints. Raises Retry where it fails."""
    done = subprocess.run(argv, input=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise errors.Retry(f"{' '.join(argv)}: {done.stderr.strip()}", reason="NetworkFailed")
    return done.stdout
