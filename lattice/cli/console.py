"""The surroundings of one run of `lattice`: its flags, its configuration, and a cluster once it is needed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from lattice.cli.cluster import Blocking
from lattice.cli.configuration import Configuration
from lattice.cli.render.text import printable
from lattice.errors import Denied, NotFound, Rejected

if TYPE_CHECKING:
    from lattice.cli.own_writes import OwnWrites
    from lattice.cli.stream import GatewayStream
    from lattice.kube.kubeconfig import ClusterConfig

FORMATS = ("table", "wide", "json", "yaml", "name")


@dataclass(frozen=True)
class Outside:
    """Holds the surroundings of a run; tests pass their own."""

    stdin: BinaryIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]
    directory: str
    """The working directory."""
    columns: int
    """Width of the terminal; 0 when standard output is none."""
    now: Callable[[], float]
    """Seconds since the epoch."""
    sleep: Callable[[float], None]
    configure: Callable[[str | None, str | None], ClusterConfig]
    """Reads the kubeconfig of a path and a context."""
    connect: Callable[[ClusterConfig, Callable[[str], None]], Blocking]
    """Connects to a server, whose warnings go to the function."""
    stream: Callable[[ClusterConfig, str, str, str, bytes | None, float], GatewayStream]
    """Opens a GET on the gateway, or a POST of a body: configuration, URL, CA certificate, path, body, seconds of silence."""
    random: Callable[[], str]
    """Five random characters for the name of an object."""


class Console:
    """Holds one run: `args` are the flags of its verb and the global ones."""

    def __init__(self, args: argparse.Namespace, outside: Outside, configuration: Configuration) -> None:
        self.args = args
        self.outside = outside
        self.configuration = configuration
        self.server_warnings: list[str] = []
        """What the server has warned of in this run, in order."""
        self._changed: dict[str, list[Mapping[str, Any]]] = {}

    # Output

    @property
    def format(self) -> str:
        """Returns table, wide, json, yaml or name."""
        return str(self.args.output or self.configuration.output_format or "table")

    @property
    def color(self) -> bool:
        """Tells whether state words are coloured: on a terminal, unless told otherwise."""
        off = self.args.no_color or "NO_COLOR" in self.outside.environ or not self.configuration.color
        return self.outside.columns > 0 and not off

    def say(self, *lines: str) -> None:
        """Writes the result to standard output; a terminal obeys nothing in it."""
        if lines:
            self.raw("\n".join(map(printable, lines)) + "\n")  # one write: standard output may be unbuffered

    def raw(self, text: str) -> None:
        """Writes a program's output byte for byte, or text that was made printable before."""
        self.outside.stdout.write(text)

    def note(self, *lines: str) -> None:
        """Writes notes to standard error; `-q` silences them."""
        if not self.args.quiet:
            self.complain(*lines)

    def warn(self, sentences: Iterable[str]) -> None:
        """Writes warnings to standard error; `-q` does not silence them."""
        self.complain(*(f"Warning: {sentence}" for sentence in sentences))

    def complain(self, *lines: str) -> None:
        """Writes lines to standard error."""
        for line in lines:
            self.outside.stderr.write(printable(line) + "\n")

    def document(self, obj: Any) -> None:
        """Writes an object as `-o json` or `-o yaml` asks."""
        if self.format == "yaml":
            from lattice.cli.render.yaml_text import dump

            self.raw(dump([obj]))
            return
        import json

        self.say(json.dumps(obj, indent=2, ensure_ascii=False))

    def documents(self, kind: str, items: Sequence[Mapping[str, Any]]) -> None:
        """Writes several objects as a list object."""
        self.document({"apiVersion": "lattice.dev/v1alpha1", "kind": f"{kind}List", "items": list(items)})

    def objects(self, kind: str, items: Sequence[Mapping[str, Any]], *, one: bool) -> None:
        """Writes objects in one of the formats for programs: json, yaml, name."""
        if self.format == "name":
            self.say(*(f"{kind.lower()}.lattice.dev/{item['metadata']['name']}" for item in items))
        elif one and len(items) == 1:
            self.document(_without_managed_fields(items[0]))
        else:
            self.documents(kind, [_without_managed_fields(item) for item in items])

    def changed(self, kind: str, item: Mapping[str, Any], sentence: str) -> None:
        """Reports an object that a verb has just changed: its sentence or its name now, its text with those of the others at the end."""
        if self.format in ("json", "yaml"):
            self._changed.setdefault(kind, []).append(item)
        else:
            self.say(f"{kind.lower()}.lattice.dev/{item['metadata']['name']}" if self.format == "name" else sentence)

    def show_changed(self, *, one: bool) -> None:
        """Writes the texts of the objects given to `changed`, as one document; `one`: a single object was asked for."""
        for kind, items in self._changed.items():
            self.objects(kind, items, one=one)
        self._changed.clear()

    @property
    def is_document(self) -> bool:
        """Tells whether the format is one for programs."""
        return self.format in ("json", "yaml", "name")

    def confirm(self, question: str) -> bool:
        """Tells whether the person agrees; without a terminal, `--yes` is needed."""
        if getattr(self.args, "yes", False):
            return True
        if not self.outside.columns:
            raise Rejected(f"{question} There is no terminal to ask on: confirm with --yes", reason="BadInput")
        self.outside.stderr.write(printable(f"{question} [y/N] "))
        self.outside.stderr.flush()
        return self.outside.stdin.readline().decode(errors="replace").strip().lower() in ("y", "yes")

    # The cluster

    @cached_property
    def cluster_config(self) -> ClusterConfig:
        """Reads the server's address and the person's identity there."""
        return self.outside.configure(self.args.kubeconfig or self.configuration.kubeconfig or None, self.args.context)

    @cached_property
    def cluster(self) -> Blocking:
        """Connects to the API server."""
        cluster = self.outside.connect(self.cluster_config, self._pass_warning)
        if self.own_writes is None:
            return cluster
        from lattice.cli.own_writes import NotingCluster

        return NotingCluster(cluster, self.own_writes)

    @cached_property
    def own_writes(self) -> OwnWrites | None:
        """Returns the versions that this person has written last in this cluster; None where nothing can be kept about them."""
        from lattice.cli.own_files import state_folder
        from lattice.cli.own_writes import OwnWrites

        folder = state_folder(self.outside.environ, self.cluster_config)
        return OwnWrites(folder / "writes", self.outside.now) if folder is not None else None

    def _pass_warning(self, sentence: str) -> None:
        """Shows a warning of the server, and keeps it, so that nothing is warned of twice."""
        self.server_warnings.append(sentence)
        self.warn([sentence])

    @property
    def tenant(self) -> str:
        """Returns the tenant that a flag, the environment or the configuration names; may be empty."""
        return str(self.args.tenant or self.outside.environ.get("LATTICE_TENANT") or self.configuration.default_tenant)

    @cached_property
    def namespace(self) -> str:
        """Returns the namespace of -n, else the tenant's, else the kubeconfig's."""
        if self.args.namespace:
            return str(self.args.namespace)
        return self._namespace_of(self.tenant) if self.tenant else self.cluster_config.namespace or "default"

    def _namespace_of(self, tenant: str) -> str:
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
        """Asks the API server for the person's user name."""
        from lattice.kube.resources import SELF_SUBJECT_REVIEWS

        review = self.cluster.create(SELF_SUBJECT_REVIEWS, {}, type=dict[str, Any])
        return str(review.get("status", {}).get("userInfo", {}).get("username", ""))


def _without_managed_fields(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns an object as kubectl shows it: without the list of who owns which field."""
    metadata = item.get("metadata", {})
    return {**item, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}
