"""`lattice-dev`, which is `lattice dev`: the local control plane from the command line."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lattice import errors
from lattice.kube.resources import TENANTS
from lattice_dev import demo, logs, state
from lattice_dev.build import find_or_build_helm, find_or_build_registry
from lattice_dev.instance import Instance
from lattice_dev.people import ROLES
from lattice_dev.progress import Lines, terminal
from lattice_dev.state import Options
from lattice_dev.waiting import HostClock

EXIT_FAILED = 1
EXIT_NOT_READY = 3
EXIT_INTERRUPTED = 130
_NAMED_ALONE = frozenset({"up", "down", "build", "bench", "trace"})
"""Verbs that make or remove an instance; KUBECONFIG does not choose one for them."""


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of `lattice dev` with all its verbs."""
    parser = argparse.ArgumentParser(
        prog="lattice dev", description="A real control plane and nodes on this machine, for people and tests."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    up = _verb(verbs, "up", "make the instance, or repair it", _up)
    up.add_argument("--nodes", type=int, help="agents that run work (4)")
    up.add_argument("--hollow", type=int, help="nodes that only wait, for scale (0)")
    up.add_argument("--inventory", help="a YAML file of machines: more nodes that only wait, with GPUs, groups, homes; '' for none")
    up.add_argument("--plain", action=argparse.BooleanOptionalAction, help="agents without a network of their own")
    up.add_argument("--kubeconfig", help="use this cluster (kind, a real one) as its administrator, in place of one made here")
    up.add_argument("--without", help="components that shall not run, comma-separated, `agents` for all of them; '' for none")
    up.add_argument("--unsafe-no-fsync", action=argparse.BooleanOptionalAction, help="etcd does not wait for the disk: quick tests only")
    up.add_argument("--compaction", action=argparse.BooleanOptionalAction, help="off: etcd keeps every revision, for the history of a test")
    up.add_argument("--trace-starts", action=argparse.BooleanOptionalAction, help="daemons log each step of the start of an allocation")
    down = _verb(verbs, "down", "end every process and remove every trace", _down)
    down.add_argument("--keep", action="store_true", help="keep the state for a later up")
    _verb(verbs, "status", "every component and what it lacks", _status)
    shown = _verb(verbs, "logs", "what components print", _logs)
    shown.add_argument("component", nargs="?")
    shown.add_argument("-f", "--follow", action="store_true")
    for name, text, act in (("restart", "stop and start a component", _restart), ("kill", "SIGKILL a component", _kill)):
        _verb(verbs, name, text, act).add_argument("component")
    user = _verb(verbs, "user", "make a user and print the path of the kubeconfig", _user)
    user.add_argument("user", metavar="NAME")
    user.add_argument("--tenant", required=True)
    user.add_argument("--role", choices=ROLES, default="user")
    certs = _verb(verbs, "certs", "`certs renew`: issue every certificate anew", _certs)
    certs.add_argument("what", choices=["renew"])
    _verb(verbs, "demo", "apply the first examples as alice and follow them to their ends", _demo)
    built = _verb(verbs, "build", "build the control plane's programs, if they are not in the cache", _build)
    built.add_argument("--helm", action="store_true", help="Helm's engine and an OCI registry too, which tests need")
    bench = _verb(verbs, "bench", "measure latencies, rates, writes, memory, the core, or peers", _bench)
    bench.set_defaults(instance="bench")
    bench.add_argument(
        "only",
        nargs="*",
        metavar="ONLY",
        help="latency, writes, nodeplane, memory, webhook, lists, rates, core, admission, waiting, answers, eta, optimum, quota, usage,"
        " replay (all), fairness, large, or peers",
    )
    bench.add_argument("--quick", action="store_true", help="small sizes: whether it works, not how fast it is")
    bench.add_argument("--trace", action="store_true", help="with latency: each step of a start, as a table and one start as a timeline")
    bench.add_argument("--baseline", type=Path, metavar="CHECKOUT", help="with replay or nodeplane: ours beside that checkout's, by turns")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    replayed = _verb(verbs, "trace", "run the first jobs of a log through the whole system, and check the order", _trace)
    replayed.set_defaults(instance="trace")
    replayed.add_argument("file", type=Path, metavar="FILE", help="a log in the Standard Workload Format, .gz or plain")
    replayed.add_argument("--jobs", type=int, default=200, help="the first so many jobs (200)")
    replayed.add_argument("--nodes", type=int, default=100, help="hollow nodes (100)")
    replayed.add_argument("--compress", type=float, default=5000.0, metavar="C", help="time is divided by this (5000)")
    replayed.add_argument("--beside", type=int, default=20, help="real multi-node allocations on 4 real nodes beside it (20)")
    traced = _verb(verbs, "starts", "what logs tell of starts that were traced (--trace-starts): each step, and the slowest", _starts)
    traced.add_argument("files", nargs="*", type=Path, metavar="FILE", help="logs of scheduler, agents, webhook, gateway (the instance's)")
    _verb(verbs, "kubeconfig", "print the path of a kubeconfig", _kubeconfig).add_argument("user", nargs="?", default="admin")
    return parser


Act = Callable[[Instance, argparse.Namespace, Lines], int]


def _verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, act: Act) -> argparse.ArgumentParser:
    """Adds a verb with the flag --name; `act` runs it. Returns its parser."""
    verb = verbs.add_parser(name, help=text, description=text)
    default, said = ("default", "default") if name in _NAMED_ALONE else (None, "the one of KUBECONFIG, else default")
    verb.add_argument("--name", default=default, dest="instance", help=f"which instance ({said})")
    verb.set_defaults(act=act)
    return verb


def _options(chosen: argparse.Namespace, kept: Options) -> Options:
    """Returns the options of an instance: those given, else those kept from earlier; an empty text takes an inventory, a kubeconfig or the
    components left out away.
    """
    given = {
        "nodes": chosen.nodes,
        "hollow": chosen.hollow,
        "inventory": chosen.inventory and str(Path(chosen.inventory).absolute()),
        "plain": chosen.plain,
        "kubeconfig": chosen.kubeconfig and str(Path(chosen.kubeconfig).absolute()),
        "compaction": chosen.compaction,
        "trace_starts": chosen.trace_starts,
        "fsync": None if chosen.unsafe_no_fsync is None else not chosen.unsafe_no_fsync,
        "without": None if chosen.without is None else tuple(part for part in chosen.without.split(",") if part),
    }
    names = Options.__struct_fields__
    return Options(**{name: getattr(kept, name) if given.get(name) is None else given[name] for name in names})


def _up(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Makes or repairs the instance, and prints how to use it."""
    instance.up(lambda kept: _options(chosen, kept))
    lines.conclude(f"instance {instance.where.name} is ready")
    print(f"export KUBECONFIG={instance.kubeconfig('alice')}    # as alice; {instance.kubeconfig()} is the administrator's")
    return 0


def _down(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Ends the instance, and removes its files unless they are to be kept."""
    instance.down(keep=chosen.keep)
    lines.conclude(f"instance {instance.where.name} is {'stopped' if chosen.keep else 'gone'}")
    return 0


def _status(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Prints each component and what it lacks; returns EXIT_NOT_READY where one lacks something."""
    shown = instance.status()
    for component in shown:
        print(f"{component.name:<26}{component.pid or '-':>8}  {component.missing or 'ready'}")
    return EXIT_NOT_READY if any(component.missing for component in shown) else 0


def _logs(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Prints the logs of a component, or of all; with --follow until it is interrupted."""
    files = instance.log_files(chosen.component)
    if chosen.follow:
        logs.follow(files, sys.stdout, HostClock())
    logs.show(files, sys.stdout)
    return 0


def _restart(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Restarts a component."""
    with lines.step(f"restart {chosen.component}"):
        instance.restart(chosen.component)
    return 0


def _kill(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Kills a component."""
    instance.kill(chosen.component)
    return 0


def _user(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Makes a user and prints the path of the kubeconfig; notes a tenant that did not exist."""
    with contextlib.closing(instance.cluster()) as cluster:
        known = {entry["metadata"]["name"] for entry in cluster.list(TENANTS).items}
    if chosen.tenant not in known:
        print(f"Note: tenant {chosen.tenant} did not exist: it is made, with its namespace", file=sys.stderr)
    print(instance.add_user(chosen.user, chosen.tenant, chosen.role))
    return 0


def _certs(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Issues every certificate anew, and prints their names."""
    for name in instance.renew_certificates():
        print(name)
    return 0


def _kubeconfig(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Prints the path of a user's kubeconfig."""
    print(instance.kubeconfig(chosen.user))
    return 0


def _demo(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Runs the first examples; returns EXIT_FAILED where one did not come to its right end."""
    right = demo.run(instance, print)
    lines.conclude("every example came to its right end" if right else "not every example came to its right end")
    print(*_next_steps(instance), sep="\n")
    return 0 if right else EXIT_FAILED


def _next_steps(instance: Instance) -> list[str]:
    """Returns the lines that tell how to go on as alice in the calling shell."""
    programs, kubectl = Path(sys.executable).parent, Path(instance.site().programs.path("kubectl")).parent
    home = instance.where.user_home(demo.USER)
    return [
        "Go on as alice:",
        f"  export KUBECONFIG={instance.kubeconfig(demo.USER)}",
        f"  export PATH={programs}:$PATH:{kubectl}",
        *([f"  cd {home}    # work runs where `submit` ran"] if home.is_dir() else []),
        "  lattice status",
    ]


def _build(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Builds the control plane's programs, and prints where they are; ends the compilers where it is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(instance.build())
    if chosen.helm:
        print(find_or_build_helm(lines, HostClock(), os.environ).directory)
        print(find_or_build_registry(lines, HostClock(), os.environ).directory)
    return 0


def _bench(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Runs the benchmarks named, as figures, traces, or beside another checkout."""
    from lattice_dev.bench import run as bench

    if chosen.trace:
        bench.trace(chosen.only, name=chosen.instance, quick=chosen.quick, say=print, progress=lines)
        return 0
    if chosen.baseline is not None:
        bench.beside(chosen.only, chosen.baseline, name=chosen.instance, quick=chosen.quick, file=chosen.json, say=print, progress=lines)
        return 0
    bench.run(chosen.only, name=chosen.instance, quick=chosen.quick, file=chosen.json, say=print, progress=lines)
    return 0


def _trace(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Replays the first jobs of a log on the whole system; returns EXIT_FAILED where something was wrong."""
    from lattice_dev.trace import run as trace

    wanted = trace.Wanted(chosen.file, chosen.jobs, chosen.nodes, chosen.compress, chosen.beside)
    return 0 if trace.run(wanted, name=chosen.instance, say=print, progress=lines) else EXIT_FAILED


def _starts(instance: Instance, chosen: argparse.Namespace, lines: Lines) -> int:
    """Prints what logs tell of traced starts."""
    from lattice_dev.bench import starts

    texts = [file.read_text(encoding="utf-8") for file in chosen.files or instance.log_files()]
    print(*starts.report(line for text in texts for line in text.splitlines()), sep="\n")
    return 0


def run(argv: Sequence[str]) -> int:
    """Runs one command; returns the exit code: 0, 1 failed, 3 not ready (`status`), 130 interrupted; wrong usage ends the process with 2.

    Errors of Lattice are printed.
    """
    chosen = _parser().parse_args(argv)
    lines = terminal(HostClock())
    try:
        act: Act = chosen.act
        name = chosen.instance if chosen.instance is not None else state.instance_of_kubeconfig(os.environ) or "default"
        return act(Instance(name, progress=lines), chosen, lines)
    except errors.LatticeError as error:
        print(f"lattice dev {chosen.verb}: {error} ({error.reason})", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: nothing more to say
        return 0


def main() -> None:
    """Runs the program with the process's arguments, and exits with its code."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
