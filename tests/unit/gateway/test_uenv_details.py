"""What the gateway says of an image can be sent, whatever stands in its metadata."""

from __future__ import annotations

import json

import msgspec

from lattice.clients.registry import Descriptor
from lattice.clients.uenv_images import UenvImage
from lattice.software.catalog import UenvRepository
from lattice.software.image_metadata import read_metadata
from lattice_gateway.software import _details

IMAGE = UenvImage(
    UenvRepository("p", "deploy", "daint", "gh200", "a", "1"), "v1", "sha256:" + "a" * 64, Descriptor("sha256:" + "b" * 64), ""
)


def test_half_a_pair_of_surrogates_is_shown_as_a_question_mark() -> None:
    half = "\\ud800"
    env = '{"values": {"scalar": {"A": "HALF"}, "list": {"B": [{"op": "set", "value": ["HALF"]}]}}}'
    document = '{"mount": "/m", "description": "HALF", "views": {"HALF": {"description": "HALF", "env": ENV}}}'
    read = read_metadata(document.replace("ENV", env).replace("HALF", half).encode())
    said = json.loads(msgspec.json.encode(_details(IMAGE, read)))
    assert (said["description"], said["views"]) == ("?", [{"name": "?", "description": "?", "changes": ["set A ?", "set B ?"]}])
