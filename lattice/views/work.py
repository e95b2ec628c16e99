"""The Allocation as an agent reads it: all fields that decide what is started."""

from __future__ import annotations

from lattice.views.allocation import AllocationStatus, Cancel, Data, Lifecycle, Resources, SoftwareRequirement, Tasks
from lattice.views.meta import Metadata, View


class Output(View, frozen=True):
    """Files for the output of the work, and whether they are truncated or appended to."""

    stdout: str = ""
    stderr: str = ""
    mode: str = "Truncate"


class VariablesFrom(View, frozen=True):
    """One Secret whose keys become environment variables."""

    secret_ref: str = ""
    prefix: str = ""


class Environment(View, frozen=True):
    """The variables, working directory, output files and software of the work."""

    variables: dict[str, str] = {}
    variables_from: tuple[VariablesFrom, ...] = ()
    workdir: str = ""
    output: Output | None = None
    uenv: str = ""
    tools_uenv: str = ""
    view: str = ""
    no_default_view: bool = False
    image: str = ""
    writable: bool = False
    devices: tuple[str, ...] = ()
    require: SoftwareRequirement = SoftwareRequirement()


class WorkSpec(View, frozen=True):
    """The command or script, the user it runs as, and its times."""

    tenant: str = ""
    user: str = ""
    project: str = ""
    vcluster: str = ""
    tags: dict[str, str] = {}
    environment: Environment = Environment()
    entrypoint: str | None = None
    script: str | None = None
    tasks: Tasks = Tasks()
    resources: Resources = Resources()
    data: Data = Data()
    lifecycle: Lifecycle = Lifecycle()
    reservation: str = ""
    cancel: Cancel | None = None

    @property
    def on_head_only(self) -> bool:
        """Tells whether the work runs on the head node alone (decision "where the work runs")."""
        on = self.tasks.on or ("HeadNode" if self.script is not None else "EveryNode")
        return on == "HeadNode"


class Work(View, frozen=True):
    """An Allocation, as an agent reads it."""

    metadata: Metadata
    spec: WorkSpec = WorkSpec()
    status: AllocationStatus = AllocationStatus()
