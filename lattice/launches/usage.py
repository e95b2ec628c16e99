"""The texts that `srun` prints about itself: help, usage, version, the kinds of PMI."""

from __future__ import annotations

from typing import Final

from lattice import __version__

USAGE: Final = """\
Usage: srun [-n TASKS] [-N NODES] [-c CPUS] [-w NODELIST] [-x NODELIST] [-r INDEX] [-m LAYOUT] [-D DIRECTORY] [-J NAME]
            [-o FILE] [-e FILE] [-i FILE] [-l] [-u] [-O] [-K] [-W SECONDS] [-t TIME] [-Q] [-v] PROGRAM [ARGUMENTS...]
"""
HELP: Final = f"""\
{USAGE}
Starts the tasks of a program in the allocation that it is called in.

How many, and where:
  -n, --ntasks=TASKS           tasks in all (default: as the script says, else one a node)
  -N, --nodes=NODES            number of the allocation's nodes, or a range such as 2-4
      --ntasks-per-node=TASKS  tasks of each node; with --ntasks the most of each node
  -c, --cpus-per-task=CPUS     CPUs of each task, its own
  -w, --nodelist=NODES         these nodes of the allocation
  -x, --exclude=NODES          none of these nodes
  -r, --relative=INDEX         from this node of the allocation on, counted from 0
  -m, --distribution=LAYOUT    block, cyclic or plane=SIZE; Pack behind a comma fills each node first
  -O, --overcommit             more tasks than CPUs
      --exact, --exclusive     each task has CPUs of its own, one core without -c
      --overlap                CPUs that other launches have may be used, too
      --immediate[=SECONDS]    give up where CPUs are in use for longer than this (1)
      --multi-prog             PROGRAM is a file that names the program of each rank

CPUs, GPUs and MPI:
      --cpu-bind=KIND          none, cores, threads, sockets, ldoms, rank, map_cpu:LIST, mask_cpu:LIST
      --threads-per-core=N, --hint=nomultithread
      --gpus-per-task=N, --gpus-per-node=N, --gpus=N, --gres=gpu:N
      --gpu-bind=KIND          closest, single:TASKS, per_task:GPUS, map_gpu:LIST, mask_gpu:LIST, none
      --mpi=KIND               auto, pmi1, pmi2, pmix, none; --mpi=list names them

Directories, files, variables:
  -D, --chdir=DIRECTORY        where the tasks begin (default: the caller's directory)
  -o, --output=FILE            standard output: a file (%j %s %t %n %N %J %u %x), none, all, or the number of a task
  -e, --error=FILE             standard error, likewise
  -i, --input=FILE             standard input, likewise (default: all tasks read the caller's)
      --open-mode=append|truncate
  -l, --label                  the number of the task before each line
  -u, --unbuffered             output at once, not by lines
      --export=ALL|NONE|NAME[=VALUE],...
      --propagate[=LIMITS]     which soft limits of the caller hold for the tasks

The end:
  -K, --kill-on-bad-exit       the first task that fails ends the others
  -W, --wait=SECONDS           end the others this long after the first task ended
  -t, --time=TIME              end the launch after this time
  -X, --disable-status         pass the first Ctrl-C on at once
      --quit-on-interrupt      the first Ctrl-C ends the launch

  -J, --job-name=NAME   -Q, --quiet   -v, --verbose   -V, --version   --usage   -h, --help

Options of Slurm's srun that have no meaning here are named under -v; those that would change what is run are refused.
"""
VERSION: Final = f"lattice-srun {__version__}\n"
MPI_LIST: Final = "MPI plugin types are...\n\tauto\n\tnone\n\tpmi1\n\tpmi2\n\tpmix\n"
