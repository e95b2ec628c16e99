"""What the site demands of software holds for all work, and a refusal names the option."""

from __future__ import annotations

import pytest

from lattice.errors import Rejected
from lattice.software.site_rules import check_devices

KINDS = ("nvidia.com/gpu", "vendor.example/nic")


@pytest.mark.parametrize("names", [(), ("nvidia.com/gpu=0", "nvidia.com/gpu=all", "vendor.example/nic=a:b")])
def test_devices_of_the_kinds_that_are_listed_may_be_named(names: tuple[str, ...]) -> None:
    check_devices(names, KINDS)
    check_devices((), ())
    check_devices(("any.example/thing=1",), ("*",))


@pytest.mark.parametrize(
    ("name", "kinds", "limit"),
    [
        ("nvidia.com/gpu=0", (), "of no kind"),
        ("nvidia.com/gpus=0", KINDS, "of nvidia.com/gpu, vendor.example/nic"),
        ("nvidia.com/g=pu=0", KINDS, "of nvidia.com/gpu, vendor.example/nic"),
        ("nvidia.com", KINDS, "of nvidia.com/gpu, vendor.example/nic"),
    ],
)
def test_any_other_is_refused_with_the_option_that_lists_them(name: str, kinds: tuple[str, ...], limit: str) -> None:
    with pytest.raises(Rejected) as caught:
        check_devices(("vendor.example/nic=0", name) if kinds else (name,), kinds)
    assert caught.value.reason == "ImageRefused"
    for part in (f"{name!r}", limit, "software.containerDevices", "ask the operators"):
        assert part in caught.value.message
