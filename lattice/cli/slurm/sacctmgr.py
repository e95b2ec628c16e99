"""`sacctmgr`: lists accounts, users and their associations, as far as clients ask; it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from lattice.cli import exits
from lattice.cli.readable import list_readable
from lattice.cli.slurm.columns import PrintedColumn, table
from lattice.cli.slurm.options import Parsed, grammar
from lattice.errors import Rejected
from lattice.kube.resources import TENANTS, VCLUSTERS
from lattice.units import is_digits
from lattice.views import Tenant, VCluster

if TYPE_CHECKING:
    from lattice.cli.console import Console

GRAMMAR: Final = grammar(
    "sacctmgr",
    switches="associations immediate noheader oneliner parsable parsable2 readonly json",
    short="s=associations i=immediate n=noheader o=oneliner p=parsable P=parsable2 r=readonly Q=quiet",
    unserved={"json": "print lines that programs read with --parsable2"},
)
WRONG_USAGE = 1
_CHANGING: Final = frozenset({"add", "create", "delete", "remove", "modify", "update", "load", "archive", "dump"})


class Association(NamedTuple):
    """A user's place in an account, or (user empty) an account or a QOS alone."""

    account: str
    user: str = ""
    qos: str = ""
    partition: str = ""


_FIELDS: Final[dict[str, PrintedColumn[Association]]] = {
    "account": PrintedColumn("Account", lambda one: one.account, 10, True),
    "adminlevel": PrintedColumn("Admin", lambda _: "None", 9, True),
    "cluster": PrintedColumn("Cluster", lambda _: "lattice", 10, True),
    "defaultaccount": PrintedColumn("Def Acct", lambda one: one.account, 10, True),
    "defaultqos": PrintedColumn("Def QOS", lambda _: "", 9, True),
    "description": PrintedColumn("Descr", lambda one: one.account, 20, True),
    "name": PrintedColumn("Name", lambda one: one.qos, 10, True),
    "organization": PrintedColumn("Org", lambda one: one.account, 20, True),
    "partition": PrintedColumn("Partition", lambda one: one.partition, 10, True),
    "priority": PrintedColumn("Priority", lambda one: one.qos or "0", 10, True),
    "qos": PrintedColumn("QOS", lambda one: one.qos, 20, True),
    "user": PrintedColumn("User", lambda one: one.user, 10, True),
}
_USUAL: Final = {
    "account": "account,description,organization", "association": "cluster,account,user,partition,qos,defaultqos",
    "cluster": "cluster", "qos": "name,priority", "user": "user,defaultaccount,adminlevel",
}  # fmt: skip


def run(console: Console, given: Parsed) -> int:
    """Prints what is asked for, and returns DONE. Raises Rejected for a change, and for what Lattice has not."""
    verb = given.words[0].lower() if given.words else ""
    if verb in _CHANGING:
        raise Rejected(f"{verb}: accounts are tenants, which `lattice admin tenant` changes", reason="NotServed")
    if verb not in ("show", "list") or len(given.words) < 2:
        raise Rejected("give what to show: account, association, cluster, qos or user", reason="BadInput")
    what = next((name for name in _USUAL if name.startswith(given.words[1].lower().rstrip("s")[:5])), "")
    if not what:
        raise Rejected(f"{given.words[1]} is not listed here; listed are {', '.join(_USUAL)}", reason="BadInput")
    columns, wanted = _columns(given, what), _filters(given)
    rows = [one for one in _rows(console, what) if all(_passes(one, name, values) for name, values in wanted.items())]
    separator = "|" if given.has("parsable", "parsable2") else ""
    console.say(*table(columns, rows, header=not given.has("noheader"), separator=separator, ends=given.has("parsable")))
    return exits.DONE


def _columns(given: Parsed, what: str) -> list[PrintedColumn[Association]]:
    """Returns the columns of `format=`, else the usual ones; `name%20` sets a width. Raises Rejected for an unknown field."""
    asked = next((word.partition("=")[2] for word in given.words[2:] if word.lower().startswith("format=")), "")
    usual = f"{_USUAL[what]},account" if what == "user" and given.has("associations") else _USUAL[what]
    found = []
    for word in (asked or usual).split(","):
        name, _, width = word.strip().partition("%")
        column = next((_FIELDS[known] for known in sorted(_FIELDS) if name and known.startswith(name.lower())), None)
        if column is None:
            raise Rejected(f'Unknown field "{name}"', reason="BadInput")
        digits = width.lstrip("-")
        found.append(column._replace(width=int(digits), right=not width.startswith("-")) if is_digits(digits) else column)
    return found


def _filters(given: Parsed) -> dict[str, frozenset[str]]:
    """Returns the values that fields must have: `user=alice`, `account=physics`, or a name alone, of what is listed."""
    found: dict[str, frozenset[str]] = {}
    for word in given.words[2:]:
        name, equals, value = word.partition("=")
        if not equals:
            name, value = given.words[1], word
        key = name.lower().rstrip("s")
        if key in ("user", "account", "name"):
            found["name" if key == "qo" else key] = frozenset(value.split(","))
    return found


def _passes(one: Association, name: str, values: frozenset[str]) -> bool:
    """Tells whether an association passes one filter."""
    read: Callable[[Association], str] = _FIELDS[name].text
    return read(one) in values


def _rows(console: Console, what: str) -> list[Association]:
    """Returns what is listed: tenants that the person may read as accounts, himself as their user, classes as QOS."""
    if what == "cluster":
        return [Association("")]
    if what == "qos":
        return [Association("", qos=str(level)) for level in range(11)]
    tenants = [one.metadata.name for one in list_readable(console, TENANTS, type=Tenant)]
    user = console.outside.environ.get("USER") or console.user
    own = [console.tenant or console.namespace, *tenants]
    accounts = list(dict.fromkeys(name for name in own if name))
    if what == "account":
        return [Association(name) for name in accounts]
    partitions = [one.metadata.name for one in list_readable(console, VCLUSTERS, type=VCluster)] if what == "association" else [""]
    return [Association(name, user, "", partition) for name in accounts for partition in partitions or [""]]
