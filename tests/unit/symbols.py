"""The programs' source as trees: which symbols each module defines, and which names it uses."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "lattice": ROOT / "lattice",
    "lattice_controllers": ROOT / "controllers" / "lattice_controllers",
    "lattice_agent": ROOT / "agent" / "lattice_agent",
    "lattice_webhooks": ROOT / "webhooks" / "lattice_webhooks",
    "lattice_gateway": ROOT / "gateway" / "lattice_gateway",
    "lattice_dev": ROOT / "dev" / "lattice_dev",
}
GENERATED = ROOT / "lattice" / "rpc" / "v1"

Function = ast.FunctionDef | ast.AsyncFunctionDef
MOST_IN_ITSELF = 10
"""A method names itself at most so often: what is named more often is not looked at more closely."""


@dataclass(frozen=True)
class Module:
    """One module: its dotted name, its file and its tree."""

    name: str
    path: Path
    tree: ast.Module

    def classes(self) -> Iterator[ast.ClassDef]:
        """Every class at its top."""
        return (each for each in self.tree.body if isinstance(each, ast.ClassDef))


@cache
def modules() -> dict[str, Module]:
    """Every module of the programs by its dotted name, generated stubs left out."""
    found = {}
    for package, directory in PACKAGES.items():
        for path in sorted(directory.rglob("*.py")):
            if not path.is_relative_to(GENERATED):
                parts = [package, *path.relative_to(directory).with_suffix("").parts]
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8")))
    return found


def names(tree: ast.AST, imported: set[str] | None = None) -> Counter[str]:
    """How often each name is read, imported, or written as a string that could name an attribute.

    `imported` gets the modules that it imports, wherever; `from a import b` counts as a and a.b.
    """
    found: Counter[str] = Counter()
    modules_of = imported if imported is not None else set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                found[name] += 1
            case ast.Constant(value=str(text)) if text.isidentifier():
                found[text] += 1
            case ast.Import(names=aliases):
                modules_of.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=str(source), names=aliases):
                found.update(alias.name for alias in aliases)
                modules_of.update((source, *(f"{source}.{alias.name}" for alias in aliases)))
            case _:
                pass
    return found


@cache
def unused() -> tuple[str, ...]:
    """The dotted name of every function and class that neither its module nor an importer names, and of methods that no module names.

    A function is looked for where it can be reached; a method's owner is not known, so that its name anywhere outside its own body
    counts as a use.
    """
    return tuple(_unused())


def _unused() -> Iterator[str]:
    every = modules()
    used: dict[str, Counter[str]] = {}
    importers: dict[str, list[str]] = {}
    for name, module in every.items():
        imported: set[str] = set()
        used[name] = names(module.tree, imported)
        for each in imported:
            importers.setdefault(each, []).append(name)
    total: Counter[str] = sum(used.values(), Counter())
    for name, module in every.items():
        for statement in module.tree.body:
            if isinstance(statement, ast.ClassDef | Function):
                reached = any(used[importer][statement.name] for importer in importers.get(name, ()))
                if not reached and used[name][statement.name] <= names(statement)[statement.name]:
                    yield f"{name}.{statement.name}"
            if isinstance(statement, ast.ClassDef):
                yield from (f"{name}.{statement.name}.{method}" for method in _unused_methods(statement, total))


@cache
def unused_constants() -> tuple[str, ...]:
    """The dotted name of every variable of a module that neither the module nor an importer reads."""
    every = modules()
    read: dict[str, Counter[str]] = {}
    importers: dict[str, list[str]] = {}
    for name, module in every.items():
        imported: set[str] = set()
        read[name] = names(module.tree, imported)
        for each in imported:
            importers.setdefault(each, []).append(name)
    return tuple(
        f"{name}.{variable}"
        for name, module in every.items()
        for variable in _variables(module.tree)
        if not any(read[reader][variable] for reader in (name, *importers.get(name, ())))
    )


def _variables(tree: ast.Module) -> Iterator[str]:
    """The names that a module assigns at its top, one by one; of several at once, one read is enough for all."""
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("__"):
                yield name
            case _:
                pass


def _unused_methods(owner: ast.ClassDef, total: Counter[str]) -> Iterator[str]:
    for each in owner.body:
        if isinstance(each, Function) and not each.name.startswith("__"):
            seldom = total[each.name] <= MOST_IN_ITSELF
            if seldom and total[each.name] <= names(each)[each.name]:
                yield each.name
