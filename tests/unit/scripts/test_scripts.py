"""lattice.scripts: batch scripts are read as Slurm reads them, and nothing is dropped without a word."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.scripts.asked import Given, SiteFacts, Submitter, VClusterFacts, merge, needs
from lattice.scripts.book import from_book
from lattice.scripts.commands import has_slurm_lines
from lattice.scripts.directives import decode_script, read_script, split_line
from lattice.scripts.translate import Translation, translate
from tests.operations import growth

NOW = 1_790_000_000.0  # 2026-09-21T14:13:20Z


def utc(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()


SITE = SiteFacts(
    vclusters={"hpc-batch": VClusterFacts(("normal", "long"), "7d", 8), "interactive": VClusterFacts(("debug",), None, 4)},
    default_vcluster="hpc-batch",
    qos={"low": 1, "high": 7},
)
SUBMITTER = Submitter("/home/alice/run", {"OMP_NUM_THREADS": "8", "WANDB_TOKEN": "x"}, NOW, utc)
FULL = "Lattice uses full-node scheduling"


def translated(text: str, site: SiteFacts = SITE) -> Translation:
    script = read_script(decode_script(text.encode(), "job.sh"))
    return translate(merge(script.given), script=script, command=None, submitter=SUBMITTER, site=site)


@dataclass(frozen=True)
class Case:
    """A script's lines between its first line and its first command, and what becomes of them."""

    id: str
    lines: str
    spec: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


CASES = (
    Case("nodes, long", "#SBATCH --nodes=4", {"resources.nodes": 4}, (), ("the script runs once, on the first of 4 nodes",)),
    Case("nodes, short and glued", "#SBATCH -N2", {"resources.nodes": 2}, (), ("the script runs once, on the first of 2 nodes",)),
    Case("nodes, short and spaced", "#SBATCH -N 1", {"resources.nodes": 1}),
    Case("nodes, long and spaced", "#SBATCH --nodes 1", {"resources.nodes": 1}),
    Case("a range of nodes", "#SBATCH -N 2-4", {"resources.nodes": "2-4"}, (), ("the script runs once, on the first of 2-4 nodes",)),
    Case("several options on one line", "#SBATCH -N 1 -t 30 -J a", {"resources.nodes": 1, "lifecycle.walltime": "30m", "tags.name": "a"}),
    Case("a comment ends the line", "#SBATCH --time=1:00:00 # it's an hour", {"lifecycle.walltime": "1h"}),
    Case("no blank after the word", "#SBATCH--time=10", {"lifecycle.walltime": "10m"}),
    Case("a quoted name", '#SBATCH --job-name="my job # 1"', {"tags.name": "my job # 1"}),
    Case("an escaped blank", r"#SBATCH -J my\ job", {"tags.name": "my job"}),
    Case("inactive lines", "##SBATCH --nodes=9\n# #SBATCH --nodes=8", {"resources.nodes": 1, "environment.output": None}),
    Case("the last one wins", "#SBATCH -t 10\n#SBATCH --time=20", {"lifecycle.walltime": "20m"}),
    Case("lattice is stronger than slurm", "#LATTICE --walltime=24h\n#SBATCH --time=20", {"lifecycle.walltime": "24h"}),
    Case("after the first command nothing counts", "#SBATCH -t 10\n\necho hi\n#SBATCH -t 20", {"lifecycle.walltime": "10m"}),
    Case("days and hours", "#SBATCH -t 1-12", {"lifecycle.walltime": "1d12h"}),
    Case("time zero is the vcluster's maximum", "#SBATCH -t 0 -p normal", {"lifecycle.walltime": "7d", "vcluster": "hpc-batch"}),
    Case("unlimited is the vcluster's maximum", "#SBATCH --time=UNLIMITED", {"lifecycle.walltime": "7d"}),
    Case("a partition is a vcluster's", "#SBATCH --partition=debug", {"vcluster": "interactive"}),
    Case("a vcluster's own name is a partition", "#SBATCH -p hpc-batch", {"vcluster": "hpc-batch"}),
    Case("the first of several partitions that is known", "#SBATCH -p gpu,long", {"vcluster": "hpc-batch"}),
    Case("an account is a tenant", "#SBATCH -A physics", {"tenant": "physics"}),
    Case("output, error, mode", "#SBATCH -o a-%j.out -e a-%j.err --open-mode=append",
         {"environment.output": {"stdout": "a-%j.out", "stderr": "a-%j.err", "mode": "Append"}}),
    Case("slurm's default output", "#SBATCH -N1", {"environment.output": {"stdout": "slurm-%j.out"}}),
    Case("no slurm lines, no output file", "#LATTICE --nodes=1", {"environment.output": None}),
    Case("all forms of a dependency", "#SBATCH -d afterok:12:13,afternotok:14,afterany:15,after:16+5,after:17,afterburstbuffer:18,19",
         {"dependsOn": [
             {"ref": "12", "condition": "Success"}, {"ref": "13", "condition": "Success"}, {"ref": "14", "condition": "Failure"},
             {"ref": "15", "condition": "Any"}, {"ref": "16", "condition": "Started", "delay": "5m"}, {"ref": "17", "condition": "Started"},
             {"ref": "18", "condition": "Any"}, {"ref": "19", "condition": "Any"}]}),
    Case("the first of several", "#SBATCH --dependency=afterok:12?afternotok:12 --kill-on-invalid-dep=no",
         {"dependsOn": [{"ref": "12", "condition": "Success"}, {"ref": "12", "condition": "Failure"}], "dependsOnMode": "Any", "onUnmet": "Hold"}),
    Case("a dependency twice is one", "#SBATCH -d afterok:12:12", {"dependsOn": [{"ref": "12", "condition": "Success"}]}),
    Case("an end for dependencies alone", "#SBATCH --kill-on-invalid-dep=yes", {"onUnmet": None}),
    Case("lattice's own form", "#LATTICE --depends-on=prep,lab/12:any,db:Started+30s --on-unmet=hold",
         {"dependsOn": [{"ref": "prep", "condition": "Success"}, {"ref": "lab/12", "condition": "Any"},
                        {"ref": "db", "condition": "Started", "delay": "30s"}], "onUnmet": "Hold"}),
    Case("lattice's own form is stronger", "#SBATCH -d afterok:1\n#LATTICE --depends-on=2:any", {"dependsOn": [{"ref": "2", "condition": "Any"}]}),
    Case("a pattern that is not served", "#SBATCH -o %q.out", {"environment.output.stdout": "%q.out"},
         ("the pattern %q in %q.out is not filled in (served: %j %x %u %A %a %N %n %J %t %s %%)",)),
    Case("a working directory", "#SBATCH --chdir=/scratch/x", {"environment.workdir": "/scratch/x"}),
    Case("a relative working directory", "#SBATCH -D sub", {"environment.workdir": "/home/alice/run/sub"}),
    Case("no working directory", "#SBATCH -N1", {"environment.workdir": "/home/alice/run"}),
    Case("export names", "#SBATCH --export=OMP_NUM_THREADS,A=b", {"environment.variables": {"OMP_NUM_THREADS": "8", "A": "b"}}),
    Case("export none", "#SBATCH --export=NONE", {"environment.variables": None}),
    Case("export of what is not set", "#SBATCH --export=NOT_SET", {"environment.variables": None},
         ("--export=NOT_SET ignored (line 2: #SBATCH --export=NOT_SET: it is not set here)",)),
    Case("ntasks with ntasks-per-node", "#SBATCH -n 9 --ntasks-per-node=4", {"resources.nodes": 3, "tasks": {"total": 9, "perNode": 4}}, (),
         ("9 tasks at 4 on a node: 3 nodes", "the script runs once, on the first of 3 nodes")),
    Case("tasks-per-node is an old spelling", "#SBATCH -N1 --tasks-per-node=4", {"tasks": {"total": 4, "perNode": 4}}),
    Case("ntasks alone", "#SBATCH --ntasks=24", {"resources.nodes": 3, "tasks": {"total": 24}}, (),
         ("24 tasks of 1 CPU on nodes of 8 CPUs: 3 nodes", "the script runs once, on the first of 3 nodes")),
    Case("ntasks alone with cpus-per-task", "#SBATCH --ntasks=4 -c 4 -p debug", {"resources.nodes": 4}, (),
         ("4 tasks of 4 CPUs on nodes of 4 CPUs: 4 nodes", "the script runs once, on the first of 4 nodes")),
    Case("one task is one node", "#SBATCH -n1", {"resources.nodes": 1, "tasks": {"total": 1}}),
    Case("nodes are stronger than ntasks", "#SBATCH -N2 -n128 --ntasks-per-node=4",
         {"resources.nodes": 2, "tasks": {"total": 128, "perNode": 4}}, (),
         ("the script runs once, on the first of 2 nodes",)),
    Case("no task has CPUs of two nodes", "#SBATCH --ntasks=5 -c 3", {"resources.nodes": 3, "tasks": {"total": 5, "cpus": 3}}, (),
         ("5 tasks of 3 CPUs on nodes of 8 CPUs: 3 nodes", "the script runs once, on the first of 3 nodes")),
    Case("what each task has is for srun", "#SBATCH -N1 -c 8 -m block:cyclic,nopack --cpu-bind=verbose,cores --mpi=pmi2",
         {"resources.nodes": 1, "tasks": {"cpus": 8, "layout": "Block:Cyclic", "bind": "Cores", "mpi": "Pmi2"}}),
    Case("a layout of planes", "#SBATCH -N2 --distribution=plane=4", {"tasks": {"layout": "Plane=4"}}, (),
         ("the script runs once, on the first of 2 nodes",)),
    Case("layouts and bindings that only srun takes", "#SBATCH -N1 -m arbitrary --cpu-bind=map_cpu:0,1", {"tasks": None},
         tuple(f"--{option} ignored (line 2: #SBATCH -N1 -m arbitrary --cpu-bind=map_cpu:0,1: {FULL}, placement inside a node is the launcher's)"
               for option in ("distribution=arbitrary", "cpu-bind=map_cpu:0,1"))),
    Case("mem is ignored, in the book's words", "#SBATCH --mem=64G", {},
         (f"#SBATCH --mem=64G ignored ({FULL}, memory is not constrainable)",)),
    Case("mail is ignored", "#SBATCH --mail-user=user@example.com", {},
         ("#SBATCH --mail-user=user@example.com ignored (use `lattice wait` or `lattice status --watch` for event notifications)",)),
    Case("an unknown word is ignored", "#SBATCH --frobnicate 3", {}, ("#SBATCH --frobnicate=3 ignored (not known to Lattice)",)),
    Case("a stray word is ignored", "#SBATCH hello", {}, ("#SBATCH hello ignored (line 2: it is not an option)",)),
    Case("an abbreviation", "#SBATCH --ntasks-per-n=2 --open append", {"tasks.total": 2}),
    Case("gres", "#SBATCH --gres=gpu:4", {"resources.gpus": 4}),
    Case("gres with a type, and others", "#SBATCH --gres=gpu:a100:2,nvme:1", {"resources.gpus": 2, "resources.constraints.gpuType": "a100"},
         ("--gres=nvme:1 ignored (line 2: #SBATCH --gres=gpu:a100:2,nvme:1: only GPUs are counted; use --constraint for features of nodes)",)),
    Case("gpus in all", "#SBATCH -N2 --gpus=8", {"resources.gpus": 4}, (), ("the script runs once, on the first of 2 nodes",)),
    Case("features", "#SBATCH -C 'ssd&ib'", {"resources.constraints.features": ["ib", "ssd"]}),
    Case("keys", "#SBATCH --constraint=gpu_type:GH200,memory_gb>=512,prefer_same_numa",
         {"resources.memory": "512G", "resources.constraints.gpuType": "GH200", "resources.constraints.preferSameNuma": True}),
    Case("GPU memory, unified memory and conformance", "#SBATCH --constraint=gpu_memory>=90Gi&unified&conformance=required",
         {"resources.constraints": {"gpuMemory": "90Gi", "requireUnifiedMemory": True, "conformance": "Required"}}),
    Case("the book's words for memory", "#LATTICE --constraint=require_unified_memory,allow_cxl_memory,memory=1Ti,topology:tight",
         {"resources.memory": "1Ti", "resources.constraints":
          {"requireUnifiedMemory": True, "allowCxlMemory": True, "topology": "Tight"}}),
    Case("scratch space", "#LATTICE --scratch=500Gi", {"data": {"scratchPerNode": "500Gi"}}),
    Case("a type of GPUs said twice alike", "#SBATCH --gres=gpu:gh200:4\n#SBATCH -C gpu_type=GH200&gpu_count=4",
         {"resources.gpus": 4, "resources.constraints.gpuType": "GH200"}),
    Case("a #LATTICE line is stronger than what #SBATCH says of GPUs", "#SBATCH --gres=gpu:a100:4\n#LATTICE --constraint=gpu_type=GH200",
         {"resources.gpus": 4, "resources.constraints.gpuType": "GH200"}),
    Case("qos", "#SBATCH --qos=high", {"lifecycle.preemptionClass": 7}),
    Case("an unknown qos", "#SBATCH -q best", {"lifecycle.preemptionClass": None},
         ("--qos=best ignored (line 2: #SBATCH -q best: no class is configured for it; known: high, low)",)),
    Case("requeue", "#SBATCH --no-requeue", {"lifecycle.requeue": {"policy": "Never"}}),
    Case("nodelist counts the nodes", "#SBATCH -w nid[001-003]",
         {"resources.nodes": 3, "resources.constraints.nodeList": "nid[001-003]"}, (),
         ("the script runs once, on the first of 3 nodes",)),
    Case("exclude", "#SBATCH -x nid001", {"resources.constraints.excludeNodes": "nid001"}),
    Case("begin in an hour", "#SBATCH --begin=now+1hour", {"lifecycle.notBefore": "2026-09-21T15:13:20Z"}),
    Case("begin at a time that has passed today", "#SBATCH -b 14:00", {"lifecycle.notBefore": "2026-09-22T14:00:00Z"}),
    Case("begin at a date", "#SBATCH -b 2026-12-01T08:00", {"lifecycle.notBefore": "2026-12-01T08:00:00Z"}),
    Case("begin at a date of the United States", "#SBATCH -b 12/01/26-08:00", {"lifecycle.notBefore": "2026-12-01T08:00:00Z"}),
    Case("begin at six digits", "#SBATCH -b 120126", {"lifecycle.notBefore": "2026-12-01T00:00:00Z"}),
    Case("begin at a day that has passed this year", "#SBATCH -b 01.15", {"lifecycle.notBefore": "2027-01-15T00:00:00Z"}),
    Case(
        "an end by a deadline is a start by it less the walltime", "#SBATCH -t 2:00:00 --deadline=2026-12-01T08:00",
        {"lifecycle.deadline": "2026-12-01T06:00:00Z"},
    ),
    Case("a signal to the tasks", "#SBATCH --signal=USR2@90", {"lifecycle.signal": {"name": "USR2", "before": "1m30s", "to": "Tasks"}}),
    Case("a signal to the script", "#SBATCH --signal=B:10", {"lifecycle.signal": {"name": "USR1", "before": "1m", "to": "Script"}}),
    Case("a signal of Lattice's own line", "#LATTICE --signal=SIGTERM@0", {"lifecycle.signal": {"name": "TERM", "before": "0s", "to": "Tasks"}}),
    Case("a deadline from now", "#SBATCH -t 30 --deadline=now+1hour", {"lifecycle.deadline": "2026-09-21T14:43:20Z"}),
    Case("a deadline of Lattice's own is of the start", "#LATTICE --walltime=2h --deadline=2026-12-01T08:00", {"lifecycle.deadline": "2026-12-01T08:00:00Z"}),
    Case("hold and exclusive", "#SBATCH -H --exclusive", {"hold": True}),
    Case("a reservation", "#SBATCH --reservation=course", {"reservation": "course"}),
    Case("variables from Secrets", "#LATTICE --variables-from=wandb:WANDB_,registry",
         {"environment.variablesFrom": [{"secretRef": "wandb", "prefix": "WANDB_"}, {"secretRef": "registry"}]}),
    Case("the book's own lines", "#LATTICE --nodes=64\n#LATTICE --walltime=72h\n#LATTICE --tenant=physics\n#LATTICE --name=large",
         {"resources.nodes": 64, "lifecycle.walltime": "72h", "tenant": "physics", "tags.name": "large"}, (),
         ("the script runs once, on the first of 64 nodes",)),
    Case("an indented comment is no command", "#SBATCH -t 10\n   # about the next line\n\t# and this one\n#SBATCH -N 3",
         {"resources.nodes": 3, "lifecycle.walltime": "10m"}, (), ("the script runs once, on the first of 3 nodes",)),
    Case("an indented directive is a comment", "  #SBATCH -N 3", {"resources.nodes": 1}),
    Case("options of Slurm that take a value and mean nothing here", "#SBATCH --wait-all-nodes=1 --segment 4 --x11 -N1", {"resources.nodes": 1},
         ("#SBATCH --wait-all-nodes=1 ignored (nothing in Lattice corresponds to it)",
          "#SBATCH --segment=4 ignored (nothing in Lattice corresponds to it)",
          "#SBATCH --x11 ignored (nothing in Lattice corresponds to it)")),
    Case("the old spelling of chdir", "#SBATCH --workdir=/scratch/x", {"environment.workdir": "/scratch/x"}),
    Case("GPUs of each task, tasks of each node", "#SBATCH -N1 --ntasks-per-node=4 --gpus-per-task=a100:1",
         {"resources.gpus": 4, "resources.constraints.gpuType": "a100"}, (), ("4 tasks on a node with 1 each: 4 GPUs of a node",)),
    Case("GPUs of each task, tasks in all", "#SBATCH -N2 -n 5 --gpus-per-task=2", {"resources.gpus": 6}, (),
         ("3 tasks on a node with 2 each: 6 GPUs of a node", "the script runs once, on the first of 2 nodes")),
    Case("GPUs of each node are stronger than those of each task", "#SBATCH -N1 --gres=gpu:4 --gpus-per-task=1",
         {"resources.gpus": 4, "tasks": {"gpus": 1}}),
    Case("a service", "#LATTICE --service", {"lifecycle.type": "Unbounded"}),
)  # fmt: skip


def at(document: dict[str, Any], path: str) -> Any:
    found: Any = document
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_script_becomes_the_allocation_that_it_asks_for(case: Case) -> None:
    result = translated(f"#!/bin/bash\n{case.lines}\nhostname\n")
    assert {path: at(result.allocation["spec"], path) for path in case.spec} == case.spec
    assert result.warnings == case.warnings
    assert result.notes == case.notes


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("#SBATCH --array=0-9", "job arrays are not served"),
        ("#SBATCH --reservation=a,b", "name one reservation: an allocation runs in one"),
        ("#SBATCH -L matlab", "licenses are not counted"),
        ("#SBATCH --environment=my.toml", "environment files of a container engine are not read"),
        ("#SBATCH --container-image=team/app --container-mounts=/a:/b", "and what the site lists"),
        ("#SBATCH --container-image=team/app --container-workdir=/opt", "that of --chdir"),
        ("#SBATCH --container-image=team/app --container-save=/a.sqsh", "is not saved"),
        ("#SBATCH --container-name=mine", "not kept by name"),
        ("#SBATCH --container-image=team/app --container-entrypoint", "entrypoint is not run"),
        ("#SBATCH --container-image=registry.example#team/app:1.0", r"write registry.example\#… or registry.example/…"),
        ("#SBATCH --container-image=docker://registry.example/team/app", "leave out docker://"),
        ("#SBATCH --container-image=/images/my.sqsh", "image files are not taken: push the image to a registry"),
        ("#SBATCH --container-image=", "the value is empty"),
        ("#SBATCH --uenv=''", "the value is empty"),
        ("#LATTICE --image=", "the value is empty"),
        ("#SBATCH hetjob", "heterogeneous jobs"),
        ("#SBATCH --nodes=<N>", "is not a number of nodes"),
        ("#SBATCH --nodes={{ nodes }}", "is not a number of nodes"),
        ("#SBATCH --time=soon", "is not a time"),
        ("#SBATCH --nodes=0", "is not a number of nodes"),
        ("#SBATCH -N 4-2", "runs backwards"),
        ('#SBATCH -J "open', "is not closed"),
        ("#SBATCH -N", "needs a value"),
        ("#SBATCH --hold=yes", "takes no value"),
        ("#SBATCH -p gpu", 'vCluster "gpu" not found. Available: hpc-batch, interactive'),
        ("#SBATCH --export=MY_TOKEN=1", "looks like a secret"),
        ("#SBATCH --export=1A", "is not the name of a variable"),
        ("#SBATCH -C a|b", "either-or"),
        ("#SBATCH -C topology=wide", "topology is one of any, tight, spread, not 'wide'"),
        ("#SBATCH -C conformance=always", "conformance is one of required, preferred, not 'always'"),
        ("#SBATCH -C gpu_memory>=much", "gpu_memory: 'much' is not a quantity"),
        ("#SBATCH -C gpu_type>=GH200", "takes no >="),
        ("#SBATCH -C gpu_type=A100,gpu_type=H100", "gpuType is asked for twice, as A100 and as H100"),
        ("#SBATCH -C gpu_kind=A100", "'gpu_kind' is not a key of constraints; known: gpu_type, gpu_count,"),
        ("#SBATCH -w nid[001-", "at position"),
        ("#SBATCH -N 4 -w nid[1-2]", "names 2 nodes and 4 are asked for"),
        ("#SBATCH -t 0 -p debug", "the vcluster has none"),
        ("#SBATCH -b whenever", "is not a time"),
        ("#SBATCH -b 13/01/26", "is not a time"),
        ("#SBATCH --signal=R:USR1", "overlapping reservations"),
        ("#SBATCH --signal=USR3@60", "is none of HUP"),
        ("#SBATCH --signal=USR1@65536", "limit: 65535"),
        ("#SBATCH --signal=USR1@soon", "is no signal"),
        ("#SBATCH -b 02/30/26", "is not a time"),
        ("#SBATCH -t 2:00:00 --deadline=now+1hour", "it cannot end by"),
        ("#LATTICE --frobnicate=1", "is not an option of Lattice"),
        ("#LATTICE --walltime=0", "a walltime of 0"),
        ("#LATTICE --preemption-class=11", "from 0 to 10"),
        ("#LATTICE --preemption-class=00000000099", "from 0 to 10"),
        ("#SBATCH --nodes=1 --ntasks=000000000001999999999", "is not a number from 1 on"),
        ("#SBATCH --gres=gpu:²", "gres needs a number, not '²'"),
        (f"#SBATCH --gres=gpu:{'9' * 5000}", "gres needs a number"),
        ("#LATTICE nodes=3", "is not an option of the form"),
        ("#SBATCH --dependency=aftercorr:1", "aftercorr: task groups are not served"),
        ("#SBATCH -d singleton:12", "singleton names no work"),
        ("#SBATCH -d afterok:1?singleton", "always needed"),
        ("#SBATCH -d afterok:1,afterany:2?after:3", "cannot be mixed"),
        ("#SBATCH -d afterok:", "names no work: is a variable unset?"),
        ("#SBATCH -d afterok:12::13", "names no work"),
        ("#SBATCH -d", "needs a value"),
        ("#SBATCH --dependency=", "is no dependency"),
        ("#SBATCH -d afterok:1_7", "element of a task group"),
        ("#SBATCH -d afterok:1+5", "a delay is of `after` alone"),
        ("#SBATCH -d after:1+soon", "in minutes"),
        ("#SBATCH -d expand:1", "not expanded"),
        ("#SBATCH -d whenever:1", "is no dependency: write for example afterok:12345"),
        ("#SBATCH --kill-on-invalid-dep=perhaps", "is not yes or no"),
        ("#LATTICE --depends-on=1:sometimes", "is none of success, failure, any, started"),
        ("#LATTICE --depends-on=1:mutex", "a mutex has a name"),
        ("#LATTICE --depends-on=gpu:mutex+5m", "a mutex has no delay"),
        ("#LATTICE --depends-on=A:any", "names no work"),
        ("#LATTICE --depends-on=1:started+soon", "is not a duration"),
        ("#LATTICE --on-unmet=run", "is not cancel or hold"),
        (f"#LATTICE --depends-on={','.join(map(str, range(1, 1002)))}", "it names 1001 edges (limit: 1000)"),
        ("#LATTICE --service --walltime=1h", "not both"),
    ],
)
def test_what_would_run_otherwise_than_asked_is_refused_with_its_line(line: str, sentence: str) -> None:
    with pytest.raises(Rejected) as caught:
        translated(f"#!/bin/sh\n{line}\ntrue\n")
    assert caught.value.message.startswith(f"line 2: {line}")
    assert sentence in caught.value.message


def test_gres_and_constraint_of_one_script_may_not_ask_for_different_gpus() -> None:
    with pytest.raises(Rejected) as caught:
        translated("#!/bin/sh\n#SBATCH --gres=gpu:a100:4\n#SBATCH -C gpu_type=GH200\ntrue\n")
    assert caught.value.reason == "ConstraintsContradict"
    assert "it asks for gpuType a100, and --constraint for GH200" in caught.value.message


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is empty"),
        (b"echo hi\n", "does not start with #!"),
        (b"#!/bin/sh\r\necho\r\n", "DOS line ends (line 1)"),
        (b"#!/bin/sh\n\0", "binary file"),
        ("#!/bin/sh\n# für\n".encode("latin-1"), "not UTF-8 (line 2, byte 14)"),
        ("\ufeff#!/bin/sh\n".encode(), "byte order mark"),
        (b"#!/bin/sh\n" + b"#" * (1 << 20), "has 1048586 bytes, the limit is 1048576"),
    ],
)
def test_a_file_that_no_node_could_run_is_refused_with_the_place(data: bytes, sentence: str) -> None:
    with pytest.raises(Rejected) as caught:
        decode_script(data, "job.sh")
    assert sentence in caught.value.message


def test_without_a_cluster_what_depends_on_it_is_said() -> None:
    result = translated("#!/bin/sh\n#SBATCH -p normal -q high -t 0\n", SiteFacts())
    assert result.allocation["spec"]["vcluster"] == "normal"
    assert len(result.warnings) == 3
    with pytest.raises(Rejected, match="not known here"):
        translated("#!/bin/sh\n#SBATCH -n 64\n", SiteFacts())


def test_a_script_that_calls_srun_is_as_any_other() -> None:
    assert translated("#!/bin/sh\nsrun -n 4 ./a.out\n").warnings == ()


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("#!/bin/sh\n#SBATCH -N 2\n", True),
        ("#!/bin/sh\n\n# a comment\n  # another\n#SBATCH -N 2\nsrun x\n", True),
        ("#!/bin/sh\nsrun x\n#SBATCH -N 2\n", False),
        ("#!/bin/sh\n# #SBATCH -N 2\nsrun x\n", False),
    ],
)
def test_a_site_that_leaves_it_open_sets_slurms_variables_for_scripts_with_directives(text: str, has: bool) -> None:
    assert has_slurm_lines(text) is has
    warnings = translated(text + "echo $SLURM_JOB_ID\n", SiteFacts(vclusters={}, qos={}, slurm_env_of_scripts=True)).warnings
    assert len(warnings) == (0 if has else 1)


def test_a_script_that_reads_what_slurm_sets_is_told_what_it_will_not_find_here() -> None:
    text = "#!/bin/sh\n# $SLURM_NNODES is a comment\ncd $SLURM_SUBMIT_DIR; echo ${SLURM_CPUS_PER_TASK:-1} $SLURM_SUBMIT_DIR\n"
    site_without, site_with, unasked = (SiteFacts(vclusters={}, qos={}, slurm_env=said) for said in (False, True, None))
    (warning,) = translated(text, site_without).warnings
    assert warning.startswith("the script reads variables of Slurm's that this site does not set (option compat.setSlurmEnv): ")
    assert warning.endswith(": SLURM_SUBMIT_DIR is LATTICE_SUBMIT_DIR, SLURM_CPUS_PER_TASK has no counterpart")
    assert translated(text, site_with).warnings == ()
    assert translated("#!/bin/sh\necho $SLURM_CONF\n", site_with).warnings == (
        "the script reads variables of Slurm's that Lattice does not set: SLURM_CONF has no counterpart",
    )
    tasks = translated("#!/bin/sh\n#SBATCH -N 2 -c 4 --ntasks-per-node=8\nhostname\n", site_with).allocation["spec"]["tasks"]
    assert tasks == {"total": 16, "perNode": 8, "cpus": 4}
    without = translated("#!/bin/sh\n#SBATCH -N 2 -c 4\nhostname\n", site_without).allocation["spec"]["environment"]
    assert "variables" not in without
    assert translated(text, unasked).warnings == (
        "the script reads SLURM_SUBMIT_DIR, SLURM_CPUS_PER_TASK: whether this site sets Slurm's variables is not known here",
    )
    assert translated("#!/bin/sh\necho $SLURM_JOB_ID\n", site_with).warnings == ()


def test_only_what_is_needed_is_asked_of_the_cluster() -> None:
    def wanted(line: str) -> frozenset[str]:
        return needs(merge(read_script(f"#!/bin/sh\n{line}\n").given))

    assert wanted("#SBATCH -N2 -J a") == frozenset()
    assert wanted("#SBATCH -n 64") == {"vclusters", "nodes"}
    assert wanted("#SBATCH -p x") == {"vclusters"}
    assert wanted("#SBATCH -q x") == {"config"}
    assert needs({}, reads_slurm_variables=True) == {"config"}


@forall(st.permutations(["configuration", "SBATCH", "LATTICE", "environment", "command line"]))
def test_the_strongest_source_wins_in_any_order(sources: list[str]) -> None:
    asked = merge([("nodes", Given("nodes", source, source, source)) for source in sources])
    assert asked["nodes"].value == "command line"


@forall(st.lists(st.text(alphabet="ab\"' #\\\tx-", min_size=1, max_size=8), max_size=5))
def test_quoted_words_are_read_back(words: list[str]) -> None:
    line = " ".join("".join("\\" + character for character in word) for word in words)
    assert split_line(line, "line 1") == words


@pytest.mark.parametrize(("letter", "mark"), [("x", ""), ("x", '"'), ("\\x", "")], ids=["open", "quoted", "escaped"])
def test_a_long_word_takes_no_longer_than_its_length_asks(letter: str, mark: str) -> None:
    def read(length: int) -> None:
        assert split_line(mark + letter * length + mark, "line 1") == ["x" * length]

    assert growth(lambda: read(75_000), lambda: read(300_000)) < 10, "all was copied for each letter: sixteen times as long"


@forall(st.text(max_size=80))
def test_any_line_is_read_or_refused(text: str) -> None:
    try:
        translated("#!/bin/sh\n#SBATCH " + text.replace("\r", ""))
    except Rejected:
        return


def test_the_books_form_becomes_ours() -> None:
    document = from_book(
        {
            "allocation": {
                "tenant": "ml-team",
                "tags": {"experiment": "run-42"},
                "intent": "train",
                "environment": {"uenv": "prgenv-gnu/24.11:v1", "variables": {"LOWER_case": 1}},
                "entrypoint": "torchrun train.py",
                "resources": {"nodes": {"min": 32, "max": 128}, "constraints": {"gpu_type": "GH200", "topology": "tight"}},
                "lifecycle": {"type": "bounded", "walltime": "24:00:00", "preemption_class": 2},
                "depends_on": [{"ref": "a", "condition": "success"}],
                "checkpoint": {"strategy": "auto"},
            }
        }
    )
    assert document["apiVersion"] == "lattice.dev/v1alpha1"
    assert document["spec"] == {
        "tenant": "ml-team",
        "tags": {"experiment": "run-42"},
        "intent": "Train",
        "environment": {"uenv": "prgenv-gnu/24.11:v1", "variables": {"LOWER_case": "1"}},
        "entrypoint": "torchrun train.py",
        "resources": {"nodes": "32-128", "constraints": {"gpuType": "GH200", "topology": "Tight"}},
        "lifecycle": {"type": "Bounded", "walltime": "1d", "preemptionClass": 2},
        "dependsOn": [{"ref": "a", "condition": "Success"}],
        "checkpoint": {"strategy": "Auto"},
    }


def test_the_books_memory_and_conformance_become_ours() -> None:
    constraints = {"gpu_memory_gb": 90, "require_unified_memory": True, "allow_cxl_memory": True, "require_conformance": True}
    document = from_book({"entrypoint": "true", "resources": {"gpus": 1, "memory_gb": 128, "constraints": constraints}})
    assert document["spec"]["resources"] == {
        "gpus": 1,
        "memory": "128G",
        "constraints": {"gpuMemory": "90G", "requireUnifiedMemory": True, "allowCxlMemory": True, "conformance": "Required"},
    }
    with pytest.raises(Rejected, match=r"resources\.memory_gb: 'much' is not a whole number of gigabytes"):
        from_book({"entrypoint": "true", "resources": {"memory_gb": "much"}})


def test_the_books_scratch_space_becomes_ours() -> None:
    assert from_book({"entrypoint": "true", "data": {"scratch_per_node": "500GB"}})["spec"]["data"] == {"scratchPerNode": "500G"}


def test_the_books_short_form_becomes_ours() -> None:
    document = from_book({"name": "pre", "entrypoint": "python p.py", "nodes": 2, "walltime": "2h", "lifecycle": {"type": "bounded"}})
    assert document["spec"] == {
        "tags": {"name": "pre"},
        "entrypoint": "python p.py",
        "resources": {"nodes": 2},
        "lifecycle": {"type": "Bounded", "walltime": "2h"},
    }


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"dag": {}}, "lattice dag submit"),
        ({"allocation": {"type": "task_group"}}, "task groups are not served"),
        ({"allocation": []}, "must have fields"),
        ({"intent": "dance"}, "is none of"),
        ({"lifecycle": {"walltime": 24}}, "not a duration in quotes"),
        ({"resources": {"nodes": {"min": 1}}}, "a range has min and max"),
        ({"resources": {"nodes": 1}, "nodes": 2}, "given twice"),
    ],
)
def test_what_the_books_form_cannot_say_is_refused(document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence):
        from_book(document)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("./mine.squashfs:/opt/mine,/b.squashfs", {"uenv": "/home/alice/run/mine.squashfs:/opt/mine,/b.squashfs"}),
        ("prgenv-gnu/24.11:v1 --view=default", {"uenv": "prgenv-gnu/24.11:v1", "view": "default"}),
        ("~/a.squashfs --no-default-view", {"uenv": "~/a.squashfs", "noDefaultView": True}),
    ],
)
def test_software_is_taken_from_directives_and_files_are_named_from_the_root(line: str, expected: dict[str, object]) -> None:
    spec = translated(f"#!/bin/sh\n#SBATCH -N 1\n#SBATCH --uenv={line}\nhostname\n").allocation["spec"]
    assert {name: value for name, value in spec["environment"].items() if name in ("uenv", "view", "noDefaultView")} == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#SBATCH --container-image='nvcr.io#nvidia/pytorch:24.01-py3' # here", {"image": "nvcr.io/nvidia/pytorch:24.01-py3"}),
        ("#SBATCH --container-image=nvcr.io\\#nvidia/pytorch:24.01-py3", {"image": "nvcr.io/nvidia/pytorch:24.01-py3"}),
        (
            "#LATTICE --image=team/app --writable --device=nvidia.com/gpu=0,nvidia.com/gpu=1",
            {"image": "team/app", "writable": True, "devices": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]},
        ),
    ],
)
def test_an_oci_image_is_taken_from_directives_with_what_its_container_has(line: str, expected: dict[str, object]) -> None:
    spec = translated(f"#!/bin/sh\n#SBATCH -N 1\n{line}\nhostname\n").allocation["spec"]
    assert {name: value for name, value in spec["environment"].items() if name in ("image", "writable", "devices")} == expected


@pytest.mark.parametrize("name", ["container-mount-home", "no-container-entrypoint", "no-container-remap-root", "container-readonly"])
def test_what_is_so_in_every_container_is_passed_over_in_silence(name: str) -> None:
    made = translated(f"#!/bin/sh\n#SBATCH -N 1\n#SBATCH --container-image=team/app --{name}\nhostname\n")
    assert not [warning for warning in made.warnings if "container" in warning]
    assert made.allocation["spec"]["environment"]["image"] == "team/app"


@pytest.mark.parametrize(
    ("line", "reason", "said"),
    [
        ("--container-writable", "BadOption", "give --image too"),
        ("--uenv=a:b:c", "LabelInvalid", "line 3: #SBATCH --uenv=a:b:c: .*unexpected"),
        ("--uenv=/a:/m/..", "MountInvalid", "without . and .."),
        ("--uenv=/a --view=a:b:c", "ViewInvalid", "is no view"),
        ("--view=default", "BadOption", "give --uenv too"),
    ],
)
def test_software_that_cannot_be_read_is_refused_with_its_line(line: str, reason: str, said: str) -> None:
    with pytest.raises(Rejected, match=said) as refused:
        translated(f"#!/bin/sh\n#SBATCH -N 1\n#SBATCH {line}\nhostname\n")
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("given", "tasks", "notes", "warnings"),
    [
        ({"ntasks": "8", "nodes": "2", "cpus-per-task": "2"}, {"total": 8, "cpus": 2}, ("8 tasks of the command run on 2 nodes, with PMI",), 0),
        ({"ntasks-per-node": "4", "nodes": "2"}, {"total": 8, "perNode": 4}, ("8 tasks of the command run on 2 nodes, with PMI",), 0),
        ({"ntasks": "4", "nodes": "4", "mpi": "pmix_v4"}, {"total": 4, "mpi": "Pmix"}, ("4 tasks of the command run on 4 nodes, with PMI",), 0),
        ({"ntasks-per-node": "4", "nodes": "2-3", "mpi": "auto"}, {"perNode": 4}, ("the command runs 4 times on each of 2-3 nodes",), 1),
        ({"nodes": "2", "cpus-per-task": "2"}, None, ("the command runs once on each of 2 nodes",), 1),
        ({"ntasks": "1", "nodes": "2"}, {"total": 1}, ("one task of the command runs on 2 nodes, with PMI",), 0),
        ({"ntasks": "8", "nodes": "2", "tasks-on": "head-node"}, {"on": "HeadNode", "total": 8},
         ("the command runs once, on the first of 2 nodes",), 0),
    ],
)  # fmt: skip
def test_a_command_with_a_number_of_tasks_is_launched(
    given: dict[str, str], tasks: dict[str, Any] | None, notes: tuple[str, ...], warnings: int
) -> None:
    asked = {slot: Given(slot, value, "command line", f"--{slot}={value}") for slot, value in given.items()}
    result = translate(asked, script=None, command="./app", submitter=Submitter(), site=SiteFacts())
    assert (result.allocation["spec"].get("tasks"), result.notes, len(result.warnings)) == (tasks, notes, warnings)
    assert all("give their number, --ntasks" in warning for warning in result.warnings)
