"""Writes the protobuf and gRPC stubs of `proto/` into `lattice/rpc`, the same bytes each time.

Run as `python -m lattice_dev.generate.stubs [ROOT]`. protoc and its Python plugins come from grpcio-tools
and mypy-protobuf (extra `test`); a stub's import path is its proto path.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PACKAGES = {
    "lattice/rpc/__init__.py": "Generated protobuf and gRPC stubs; the source is `proto/`, the generator `lattice_dev.generate.stubs`.",
    "lattice/rpc/v1/__init__.py": "What agents and gateways say to each other (`proto/lattice/rpc/v1`).",
}
"""The packages that hold the stubs, with their docstrings."""


def plugin(name: str) -> str:
    """Returns the path of a protoc plugin, looked for beside the interpreter and on PATH; ends the program where there is none."""
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise SystemExit(f"{name} is not installed: pip install 'lattice-hpc[test]'")
    return found


def generate(root: Path) -> list[Path]:
    """Writes every stub of `root`/proto below `root`; returns the Python files of `lattice/rpc` then.

    Ends the program where grpcio-tools or a plugin is missing, or protoc fails.
    """
    tools = importlib.util.find_spec("grpc_tools")
    if tools is None or tools.origin is None:
        raise SystemExit("grpc_tools is not installed: pip install 'lattice-hpc[test]'")
    for name, text in PACKAGES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f'"""{text}"""\n', encoding="utf-8")
    sources = sorted(str(path.relative_to(root / "proto")) for path in (root / "proto").rglob("*.proto"))
    included = Path(tools.origin).parent / "_proto"
    ended = subprocess.run(  # a process of its own: protoc and OR-tools bring a protobuf each, and one process bears one
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={root / 'proto'}",
            f"--proto_path={included}",
            f"--python_out={root}",
            f"--grpc_python_out={root}",
            f"--plugin=protoc-gen-mypy={plugin('protoc-gen-mypy')}",
            f"--mypy_out=quiet:{root}",
            f"--plugin=protoc-gen-mypy_grpc={plugin('protoc-gen-mypy_grpc')}",
            f"--mypy_grpc_out=quiet,only_async:{root}",
            *sources,
        ],
        check=False,
    )
    if ended.returncode != 0:
        raise SystemExit(f"protoc ended with {ended.returncode}")
    return sorted(path for path in (root / "lattice" / "rpc").rglob("*.py*") if path.suffix in {".py", ".pyi"})


def main() -> None:
    """Writes the stubs below the folder that the command line names, by default this checkout, and prints their paths."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[3]
    for path in generate(root):
        sys.stdout.write(f"{path.relative_to(root)}\n")


if __name__ == "__main__":
    main()
