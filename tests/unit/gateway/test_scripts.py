"""Scripts of ConfigMaps: only what has the digest of the spec is given, and one reading serves all nodes of an attempt."""

from __future__ import annotations

import asyncio

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Denied, Rejected, Retry
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import CONFIG_MAPS
from lattice.scripts.digests import script_digest
from lattice.views.work import ScriptFrom
from lattice_gateway.scripts import KEPT_SECONDS, Scripts

KEY = ("uid", 1)
TEXT = "#!/bin/sh\n# ä\n"


class Store:
    """ConfigMaps of a namespace on a fake API server, and the reader of scripts."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.scripts = Scripts(self.cluster, self.clock)

    async def put(self, text: str = TEXT, key: str = "script") -> None:
        await self.cluster.create(CONFIG_MAPS, {"metadata": {"name": "job.script"}, "data": {key: text}}, "physics")

    def reads(self) -> int:
        return len([sent for sent in self.cluster.sent if sent.verb == "get"])


def source(text: str = TEXT) -> ScriptFrom:
    return ScriptFrom(config_map="job.script", digest=script_digest(text))


async def test_a_thousand_nodes_cost_one_read_and_the_next_attempt_reads_anew() -> None:
    store = Store()
    await store.put()
    found = await asyncio.gather(*(store.scripts.text(KEY, "physics", source()) for _ in range(1000)))
    assert set(found) == {TEXT}
    assert store.reads() == 1
    await store.scripts.text(("uid", 2), "physics", source())
    await store.clock.run_for(KEPT_SECONDS)
    await store.scripts.text(KEY, "physics", source())
    assert store.reads() == 3


async def test_a_config_map_that_is_gone_or_of_another_namespace_is_named() -> None:
    store = Store()
    await store.put()
    with pytest.raises(Rejected, match=r"ConfigMap chemistry/job.script with the script of this work .* is gone: submit the work again"):
        await store.scripts.text(KEY, "chemistry", source())


async def test_another_text_is_never_given() -> None:
    store = Store()
    await store.put("#!/bin/sh\nrm -rf ~\n")
    with pytest.raises(Rejected, match=r"was changed since this work was submitted: .*submit the work again") as caught:
        await store.scripts.text(KEY, "physics", source())
    assert source().digest in caught.value.message
    assert "rm -rf" not in caught.value.message


async def test_a_key_that_is_missing_is_named() -> None:
    store = Store()
    await store.put(key="other")
    with pytest.raises(Rejected, match="has no key 'script'"):
        await store.scripts.text(KEY, "physics", source())


async def test_a_right_that_is_not_granted_yet_is_waited_for() -> None:
    store = Store()
    store.cluster.fail(Denied("configmaps is forbidden", reason="Forbidden"), resource=CONFIG_MAPS)
    with pytest.raises(Retry, match="the operator grants it"):
        await store.scripts.text(KEY, "physics", source())
