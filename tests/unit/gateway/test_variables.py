"""Variables of Secrets: what can be one, what is said of what cannot, and how often a Secret is read."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Denied, Rejected, Retry
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import SECRETS
from lattice.views.work import VariablesFrom
from lattice_gateway.variables import KEPT_SECONDS, MAX_VALUE, Secrets, variables

KEY = ("uid", 1)


def encoded(**data: str | bytes) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(value if isinstance(value, bytes) else value.encode()).decode() for key, value in data.items()}}


def source(name: str = "wandb", prefix: str = "") -> VariablesFrom:
    return VariablesFrom(secret_ref=name, prefix=prefix)


class Store:
    """Secrets of a namespace on a fake API server, and their reader."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.secrets = Secrets(self.cluster, self.clock)

    async def put(self, name: str, **data: str | bytes) -> None:
        await self.cluster.create(SECRETS, {"metadata": {"name": name}, **encoded(**data)}, "physics")

    def reads(self) -> int:
        return len([sent for sent in self.cluster.sent if sent.verb == "get"])


async def test_each_key_becomes_a_variable_and_of_one_name_the_later_secret_wins() -> None:
    store = Store()
    await store.put("wandb", API_KEY="k", MODE="a")
    await store.put("more", MODE="b")
    found = await store.secrets.values(KEY, "physics", [source(prefix="WANDB_"), source(), source("more")])
    assert found == {"WANDB_API_KEY": "k", "WANDB_MODE": "a", "API_KEY": "k", "MODE": "b"}


async def test_a_thousand_nodes_cost_one_read_and_the_next_attempt_reads_anew() -> None:
    store = Store()
    await store.put("wandb", A="1")
    await asyncio.gather(*(store.secrets.values(KEY, "physics", [source()]) for _ in range(1000)))
    assert store.reads() == 1
    await store.secrets.values(("uid", 2), "physics", [source()])
    await store.clock.run_for(KEPT_SECONDS)
    await store.secrets.values(KEY, "physics", [source()])
    assert store.reads() == 3


async def test_a_secret_that_is_not_there_is_named() -> None:
    with pytest.raises(Rejected, match="there is no Secret physics/wandb"):
        await Store().secrets.values(KEY, "physics", [source()])


async def test_a_right_that_is_not_granted_yet_is_waited_for() -> None:
    store = Store()
    store.cluster.fail(Denied("secrets is forbidden", reason="Forbidden"), resource=SECRETS)
    with pytest.raises(Retry, match="may not read Secrets of namespace physics yet"):
        await store.secrets.values(KEY, "physics", [source()])


@pytest.mark.parametrize(
    ("data", "prefix", "sentence"),
    [
        pytest.param({"tls.crt": "v4lue"}, "", "'tls.crt' has other characters", id="a dot"),
        pytest.param({"1st": "v4lue"}, "", "begins with a digit", id="a digit first"),
        pytest.param({"KEY": b"\xff\xfev4lue"}, "", "no text in UTF-8", id="binary"),
        pytest.param({"KEY": "v4lue\0"}, "", "NUL", id="a NUL"),
        pytest.param({"KEY": "v4lue" + "x" * MAX_VALUE}, "", f"limit of a variable: {MAX_VALUE}", id="too long"),
        pytest.param({"a-b": "v4lue"}, "P_", "'P_a-b'", id="a prefix does not mend a dash"),
    ],
)
def test_what_can_be_no_variable_is_named_and_its_value_is_not(data: dict[str, str | bytes], prefix: str, sentence: str) -> None:
    with pytest.raises(Rejected) as caught:
        variables("physics", source(prefix=prefix), encoded(**data))
    assert sentence in caught.value.message
    assert "Secret physics/wandb: key" in caught.value.message
    assert "v4lue" not in caught.value.message


def test_a_prefix_makes_a_key_that_begins_with_a_digit_a_name() -> None:
    assert variables("physics", source(prefix="N"), encoded(**{"1": "a"})) == {"N1": "a"}


async def test_all_together_have_a_limit() -> None:
    store = Store()
    await store.put("wandb", **{f"K{number}": "x" * MAX_VALUE for number in range(5)})
    with pytest.raises(Rejected, match="limit: 131072"):
        await store.secrets.values(KEY, "physics", [source()])
