"""CDI specifications say what a container needs for a device; what they say wrongly, or wants more than is done, is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.errors import Rejected
from lattice_agent.work.devices import DeviceEdits, DeviceMount, DeviceNode, choose_devices

GPUS: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "vendor.example/gpu",
    "containerEdits": {
        "env": ["GPUS=void"], "hooks": [{"hookName": "createContainer", "path": "/bin/hook", "args": ["hook", "x"]}],
        "deviceNodes": [{"path": "/dev/gpuctl", "type": "c", "major": 195, "minor": 255, "permissions": "rw"}],
    },
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/gpu0"}], "env": ["FIRST=1"], "additionalGids": [44]}},
        {"name": "1", "containerEdits": {"mounts": [{"hostPath": "/usr/lib/gpu", "containerPath": "/usr/lib/gpu", "options": ["ro", "rbind"]}]}},
    ],
}  # fmt: skip


def choose(*names: str, documents: tuple[Any, ...] = (GPUS,)) -> Any:
    return choose_devices(names, [(f"/etc/cdi/{number}.json", document) for number, document in enumerate(documents)])


def test_a_device_brings_its_own_edits_and_those_of_its_specification_once() -> None:
    edits = choose("vendor.example/gpu=0", "vendor.example/gpu=1", "vendor.example/gpu=0")
    assert edits.variables == {"GPUS": "void", "FIRST": "1"}
    assert edits.nodes == (DeviceNode("/dev/gpuctl", "/dev/gpuctl", "c", 195, 255, permissions="rw"), DeviceNode("/dev/gpu0", "/dev/gpu0"))
    assert edits.mounts == (DeviceMount("/usr/lib/gpu", "/usr/lib/gpu", ("ro", "rbind")),)
    assert edits.hooks == {"createContainer": ({"path": "/bin/hook", "args": ["hook", "x"]},)}
    assert edits.groups == (44,)
    assert choose() == DeviceEdits()


def test_a_later_directory_is_stronger() -> None:
    other = {"kind": "vendor.example/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["LATER=1"]}}]}
    assert choose("vendor.example/gpu=0", documents=(GPUS, other)).variables == {"LATER": "1"}


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"hooks": [{"hookName": "poststop", "path": "/bin/x"}]}, "wants to run at poststop, which is not served"),
        ({"hooks": [{"hookName": "startContainer", "path": "/bin/x"}]}, "wants to run at startContainer, which is not served"),
        ({"deviceNodes": [{"path": "dev/x"}]}, "'dev/x' is no absolute path"),
        ({"deviceNodes": [{"path": "/dev/x", "type": "p"}]}, "is of the type 'p'"),
        ({"mounts": [{"hostPath": "/a/../b", "containerPath": "/c"}]}, "is no absolute path"),
        ({"mounts": [{"hostPath": "/a"}]}, "containerPath"),
        ({"additionalGids": ["x"]}, "invalid literal"),
        ([], "list"),
    ],
)
def test_a_specification_that_cannot_be_followed_is_refused_by_its_file(edits: Any, said: str) -> None:
    document = {"kind": "a.example/b", "devices": [{"name": "c", "containerEdits": edits or [1]}]}
    with pytest.raises(Rejected, match=r"/etc/cdi/0.json of the device 'a.example/b=c' cannot be used") as refused:
        choose("a.example/b=c", documents=(document,))
    assert said in refused.value.message


@pytest.mark.parametrize("document", [None, [], "x", {}, {"kind": 3}, {"kind": "a/b", "devices": {}}, {"kind": "a/b", "devices": [1]}])
def test_what_is_no_specification_has_no_devices(document: Any) -> None:
    with pytest.raises(Rejected, match="its CDI specifications name none"):
        choose("a/b=c", documents=(document,))
