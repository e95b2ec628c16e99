"""Finds the node's account for the name in `spec.user`."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lattice.errors import Rejected
from lattice_agent.work.environment import Account

_ENVIRONMENT_FILE = Path("/etc/environment")


def account(name: str, *, min_uid: int, node: str, find: Callable[[str], pwd.struct_passwd] = pwd.getpwnam) -> Account:
    """Looks a login name up in the node's account database, and returns the account with all its groups. May block (LDAP).

    Raises Rejected, naming the node: UserUnknown where the name is not found letter by letter, UserRefused where its uid is 0 or below
    `min_uid`, or is not the agent's own and the agent runs without root.
    """
    if ":" in name:
        why = "an issuer's prefix is stripped only where spec.work.userPrefixes of the LatticeConfig lists it"
        said = f"node {node} knows no user {name!r}: {why}"
        raise Rejected(said, reason="UserUnknown")
    try:
        entry = find(name)
    except (KeyError, ValueError) as error:
        raise Rejected(f"node {node} knows no user {name!r}", reason="UserUnknown") from error
    if entry.pw_name != name:
        why = f"it finds {entry.pw_name!r} by it, and names of the cluster are compared letter by letter"
        raise Rejected(f"node {node} knows no user {name!r}: {why}", reason="UserUnknown")
    if entry.pw_uid == 0:
        raise Rejected(f"node {node} refuses user {name!r}: its uid is 0", reason="UserRefused")
    if entry.pw_uid < min_uid:
        raise Rejected(f"node {node} refuses user {name!r}: its uid {entry.pw_uid} is below {min_uid}", reason="UserRefused")
    if os.geteuid() != 0 and entry.pw_uid != os.geteuid():
        said = f"node {node} cannot start work of {name!r} (uid {entry.pw_uid}): its agent runs without root, as uid {os.geteuid()}"
        raise Rejected(said, reason="UserRefused")
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return Account(name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell)


def group_names(account: Account) -> dict[int, str]:
    """Returns the names of an account's groups by number, without those that the node has no name for. May block (LDAP)."""
    found: dict[int, str] = {}
    for number in dict.fromkeys((account.gid, *account.groups)):
        with suppress(KeyError):
            found[number] = grp.getgrgid(number).gr_name
    return found


def environment_file() -> str:
    """Returns the text of /etc/environment; empty where there is none."""
    try:
        return _ENVIRONMENT_FILE.read_text(errors="replace")
    except OSError:
        return ""
