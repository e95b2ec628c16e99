"""Hardware and software that the agent does not discover but flags declare: GPUs, CXL memory, power, versions of components.

Nothing is invented: what nobody declares is absent, and a node without declared GPUs has none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lattice.errors import Rejected
from lattice.units import format_bytes

if TYPE_CHECKING:
    from lattice.inventory import NodeClass  # which loads YAML

MOST_COMPONENTS: Final = 16
FINGERPRINT: Final = "sha256:"
"""The beginning of a fingerprint, before its 64 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class StaticCapabilities:
    """The declared hardware and components of one node.

    `cxl_memory` and `gpu_memory` (of each GPU) in bytes; `watts` is the power at full load, 0: unknown.
    """

    gpus: int = 0
    gpu_type: str = ""
    gpu_memory: int = 0
    cxl_memory: int = 0
    unified: bool = False
    watts: int = 0
    components: Mapping[str, str] = field(default_factory=dict)
    """Versions by name of the component, such as gpu-driver; they are part of the fingerprint."""

    def __post_init__(self) -> None:
        """Raises Rejected for numbers out of range, and for GPU details without GPUs."""
        if min(self.gpus, self.watts) < 0 or self.gpus > 1024:
            raise Rejected(f"--gpus {self.gpus}, --watts {self.watts}: 0 to 1024 GPUs, and no power below 0", reason="SettingWrong")
        for flag, value in (("--gpu-type", self.gpu_type), ("--gpu-memory", self.gpu_memory)):
            if value and not self.gpus:
                raise Rejected(f"{flag} {value}: this node declares no GPUs; set --gpus", reason="SettingWrong")

    def capabilities(self) -> dict[str, Any]:
        """Returns the declared part of `LatticeNode.status.capabilities`."""
        return {
            "gpus": self.gpus,
            "gpuType": self.gpu_type,
            "gpuMemory": format_bytes(self.gpu_memory),
            "cxlMemory": format_bytes(self.cxl_memory),
            "unifiedMemory": self.unified,
            "nominalWatts": self.watts,
        }


def from_node_class(node_class: NodeClass, fingerprint: str) -> StaticCapabilities:
    """Returns the capabilities that an inventory declares for a class of nodes; `fingerprint` stands for all components together."""
    return StaticCapabilities(
        gpus=node_class.gpus,
        gpu_type=node_class.gpu_type,
        gpu_memory=node_class.gpu_memory,
        cxl_memory=node_class.cxl_memory,
        unified=node_class.unified,
        watts=node_class.watts,
        components={"inventory": fingerprint},
    )


def read_components(words: Iterable[str]) -> dict[str, str]:
    """Returns versions by name, read from words such as `gpu-driver=550.54.14`.

    Raises Rejected for a word that is no NAME=VERSION (63 and 128 characters at most), for a name with two versions, and for more than
    16 components.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, version = word.partition("=")
        if not equals or not name or not version or len(name) > 63 or len(version) > 128:
            raise Rejected(f"--component {word}: write NAME=VERSION, for example gpu-driver=550.54.14", reason="SettingWrong")
        if found.setdefault(name, version) != version:
            raise Rejected(f"--component {name} is given twice, as {found[name]} and as {version}", reason="SettingWrong")
    if len(found) > MOST_COMPONENTS:
        raise Rejected(f"--component: {len(found)} components (limit: {MOST_COMPONENTS})", reason="SettingWrong")
    return found


def fingerprint(kernel: str, agent: str, components: Mapping[str, str]) -> str:
    """Returns `sha256:` and the hash of the sorted components, kernel and agent version among them (book, "Conformance Fingerprint")."""
    known = {**components, "kernel": kernel, "lattice-agent": agent}
    text = "".join(f"{name}={known[name]}\n" for name in sorted(known))
    return FINGERPRINT + hashlib.sha256(text.encode()).hexdigest()
