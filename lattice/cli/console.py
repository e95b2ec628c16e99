"""One run of `lattice`: its flags, configuration and output, and a connection to the cluster once it is needed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TextIO

from lattice.cli.cluster import Blocking
from lattice.cli.configuration import Configuration
from lattice.cli.render.text import printable
from lattice.errors import Denied, LatticeError, NotFound, Rejected

if TYPE_CHECKING:
    from lattice.cli.own_writes import OwnWrites
    from lattice.cli.stream import GatewayStream
    from lattice.kube.kubeconfig import ClusterConfig

FORMATS = ("table", "wide", "json", "yaml", "name")


class Outside(NamedTuple):
    """Everything outside the process that a run uses; tests pass their own."""

    stdin: BinaryIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]
    directory: str
    """The working directory."""
    columns: int
    """Width of the terminal; 0 when standard output is no terminal."""
    now: Callable[[], float]
    """Seconds since the epoch."""
    sleep: Callable[[float], None]
    configure: Callable[[str | None, str | None], ClusterConfig]
    """Reads the kubeconfig of a path (None: as kubectl does) and a context (None: the current one)."""
    connect: Callable[[ClusterConfig, Callable[[str], None]], Blocking]
    """Connects to an API server; the function receives the server's warnings."""
    stream: Callable[[ClusterConfig, str, str, str, bytes | None, float], GatewayStream]
    """Opens a GET on the gateway, or a POST of a body: configuration, URL, CA certificate, path, body, longest silence in seconds."""
    random: Callable[[], str]
    """Returns five random characters for the name of an object."""
    host: str = ""
    """The name of this machine; empty: it is no name that work could be told."""


class Console:
    """One run of a verb: flags in `args`, output in the format asked for, the cluster when first used."""

    def __init__(self, args: argparse.Namespace, outside: Outside, configuration: Configuration) -> None:
        self.args = args
        self.outside = outside
        self.configuration = configuration
        self.server_warnings: list[str] = []
        """The server's warnings in this run, in order."""
        self._changed: dict[str, list[Mapping[str, Any]]] = {}

    # Output

    @property
    def format(self) -> str:
        """Returns the output format: table, wide, json, yaml or name."""
        return str(self.args.output or self.configuration.output_format or "table")

    @property
    def table_width(self) -> int:
        """Returns the columns that tables must fit into; 0, no limit, with -o wide or where standard output is no terminal."""
        return 0 if self.format == "wide" else self.outside.columns

    @property
    def color(self) -> bool:
        """Tells whether state words are coloured: on a terminal, unless flag, NO_COLOR or configuration forbid it."""
        off = self.args.no_color or "NO_COLOR" in self.outside.environ or not self.configuration.color
        return self.outside.columns > 0 and not off

    def say(self, *lines: str) -> None:
        """Writes lines of the result to standard output, with characters that a terminal would obey escaped."""
        if lines:
            self.raw("\n".join(map(printable, lines)) + "\n")  # one write: standard output may be unbuffered

    def raw(self, text: str) -> None:
        """Writes text to standard output as it is: the work's own output, or text that was made printable before."""
        self.outside.stdout.write(text)

    def note(self, *lines: str) -> None:
        """Writes notes to standard error; `-q` silences them."""
        if not self.args.quiet:
            self.complain(*lines)

    def warn(self, sentences: Iterable[str]) -> None:
        """Writes warnings to standard error; `-q` does not silence them."""
        self.complain(*(f"Warning: {sentence}" for sentence in sentences))

    def complain(self, *lines: str) -> None:
        """Writes lines to standard error, also with `-q`, with characters that a terminal would obey escaped."""
        for line in lines:
            self.outside.stderr.write(printable(line) + "\n")

    def document(self, obj: Any) -> None:
        """Writes an object to standard output as YAML where that is the format, else (also for a table) as JSON."""
        if self.format == "yaml":
            from lattice.cli.render.yaml_text import dump

            self.raw(dump([obj]))
            return
        import json

        self.say(json.dumps(obj, indent=2, ensure_ascii=False))

    def documents(self, kind: str, items: Sequence[Mapping[str, Any]]) -> None:
        """Writes several objects of a kind to standard output as one List object, as YAML where that is the format, else as JSON."""
        self.document({"apiVersion": "lattice.dev/v1alpha1", "kind": f"{kind}List", "items": list(items)})

    def objects(self, kind: str, items: Sequence[Mapping[str, Any]], *, one: bool) -> None:
        """Writes objects in a format for programs, names one a line; `one`: a single object was asked for, and is written without a list if
        it is one.

        Managed fields are left out.
        """
        if self.format == "name":
            self.say(*(self._name_of(kind, item) for item in items))
        elif one and len(items) == 1:
            self.document(_without_managed_fields(items[0]))
        else:
            self.documents(kind, [_without_managed_fields(item) for item in items])

    def changed(self, kind: str, item: Mapping[str, Any], sentence: str) -> None:
        """Reports an object that a verb has just changed.

        Its sentence or name is printed now; for json and yaml it is kept until `show_changed` prints all of them.
        """
        if self.format in ("json", "yaml"):
            self._changed.setdefault(kind, []).append(item)
        else:
            self.say(self._name_of(kind, item) if self.format == "name" else sentence)

    def _name_of(self, kind: str, item: Mapping[str, Any]) -> str:
        """Returns an object's name as kubectl prints it; NAMESPACE/NAME where it stands in another namespace than the verb asks in, since
        only that names it here.
        """
        name, where = item["metadata"]["name"], item["metadata"].get("namespace", "")
        try:
            elsewhere = bool(where) and where != self.namespace
        except LatticeError:
            elsewhere = False  # a trial without a cluster
        return f"{where}/{name}" if elsewhere else f"{kind.lower()}.lattice.dev/{name}"

    def show_changed(self, *, one: bool) -> None:
        """Prints the objects kept by `changed` as one document; `one`: a single object was asked for."""
        for kind, items in self._changed.items():
            self.objects(kind, items, one=one)
        self._changed.clear()

    @property
    def is_document(self) -> bool:
        """Tells whether the format is one for programs: json, yaml or name."""
        return self.format in ("json", "yaml", "name")

    def confirm(self, question: str) -> bool:
        """Asks the person on the terminal; returns whether the person agrees, by `y` or `yes`; True without a question for `--yes`.

        Raises Rejected where standard output is no terminal, without `--yes`.
        """
        if getattr(self.args, "yes", False):
            return True
        if not self.outside.columns:
            raise Rejected(f"{question} There is no terminal to ask on: confirm with --yes", reason="BadInput")
        self.outside.stderr.write(printable(f"{question} [y/N] "))
        self.outside.stderr.flush()
        return self.reads_yes()

    def reads_yes(self) -> bool:
        """Tells whether the next line of standard input is `y` or `yes`, in whatever case; False at its end."""
        return self.outside.stdin.readline().decode(errors="replace").strip().lower() in ("y", "yes")

    # The cluster

    @cached_property
    def cluster_config(self) -> ClusterConfig:
        """Returns the server's address and the person's credentials, from the kubeconfig."""
        return self.outside.configure(self.args.kubeconfig or self.configuration.kubeconfig or None, self.args.context)

    @cached_property
    def cluster(self) -> Blocking:
        """Returns the connection to the API server, which notes the person's writes where files of his own can be kept."""
        cluster = self.outside.connect(self.cluster_config, self._pass_warning)
        if self.own_writes is None:
            return cluster
        from lattice.cli.own_writes import NotingCluster

        return NotingCluster(cluster, self.own_writes)

    @cached_property
    def own_writes(self) -> OwnWrites | None:
        """Returns the versions of this person's last writes to the cluster; None where no file of his own can be kept."""
        from lattice.cli.own_files import state_folder
        from lattice.cli.own_writes import OwnWrites

        folder = state_folder(self.outside.environ, self.cluster_config)
        return OwnWrites(folder / "writes", self.outside.now) if folder is not None else None

    def _pass_warning(self, sentence: str) -> None:
        """Prints a warning of the server and keeps it, so that no verb repeats it in its own words."""
        self.server_warnings.append(sentence)
        self.warn([sentence])

    @property
    def tenant(self) -> str:
        """Returns the tenant of a flag, the environment or the configuration; empty: none names one."""
        return str(self.args.tenant or self.outside.environ.get("LATTICE_TENANT") or self.configuration.default_tenant)

    @cached_property
    def namespace(self) -> str:
        """Returns the namespace of -n, else the tenant's, else the kubeconfig's, else `default`; raises NotFound for an unknown tenant.

        Of a tenant with several namespaces, the kubeconfig's if it is one of them, else the first.
        """
        if self.args.namespace:
            return str(self.args.namespace)
        return self._namespace_of(self.tenant) if self.tenant else self.cluster_config.namespace or "default"

    def _namespace_of(self, tenant: str) -> str:
        """Returns the namespace that is meant with a tenant: the kubeconfig's if it is one of the tenant's, else the tenant's first, else
        the tenant's name.

        Raises NotFound for an unknown tenant; one that may not be read counts as a namespace.
        """
        from lattice.kube.resources import TENANTS
        from lattice.views import Tenant

        cluster = self.cluster  # no kubeconfig is no missing tenant
        try:
            names = cluster.get(TENANTS, tenant, type=Tenant).spec.namespaces
        except Denied:
            return tenant
        except NotFound as error:
            raise NotFound(f'tenant "{tenant}" not found', reason="TenantUnknown") from error
        ours = self.cluster_config.namespace
        return ours if ours in names else (names[0] if names else tenant)

    @cached_property
    def user(self) -> str:
        """Returns the person's user name, as the API server knows it."""
        from lattice.kube.resources import SELF_SUBJECT_REVIEWS

        review = self.cluster.create(SELF_SUBJECT_REVIEWS, {}, type=dict[str, Any])
        return str(review.get("status", {}).get("userInfo", {}).get("username", ""))


def _without_managed_fields(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns an object as kubectl shows it: without the list of who owns which field."""
    metadata = item.get("metadata", {})
    return {**item, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}
