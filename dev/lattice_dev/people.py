"""The people of an instance: uid, home and login entries as its nodes see them, and their kubeconfigs."""

from __future__ import annotations

import getpass
import os
import pwd
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from lattice import errors
from lattice_dev import kubeconfigs
from lattice_dev.pki import Authority, Identity
from lattice_dev.site import LOOPBACK, Site
from lattice_dev.state import Layout, User

FIRST_UID = 20000
ROLES = ("user", "admin", "operator", "system-admin")
NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")


def new_user(
    name: str, tenant: str, role: str, known: Mapping[str, User], *, plain: bool, free: Callable[[int], bool] = lambda _: True
) -> User:
    """Returns the entry of a user, and records it nowhere: a known user keeps the uid, a new one gets the first from 20000 on that nobody
    has.

    Where agents are plain processes (`plain`) a new one gets the uid that the machine knows for this login, if any; `free` says whether no
    other instance has a uid. Raises Rejected for a name that cannot be a login, or an unknown role.
    """
    if not NAME.fullmatch(name):
        raise errors.Rejected(f"{name!r} cannot be a login: 1 to 31 of a-z, 0-9, '_' and '-', a letter first", reason="BadName")
    if role not in ROLES:
        raise errors.Rejected(f"role {role!r} does not exist; roles are {', '.join(ROLES)}", reason="BadRole")
    if name in known:
        return User(known[name].uid, tenant, role)
    machine = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    if plain and name in machine:
        return User(machine[name], tenant, role)
    taken = {*machine.values(), *(user.uid for user in known.values())}
    return User(next(uid for uid in range(FIRST_UID, 60000) if uid not in taken and free(uid)), tenant, role)


def own_name() -> str:
    """Returns the login of the person who runs this program."""
    return getpass.getuser()


def write_logins(where: Layout, users: Mapping[str, User], hosts: Mapping[str, str]) -> None:
    """Writes passwd, group and hosts as the nodes see them, in place: logins of the machine and of the instance, addresses of `hosts`."""
    where.etc.mkdir(mode=0o755, parents=True, exist_ok=True)
    passwd = [f"{name}:x:{user.uid}:{user.uid}:{name}:{where.user_home(name)}:/bin/bash" for name, user in users.items()]
    group = [f"{name}:x:{user.uid}:" for name, user in users.items()]
    _write_in_place(where.etc / "passwd", _without("/etc/passwd", users) + passwd)
    _write_in_place(where.etc / "group", _without("/etc/group", users) + group)
    _write_in_place(where.etc / "hosts", ["127.0.0.1 localhost", *(f"{address} {host}" for host, address in hosts.items())])


def _without(path: str, users: Mapping[str, User]) -> list[str]:
    """Returns the lines of a file of logins without those of these users."""
    return [line for line in Path(path).read_text().splitlines() if line.partition(":")[0] not in users]


def _write_in_place(path: Path, lines: list[str]) -> None:
    """Writes lines into a file, which stays the same inode; nothing where they stand there."""
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:
        # Written with one write into the same inode, because nodes have it bound over their own /etc.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.truncate()


def make_home(where: Layout, name: str, user: User) -> Path:
    """Makes the user's home directory where it is missing, gives it to the user where this process is root, and returns its path."""
    home = where.user_home(name)
    home.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    home.mkdir(mode=0o750, exist_ok=True)
    if os.geteuid() == 0 and home.stat().st_uid != user.uid:
        os.chown(home, user.uid, user.uid)
    return home


def write_kubeconfig(site: Site, name: str, user: User, now: float, *, force: bool = False) -> Path:
    """Writes the user's kubeconfig with a client certificate, issued again with `force`, and returns its path; the role becomes a group.

    On an outside cluster it has that cluster's credentials and acts as the user. `now`: seconds since the epoch.
    """
    groups = (f"lattice:{user.role}",) if user.role in ("operator", "system-admin") else ()
    path = site.where.kubeconfig(name)
    if site.options.kubeconfig:
        outside = kubeconfigs.read_outside(Path(site.options.kubeconfig))
        kubeconfigs.write(path, kubeconfigs.impersonating(outside, name, groups, user.tenant))
        return path
    pair, _ = Authority(site.where.pki, "ca", now).issue(f"user-{name}", Identity(name, groups), force=force)
    kubeconfigs.write(path, kubeconfigs.inline(site.server, site.authority("ca"), pair, name, user.tenant))
    return path


def host_table(site: Site) -> dict[str, str]:
    """Returns the address of each node by its name, for the nodes' /etc/hosts; loopback where they have no network of their own."""
    return {node: site.address(node) for node in site.nodes} if site.network else dict.fromkeys(site.nodes, LOOPBACK)
