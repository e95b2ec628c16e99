"""The registry of a measurement answers as the puller and the operator ask."""

from __future__ import annotations

from lattice.clients.uenv_images import closest, opened
from lattice.software.labels import parse_label
from lattice.views.cluster import SoftwareOptions
from lattice_dev.bench.image_server import serving
from lattice_dev.bench.nodeplane import LABEL


async def test_the_label_of_the_measurement_names_the_one_image_that_is_served() -> None:
    with serving(b"an image", "127.0.0.1") as server:
        async with opened(SoftwareOptions(registry=server.url, system="bench"), "") as images:
            found, left_out = await images.find(parse_label(LABEL), 10)
            image = closest(parse_label(LABEL), found, left_out)
            assert (len(found), left_out, image.layer.size) == (1, 0, len(b"an image"))
            assert await images.metadata(image) is None
