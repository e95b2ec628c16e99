"""The registry of a measurement answers as the puller and the operator ask."""

from __future__ import annotations

import hashlib
import http.client
import os
from pathlib import Path

import pytest

from lattice.clients.uenv_images import closest, opened
from lattice.software.labels import parse_label
from lattice.views.cluster import SoftwareOptions
from lattice_dev.bench import image_files, image_server
from lattice_dev.bench.image_server import serving
from lattice_dev.bench.software import LABEL, LARGE


async def test_each_label_of_the_measurement_names_one_image_though_two_have_the_same_bytes(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"a large image")
    system = image_server.container("bench/system", "v1", b"a layer", "sha256:" + 64 * "0", image_files.ARCHITECTURE)
    uenvs = image_server.uenv("bench", "1", {"v1": b"an image"}) | image_server.uenv("large", "1", {"v0": large, "v1": large})
    with serving(uenvs | system, "127.0.0.1") as server:
        async with opened(SoftwareOptions(registry=server.uenvs, system="bench"), "") as images:
            digests = set()
            for label, size in ((LABEL, 8), (LARGE.format(number=0), 13), (LARGE.format(number=1), 13)):
                found, left_out = await images.find(parse_label(label), 10)
                image = closest(parse_label(label), found, left_out)
                assert (len(found), left_out, image.layer.size) == (1, 0, size)
                assert await images.metadata(image) is None
                digests.add(image.digest)
            assert len(digests) == 3


@pytest.mark.parametrize("content", ["bytes", "file"])
def test_a_pull_may_go_on_where_it_broke_off(tmp_path: Path, content: str) -> None:
    held = os.urandom(300_000)
    (tmp_path / "file").write_bytes(held)
    answers = image_server.uenv("bench", "1", {"v1": held if content == "bytes" else tmp_path / "file"})
    with serving(answers, "127.0.0.1") as server:
        connection = http.client.HTTPConnection(server.host, timeout=60)
        path = f"/v2/{image_server.UENV_ROOT}/bench/1/blobs/sha256:{hashlib.sha256(held).hexdigest()}"
        for asked, status, expected in (("", 200, held), ("bytes=123456-", 206, held[123456:])):
            connection.request("GET", path, headers={"Range": asked} if asked else {})
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (status, expected)
        connection.close()
