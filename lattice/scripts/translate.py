"""Makes the Allocation of the options that a request was given (book, "Slurm Migration")."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from lattice.errors import NotFound, Rejected
from lattice.models.forms import FORMS
from lattice.scripts.asked import SOURCES, Asked, Given, SiteFacts, Submitter, VClusterFacts, one_of, read_number
from lattice.scripts.begin import read_begin
from lattice.scripts.commands import missing_from
from lattice.scripts.constraints import read_constraint, read_gpus, read_gres, read_quantity
from lattice.scripts.dependencies import read_dependencies
from lattice.scripts.directives import Script
from lattice.scripts.early_signal import read_early_signal
from lattice.scripts.tasks import tasks_of
from lattice.software.containers import parse_container
from lattice.software.references import UenvReference, parse_references, parse_views
from lattice.units import (
    expand_nodes,
    format_duration,
    format_time,
    is_digits,
    parse_duration,
    parse_node_count,
    parse_slurm_time,
    parse_time,
)

T = TypeVar("T")
API_VERSION = "lattice.dev/v1alpha1"
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|PRIVATE_KEY", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SECRET_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_PATTERN = re.compile(r"%(.)")
_SERVED_PATTERNS = frozenset("jxuAaNnJts%")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A valid name of a tenant or vcluster."""
_INTENTS = ("Train", "Simulate", "Serve", "Interactive", "Preprocess")


@dataclass(frozen=True)
class Translation:
    """The result of a translation: the Allocation, still without a name, warnings on what is not honoured, notes on what was chosen."""

    allocation: dict[str, Any]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass
class _Draft:
    """The input of one translation, with the warnings and notes found so far."""

    asked: Asked
    submitter: Submitter
    site: SiteFacts
    script: Script | None
    warnings: list[str]
    notes: list[str]

    @property
    def slurm_env(self) -> bool | None:
        """Tells whether the work has Slurm's variables; None: the site was not asked."""
        if self.site.slurm_env_of_scripts:
            return self.script is not None and self.script.is_slurm
        return self.site.slurm_env

    def value(self, slot: str) -> str | None:
        """Returns the value given for a slot without blanks around it, empty for an option without a value; None where it is not given."""
        given = self.asked.get(slot)
        return None if given is None else (given.value or "").strip()


def translate(asked: Asked, *, script: Script | None, command: str | None, submitter: Submitter, site: SiteFacts) -> Translation:
    """Returns the Allocation of a script or (`script` None) of a `command` line, with warnings (the script's own first) and notes. An empty
    value leaves its field out.

    Raises Rejected, with the line, for an option that cannot be expressed, and NotFound for an account that means no tenant.
    """
    draft = _Draft(asked, submitter, site, script, list(script.warnings) if script else [], [])
    spec: dict[str, Any] = _identity(draft)
    spec["environment"] = _environment(draft)
    if script is not None:
        spec["script"] = script.text
    else:
        spec["entrypoint"] = command
    spec["resources"] = _resources(draft, spec.get("vcluster", ""))
    if "scratch" in asked:
        spec["data"] = {"scratchPerNode": _checked(asked["scratch"], read_quantity)}
    spec["tasks"], ignored = tasks_of(asked, spec["resources"]["nodes"], is_script=script is not None)
    draft.warnings += ignored
    spec["lifecycle"] = _lifecycle(draft, spec.get("vcluster", ""))
    spec |= read_dependencies(asked)
    spec |= {slot: True for slot in ("hold", "sensitive") if slot in asked}
    spec = {key: value for key, value in spec.items() if value not in ({}, None, "")}
    _say_where(draft, spec)
    if script is not None:
        draft.warnings += missing_from(script.text, slurm_env=draft.slurm_env)
    document = {"apiVersion": API_VERSION, "kind": "Allocation", "metadata": {}, "spec": spec}
    return Translation(document, tuple(draft.warnings), tuple(draft.notes))


def _identity(draft: _Draft) -> dict[str, Any]:
    """Returns the parts of a spec that say who asks, for what and where: user, tenant, project, group of the quota tree, vcluster,
    Reservation, tags.

    Warns of an account that is no tenant; raises Rejected for a value that is not allowed.
    """
    spec: dict[str, Any] = {slot: draft.value(slot) for slot in ("user", "project", "quota") if draft.value(slot)}
    tenant = tenant_of(draft.asked, draft.site)
    if tenant:
        spec["tenant"] = tenant
    elif draft.value("tenant"):
        draft.warnings.append(_left_out(draft.asked["tenant"], "account", "tenant"))
    if "reservation" in draft.asked:
        spec["reservation"] = _reservation(draft.asked["reservation"])
    vcluster = _vcluster(draft)
    if vcluster:
        spec["vcluster"] = vcluster
    tags = {"name": draft.value("name")} if draft.value("name") else {}
    if "name" in draft.asked and not tags:
        raise draft.asked["name"].rejected("a job name is not empty", "BadOption")
    given = draft.asked.get("tag")
    for pair in filter(None, (draft.value("tag") or "").split(",")):
        key, equals, value = pair.partition("=")
        if given is not None and (not equals or not key):
            raise given.rejected(f"{pair!r} is not a tag: write KEY=VALUE")
        tags[key] = value
    if tags:
        spec["tags"] = tags
    intent = draft.value("intent")
    if intent:
        spec["intent"] = one_of(draft.asked["intent"], intent, {word.lower(): word for word in _INTENTS})
    return spec


def _reservation(given: Given) -> str:
    """Returns the name of one Reservation. Raises Rejected for an empty one, or several."""
    name = (given.value or "").strip()
    if not name or "," in name:
        raise given.rejected("name one reservation: an allocation runs in one")
    return name


def tenant_of(asked: Asked, site: SiteFacts) -> str:
    """Returns the tenant asked for, by its name or a Slurm account; empty: none was, or it is an account that is no name of a tenant and
    the accounts are not known.

    Raises NotFound for an account that means no tenant, Rejected for a name that cannot be one where no cluster was asked.
    """
    given = asked.get("tenant")
    value = (given.value or "").strip() if given is not None else ""
    if given is None or not value:
        return ""
    if given.option != "account":
        return _name(given, value, "tenant", site)
    if site.accounts is None:
        return value if _NAME.fullmatch(value) else ""
    if value not in site.accounts:
        known = ", ".join(sorted(set(site.accounts.values()))[:10])
        sentence = f'account "{value}" means no tenant of yours ({known}): leave it out for your own, or give -t TENANT, which is stronger'
        raise NotFound(
            f"{given.place}: {sentence}. Hint: the operators can add it to spec.accountNames of a tenant",
            reason="TenantUnknown",
        )
    return site.accounts[value]


def _name(given: Given, value: str, what: str, site: SiteFacts) -> str:
    """Returns the value; where no cluster was asked, raises Rejected for a value that cannot be an object's name."""
    if site.vclusters is None and not _NAME.fullmatch(value):
        raise given.rejected(f"{value!r} cannot be the name of a {what}: small letters, digits and '-' inside, at most 63")
    return value


def _left_out(given: Given, what: str, field: str) -> str:
    """Returns the sentence for a name of Slurm's whose meaning only the cluster knows."""
    return f"{given.place}: no cluster was asked what {what} {given.value} means: spec.{field} is left out here"


def _vcluster(draft: _Draft) -> str:
    """Returns the vcluster asked for by name, unchecked if a cluster was asked, or the first that one of the partitions (with commas)
    means; empty where none is given.

    Raises Rejected for partitions of which none means a vcluster; where the vclusters are not known, warns and takes a partition's name as
    it is, or leaves it out where it can be no name.
    """
    given = draft.asked.get("vcluster")
    if given is None or not given.value:
        return ""
    known = draft.site.vclusters
    if given.option != "partition":
        return _name(given, given.value.strip(), "vcluster", draft.site)
    if known is None and not _NAME.fullmatch(given.value):
        draft.warnings.append(_left_out(given, "partition", "vcluster"))
        return ""
    if known is None:
        draft.warnings.append(f"partition {given.value} was not looked up: no cluster was asked, it is taken for a vcluster's name")
        return given.value
    for wanted in given.value.split(","):
        for name, queue in known.items():
            if wanted == name or wanted in queue.partitions:
                return name
    raise Rejected(
        f'{given.place}: vCluster "{given.value}" not found. Available: {", ".join(sorted(known)) or "none"}',
        reason="VClusterNotFound",
        fields=(given.option,),
    )


# Environment


def _environment(draft: _Draft) -> dict[str, Any]:
    """Returns software, variables, working directory and output files of the work. Raises Rejected for a value that is not allowed."""
    environment: dict[str, Any] = _software(draft)
    variables = _variables(draft)
    if variables:
        environment["variables"] = variables
    if "variables-from" in draft.asked:
        environment["variablesFrom"] = _variables_from(draft.asked["variables-from"])
    workdir = _workdir(draft)
    if workdir:
        environment["workdir"] = workdir
    output = _output(draft)
    if output:
        environment["output"] = output
    if draft.submitter.host:
        environment["submitHost"] = draft.submitter.host
    return environment


def _software(draft: _Draft) -> dict[str, Any]:
    """Returns images and views; files that are named from the working directory are named from the root. Raises Rejected for options of the
    other kind, and for what does not parse.

    Of an OCI image and software environments the one of the stronger source counts. Raises Rejected for both of the same source, and for
    an empty value.
    """
    for slot in ("image", "uenv", "tools-uenv", "view", "device"):
        if slot in draft.asked and not draft.value(slot):
            raise draft.asked[slot].rejected("the value is empty: is a variable unset? Leave the option out to run without it")
    image, uenvs = draft.asked.get("image"), [draft.asked[slot] for slot in ("uenv", "tools-uenv") if draft.value(slot)]
    if image is not None and all(_is_stronger(image, other) for other in uenvs):
        return _container(draft, image)
    found: dict[str, Any] = {}
    for slot, name in (("uenv", "uenv"), ("tools-uenv", "toolsUenv")):
        if draft.value(slot):
            given = draft.asked[slot]
            found[name] = ",".join(_image(reference, draft) for reference in _checked(given, lambda one: parse_references(one.value or "")))
    for slot in ("view", "no-default-view"):
        if slot in draft.asked and not found:
            raise draft.asked[slot].rejected("it is about a software environment: give --uenv too", "BadOption")
    for slot in ("writable", "device"):
        if slot in draft.asked:
            raise draft.asked[slot].rejected("it is about OCI images: give --image too", "BadOption")
    if draft.value("view"):
        _checked(draft.asked["view"], lambda one: parse_views(one.value or ""))
        found["view"] = draft.value("view")
    if "no-default-view" in draft.asked:
        found["noDefaultView"] = True
    return found


def _is_stronger(image: Given, uenv: Given) -> bool:
    """Tells whether an OCI image was asked for by a stronger source than a software environment; raises Rejected where by the same."""
    if image.source == uenv.source:
        beside = "" if uenv.place == image.place else f" ({uenv.place})"
        raise image.rejected(f"an OCI image and a software environment{beside} are asked for: give one of them", "ImageInvalid")
    return SOURCES.index(image.source) > SOURCES.index(uenv.source)


def _container(draft: _Draft, image: Given) -> dict[str, Any]:
    """Returns the part of the spec with the OCI image asked for, whether it is writable, and its devices; `#` behind a registry counts as
    `/`.

    Raises Rejected for an image that does not parse, or options of software environments from the same source.
    """
    for slot in ("view", "no-default-view"):
        if slot in draft.asked and draft.asked[slot].source == image.source:
            raise draft.asked[slot].rejected("it is about a software environment, and the work runs in an OCI image", "BadOption")
    found: dict[str, Any] = {"image": _checked(image, lambda one: parse_container((one.value or "").strip().replace("#", "/", 1))).text}
    if "writable" in draft.asked:
        found["writable"] = True
    if devices := [name.strip() for name in (draft.value("device") or "").split(",") if name.strip()]:
        found["devices"] = [_device(name, draft.asked["device"]) for name in dict.fromkeys(devices)]
    return found


def _device(name: str, given: Given) -> str:
    """Returns a device's CDI name as it is; raises Rejected where it is none."""
    form = FORMS["device"]
    if not form.matches(name):
        raise given.rejected(f"{form.words(name)}. Hint: {form.next_step}")
    return name


def _image(reference: UenvReference, draft: _Draft) -> str:
    """Returns an image's reference as text, a relative path below the submitter's folder, with its mount point."""
    text, here = reference.text, draft.submitter.directory
    if text.startswith(".") and here:
        text = f"{here.rstrip('/')}/{text.removeprefix('./')}"
    return f"{text}:{reference.mount}" if reference.mount else text


def _workdir(draft: _Draft) -> str:
    """Returns the working directory, a relative one below the submitter's, whose own it is where none is asked for; as it is, maybe empty,
    where that is not known.
    """
    wanted, here = draft.value("workdir") or "", draft.submitter.directory
    if wanted.startswith("/") or not here:
        return wanted
    return f"{here.rstrip('/')}/{wanted.removeprefix('./')}" if wanted not in ("", ".") else here


def _output(draft: _Draft) -> dict[str, Any]:
    """Returns the output files asked for; a script with `#SBATCH` lines has slurm-%j.out unless it names one.

    Warns of patterns that are not filled in; raises Rejected for an unknown mode.
    """
    output: dict[str, Any] = {}
    for slot in ("stdout", "stderr"):
        value = draft.value(slot)
        if value is None:
            continue
        output[slot] = value
        for letter in dict.fromkeys(_PATTERN.findall(value)):
            if letter not in _SERVED_PATTERNS:
                served = " ".join(f"%{word}" for word in "jxuAaNnJts%")
                draft.warnings.append(f"the pattern %{letter} in {value} is not filled in (served: {served})")
    if draft.script is not None and draft.script.is_slurm:
        output.setdefault("stdout", "slurm-%j.out")
    mode = draft.value("open-mode")
    if mode:
        output["mode"] = one_of(
            draft.asked["open-mode"], mode, {"append": "Append", "a": "Append", "truncate": "Truncate", "t": "Truncate", "w": "Truncate"}
        )
    return output


def _variables_from(given: Given) -> list[dict[str, str]]:
    """Returns `SECRET[:PREFIX],…` as entries of `variablesFrom`. Raises Rejected for none, or a wrong name."""
    entries: list[dict[str, str]] = []
    for part in filter(None, (piece.strip() for piece in (given.value or "").split(","))):
        secret, _, prefix = part.partition(":")
        if not _SECRET_NAME.fullmatch(secret):
            raise given.rejected(f"{secret!r} is not the name of a Secret; write SECRET or SECRET:PREFIX, several with commas")
        if prefix and not _VARIABLE.fullmatch(prefix):
            raise given.rejected(f"{prefix!r} cannot begin the name of a variable")
        entries.append({"secretRef": secret} | ({"prefix": prefix} if prefix else {}))
    if not entries:
        raise given.rejected("no Secret is named; write SECRET or SECRET:PREFIX, several with commas")
    return entries


def _variables(draft: _Draft) -> dict[str, str]:
    """Returns the variables to export, with the submitter's values where none is given; warns of ALL, and of names that are not set, which
    are ignored; NONE is passed over.

    Raises Rejected for a wrong name, a NUL, or a name that looks like a secret.
    """
    given = draft.asked.get("export")
    variables: dict[str, str] = {}
    if given is None:
        return variables
    for part in filter(None, (piece.strip() for piece in (given.value or "").split(","))):
        name, equals, value = part.partition("=")
        if not equals and name.upper() in ("NONE", "NIL"):
            continue
        if not equals and name.upper() == "ALL":
            draft.warnings.append(
                f"--export=ALL ignored ({given.place}: the work gets a login environment; name what it needs: --export=NAME,NAME=VALUE)"
            )
            continue
        if not _VARIABLE.fullmatch(name):
            raise given.rejected(f"{name!r} is not the name of a variable")
        if _SECRET.search(name):
            raise given.rejected(
                f"{name} looks like a secret and would be readable in the allocation; keep it in a file, or in a Secret (--variables-from)",
                "SecretRefused",
            )
        if not equals and name not in draft.submitter.variables:
            draft.warnings.append(f"--export={name} ignored ({given.place}: it is not set here)")
            continue
        text = value if equals else draft.submitter.variables[name]
        if "\0" in text:
            raise given.rejected(f"the value of {name} contains a NUL")
        variables[name] = text
    return variables


# Resources


def _resources(draft: _Draft, vcluster: str) -> dict[str, Any]:
    """Returns nodes, resources of each and constraints asked for. Raises Rejected where a value is wrong or two contradict each other."""
    resources: dict[str, Any] = {}
    constraints: dict[str, Any] = {}
    if "constraint" in draft.asked:
        resources, constraints = read_constraint(draft.asked["constraint"])
    if "topology" in draft.asked:
        words = {"any": "Any", "tight": "Tight", "spread": "Spread"}
        hint = one_of(draft.asked["topology"], draft.value("topology") or "", words)
        _agree(draft, draft.asked["topology"], constraints, "topology", hint)
    for slot, name in (("nodelist", "nodeList"), ("exclude", "excludeNodes")):
        if draft.value(slot):
            _node_set(draft.asked[slot])
            constraints[name] = draft.value(slot)
    nodes = _nodes(draft, vcluster)
    _gpus(draft, nodes, resources, constraints)
    if "cpus" in draft.asked:
        _agree(draft, draft.asked["cpus"], resources, "cpus", read_number(draft.asked["cpus"]))
    if "memory" in draft.asked:
        _agree(draft, draft.asked["memory"], resources, "memory", _checked(draft.asked["memory"], read_quantity))
    if constraints:
        resources["constraints"] = constraints
    return {"nodes": nodes, **resources}


def _nodes(draft: _Draft, vcluster: str) -> int | str:
    """Returns how many nodes are asked for, a number or a range: by option, else by tasks, else by the list of nodes (1 without).

    Raises Rejected where that list has fewer than the least.
    """
    asked = draft.asked
    listed = len(_node_set(asked["nodelist"])) if draft.value("nodelist") else 0
    if "nodes" in asked:
        low, high = _checked(asked["nodes"], lambda given: parse_node_count((given.value or "").strip()))
        nodes: int | str = low if low == high else f"{low}-{high}"
    elif "ntasks" in asked:
        nodes = low = _nodes_of_tasks(draft, vcluster)
    else:
        nodes = low = max(1, listed)
    if listed and low > listed:
        raise asked["nodelist"].rejected(
            f"it names {listed} nodes and {low} are asked for; only the named nodes are used: name more, or ask for {listed}",
            "NodeListTooShort",
        )
    return nodes


def _nodes_of_tasks(draft: _Draft, vcluster: str) -> int:
    """Returns the number of nodes for `--ntasks` without `--nodes` (decision "--ntasks=N alone"), and notes how it was computed; 1 for one
    task.

    Raises Rejected where the CPUs of the vcluster's nodes are needed and not known.
    """
    given = draft.asked["ntasks"]
    tasks = read_number(given)
    if "ntasks-per-node" in draft.asked:
        each = read_number(draft.asked["ntasks-per-node"])
        nodes = math.ceil(tasks / each)
        draft.notes.append(f"{tasks} tasks at {each} on a node: {_nodes_word(nodes)}")
        return nodes
    width = read_number(draft.asked["cpus-per-task"]) if "cpus-per-task" in draft.asked else 1
    if tasks == 1:
        return 1
    queue = _queue(draft, vcluster)
    if queue is None or not queue.smallest_cpus:
        raise given.rejected(
            "the number of nodes depends on the CPUs of the vcluster's smallest node, not known here; "
            "add --nodes or --ntasks-per-node, or ask the cluster (--dry-run=server does, and submits nothing)",
            "CoresUnknown",
        )
    nodes = math.ceil(tasks / (queue.smallest_cpus // width)) if width <= queue.smallest_cpus else tasks  # no task has CPUs of two nodes
    cpus = "CPU" if width == 1 else "CPUs"
    draft.notes.append(f"{tasks} tasks of {width} {cpus} on nodes of {queue.smallest_cpus} CPUs: {_nodes_word(nodes)}")
    return nodes


def _nodes_word(count: int) -> str:
    """Returns a number of nodes in words, such as `1 node` or `3 nodes`."""
    return "1 node" if count == 1 else f"{count} nodes"


def _queue(draft: _Draft, vcluster: str) -> VClusterFacts | None:
    """Returns the facts of the vcluster that work goes to, the only or the default one where none is named; None where it is not known."""
    known = draft.site.vclusters or {}
    name = vcluster or draft.site.default_vcluster or (next(iter(known)) if len(known) == 1 else "")
    return known.get(name)


def _gpus(draft: _Draft, nodes: int | str, resources: dict[str, Any], constraints: dict[str, Any]) -> None:
    """Puts number and model of each node's GPUs into `resources` and `constraints`, from options by node, by task or in all, and warns of
    those that are ignored; nothing where none is given.

    Raises Rejected for a number in all with a range of nodes, or one that contradicts an earlier option.
    """
    given, by_task = draft.asked.get("gpus"), draft.asked.get("gpus-per-task")
    given = given or by_task
    if given is None:
        return
    count: int | None
    if given is by_task:
        count, kind = _gpus_of_tasks(draft, given, nodes)
    elif given.option == "gres":
        count, kind, others = read_gres(given)
        for other in others:
            draft.warnings.append(f"--gres={other} ignored ({given.place}: only GPUs are counted; use --constraint for features of nodes)")
    else:
        total, kind = read_gpus(given)
        low, high = parse_node_count(nodes)
        if given.option == "gpus" and low != high:
            raise given.rejected(f"a number of GPUs in all does not fit a range of nodes ({nodes}); give --gpus-per-node")
        count = math.ceil(total / low) if given.option == "gpus" else total
    if count is not None:
        _agree(draft, given, resources, "gpus", count)
    if kind:
        _agree(draft, given, constraints, "gpuType", kind)


def _gpus_of_tasks(draft: _Draft, given: Given, nodes: int | str) -> tuple[int, str]:
    """Returns the GPUs that each node must have for the tasks it may run, and their type, empty: any; notes how the number was computed."""
    asked, (low, _) = draft.asked, parse_node_count(nodes)
    each, kind = read_gpus(given)
    if "ntasks-per-node" in asked:
        tasks = read_number(asked["ntasks-per-node"])
    else:
        tasks = math.ceil(read_number(asked["ntasks"]) / low) if "ntasks" in asked else 1
    count = each * tasks
    draft.notes.append(f"{tasks} {'task' if tasks == 1 else 'tasks'} on a node with {each} each: {count} GPUs of a node")
    return count, kind


def _agree(draft: _Draft, given: Given, where: dict[str, Any], field: str, value: Any) -> None:
    """Sets a field that `--constraint` may also have given: the stronger source wins, equal values in any case of letters agree; raises
    Rejected where one source gives two values.
    """
    before = where.setdefault(field, value)
    if str(before).lower() == str(value).lower():
        return
    if draft.asked["constraint"].source == given.source:
        raise given.rejected(f"it asks for {field} {value}, and --constraint for {before}: ask for one of them", "ConstraintsContradict")
    if SOURCES.index(given.source) > SOURCES.index(draft.asked["constraint"].source):
        where[field] = value


def _node_set(given: Given) -> list[str]:
    """Returns the node names of an option's value. Raises Rejected where it does not parse."""
    return _checked(given, lambda one: expand_nodes((one.value or "").strip()))


def _checked(given: Given, read: Callable[[Given], T]) -> T:
    """Returns the result of `read` for an option; a Rejected gets the option's line put before it and keeps its reason."""
    try:
        return read(given)
    except Rejected as error:
        raise given.rejected(error.message, error.reason) from error


# Lifecycle


def _lifecycle(draft: _Draft, vcluster: str) -> dict[str, Any]:
    """Returns walltime, class, requeue and times of the work, as far as they are given.

    Raises Rejected for a value that is not allowed, or a service with a walltime.
    """
    asked = draft.asked
    lifecycle: dict[str, Any] = {}
    if "service" in asked:
        lifecycle["type"] = "Unbounded"
        if "walltime" in asked:
            raise asked["walltime"].rejected("a service runs until it is cancelled: give --service or a walltime, not both")
    elif "walltime" in asked:
        walltime = _walltime(draft, asked["walltime"], vcluster)
        if walltime:
            lifecycle["walltime"] = walltime
    level = _class(draft)
    if level is not None:
        lifecycle["preemptionClass"] = level
    if "no-preempt" in asked:
        lifecycle["preemptible"] = "Never"
    if "grace-period" in asked:
        _checked(asked["grace-period"], lambda given: parse_duration(given.value or ""))
        lifecycle["gracePeriod"] = draft.value("grace-period")
    requeue: dict[str, Any] = {}
    if "requeue" in asked:
        requeue["policy"] = "Never" if asked["requeue"].option == "no-requeue" else "OnNodeFailure"
    if "max-requeue" in asked:
        requeue["max"] = 0 if draft.value("max-requeue") == "0" else read_number(asked["max-requeue"])
    if requeue:
        lifecycle["requeue"] = requeue
    for slot, name in (("not-before", "notBefore"), ("deadline", "deadline")):
        if slot in asked:
            lifecycle[name] = read_begin(asked[slot], draft.submitter)
    if "signal" in asked:
        lifecycle["signal"] = read_early_signal(asked["signal"])
    if "end-by" in asked and "deadline" not in asked:
        lifecycle["deadline"] = _latest_start(draft, asked["end-by"], lifecycle.get("walltime"))
    return lifecycle


def _latest_start(draft: _Draft, given: Given, walltime: str | None) -> str:
    """Returns the time by which work must have started to end by Slurm's `--deadline`: that less its walltime.

    Raises Rejected for a time that does not read, or by which it cannot end any more; without a walltime it warns, and returns that time.
    """
    ends = parse_time(read_begin(given, draft.submitter))
    if walltime is None:
        draft.warnings.append(f"--deadline={given.value}: without --time it is not known when it ends; it must have started by then")
        return format_time(ends)
    latest = ends - parse_duration(walltime)
    if latest <= draft.submitter.now:
        sentence = f"it cannot end by {format_time(ends)}: its walltime is {walltime}; give a later deadline, or a shorter --time"
        raise given.rejected(sentence, "DeadlineBeforeStart")
    return format_time(latest)


def _walltime(draft: _Draft, given: Given, vcluster: str) -> str | None:
    """Returns the walltime as the Allocation has it; None, with a warning: the vcluster's default is used.

    Raises Rejected where it does not parse, is 0, or asks for a longest one that the vcluster does not have.
    """
    text = (given.value or "").strip()
    try:
        seconds: float | None = parse_duration(text)
    except Rejected:
        seconds = _checked(given, lambda _: parse_slurm_time(text))
        text = format_duration(seconds or 0)
    if seconds:
        return text
    if given.option == "walltime":
        raise given.rejected("a walltime of 0 would end the work at once: give for example 30m or 24h", "BadWalltime")
    if draft.site.vclusters is None:
        draft.warnings.append(f"--time={given.value} is the vcluster's maximum, which was not looked up: no cluster was asked")
        return None
    queue = _queue(draft, vcluster)
    if queue is None or not queue.max_walltime:
        raise given.rejected("it asks for the vcluster's longest walltime, and the vcluster has none: give a time", "BadWalltime")
    return queue.max_walltime


def _class(draft: _Draft) -> int | None:
    """Returns the preemption class asked for, by number or by a QOS that stands for one; None where none is given, or, with a warning, the
    QOS is not known or was not looked up.

    Raises Rejected for a number outside 0 to 10.
    """
    given = draft.asked.get("class")
    if given is None:
        return None
    text = (given.value or "").strip()
    if given.option == "qos":
        known = draft.site.qos
        if known is not None and text in known:
            return known[text]
        why = (
            "it was not looked up: no cluster was asked"
            if known is None
            else f"no class is configured for it; known: {', '.join(sorted(known)) or 'none'}"
        )
        where = "" if given.place == f"--qos={text}" else f"{given.place}: "
        draft.warnings.append(f"--qos={text} ignored ({where}{why})")
        return None
    if not is_digits(text, 9) or int(text) > 10:
        raise given.rejected(f"{text!r} is not a preemption class from 0 to 10", "BadPreemptionClass")
    return int(text)


def _say_where(draft: _Draft, spec: dict[str, Any]) -> None:
    """Notes, for more than one node, on which of them the work runs (decision "where the work runs")."""
    nodes = spec["resources"]["nodes"]
    if parse_node_count(nodes)[1] == 1:
        return
    tasks = spec.get("tasks", {})
    what = "the script" if "script" in spec else "the command"
    if (tasks.get("on") or ("HeadNode" if "script" in spec else "EveryNode")) == "HeadNode":
        draft.notes.append(f"{what} runs once, on the first of {nodes} nodes")
    elif "entrypoint" in spec and "total" in tasks:
        total = "one task of the command runs" if tasks["total"] == 1 else f"{tasks['total']} tasks of the command run"
        draft.notes.append(f"{total} on {nodes} nodes, with PMI")
    else:
        each = tasks.get("perNode", 1)
        times = "once" if each == 1 else f"{each} times"
        draft.notes.append(f"{what} runs {times} on each of {nodes} nodes")
