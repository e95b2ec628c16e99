"""The Allocation as an agent reads it: all fields that decide what is started."""

from __future__ import annotations

from lattice.views.allocation import AllocationStatus, Cancel, Data, Dependency, Lifecycle, Resources, SoftwareRequirement, Tasks
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


class ScriptFrom(View, frozen=True):
    """The ConfigMap with the script of the work, and its digest."""

    config_map: str = ""
    digest: str = ""


class Environment(View, frozen=True):
    """The variables, working directory, output files and software of the work."""

    variables: dict[str, str] = {}
    variables_from: tuple[VariablesFrom, ...] = ()
    workdir: str = ""
    slurm_variables: bool = False
    submit_host: str = ""
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
    script_from: ScriptFrom | None = None
    script_arguments: tuple[str, ...] = ()
    tasks: Tasks = Tasks()
    resources: Resources = Resources()
    data: Data = Data()
    lifecycle: Lifecycle = Lifecycle()
    reservation: str = ""
    depends_on: tuple[Dependency, ...] = ()
    depends_on_mode: str = "All"
    on_unmet: str = "Cancel"
    hold: bool = False
    cancel: Cancel | None = None
    requeue_attempt: int = 0
    sensitive: bool = False

    @property
    def is_script(self) -> bool:
        """Tells whether the work is a script, of the spec or of a ConfigMap."""
        return self.script is not None or self.script_from is not None

    @property
    def on_head_only(self) -> bool:
        """Tells whether the first process of the work runs on the head node alone (decision "where the work runs")."""
        on = self.tasks.on or ("HeadNode" if self.is_script else "EveryNode")
        return on == "HeadNode" or self.is_launched

    @property
    def is_launched(self) -> bool:
        """Tells whether a launch starts the entrypoint: `spec.tasks.total` tasks over all nodes, with PMI, as `srun` does."""
        return self.entrypoint is not None and self.tasks.total is not None and self.tasks.on != "HeadNode"


class Work(View, frozen=True):
    """An Allocation, as an agent reads it."""

    metadata: Metadata
    spec: WorkSpec = WorkSpec()
    status: AllocationStatus = AllocationStatus()
