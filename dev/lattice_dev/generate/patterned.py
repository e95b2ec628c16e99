"""Generates `lattice/admission/patterned.py`: which field of a spec needs which form, from the schemas of the kinds that people write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lattice.models.allocation import Allocation
from lattice.models.config import LatticeConfig
from lattice.models.dag import DAG
from lattice.models.elastic_quota import ElasticQuota
from lattice.models.forms import FORMS
from lattice.models.node import LatticeNode
from lattice.models.reservation import Reservation
from lattice.models.shape import Kind
from lattice.models.tenant import Tenant
from lattice.models.vcluster import VCluster
from lattice_dev.generate.crds import Schema, crd

KINDS: Final[tuple[type[Kind], ...]] = (Allocation, DAG, Tenant, VCluster, Reservation, ElasticQuota, LatticeConfig, LatticeNode)
"""The kinds whose specs people write."""
_HEADER: Final = '''\
"""The form of each field of a spec whose schema has a pattern, by kind and path; `*` stands for the entries of a list or map.

Generated from lattice/models by `make generate`; change the model, not this file.
"""

from __future__ import annotations

from typing import Final

PATTERNED: Final[dict[str, dict[str, str]]] = {
'''


def files(root: Path) -> dict[Path, str]:
    """Returns the text of the module by its path below the checkout `root`; writes nothing.

    Raises KeyError for a pattern without a form.
    """
    names = {form.pattern: name for name, form in FORMS.items()}
    lines = [_HEADER]
    for kind in KINDS:
        schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        lines.append(f'    "{kind.meta.kind}": {{\n')
        lines += (f'        "{path}": "{names[pattern]}",\n' for path, pattern in _patterns(schema["properties"]["spec"], "spec"))
        lines.append("    },\n")
    return {root / "lattice" / "admission" / "patterned.py": "".join([*lines, "}\n"])}


def _patterns(node: Schema, path: str) -> Iterator[tuple[str, str]]:
    """Yields path and pattern of each text below a node of a schema that has a pattern or is a time."""
    if "pattern" in node:
        yield path, node["pattern"]
    if node.get("format") == "date-time":
        yield path, FORMS["time"].pattern
    for name, child in node.get("properties", {}).items():
        yield from _patterns(child, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(node.get(inner), dict):
            yield from _patterns(node[inner], f"{path}.*")
