"""What a process loads: an agent stays small, `lattice --help` stays quick, asked of `sys.modules` of a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lattice_agent.standalone import runner

LOADED = "print('LOADED ' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"

EVERY_MODULE = """
import importlib, json, pkgutil, sys
package = importlib.import_module({package!r})
for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):
    if not found.name.endswith(('.__main__', '.shim', '.runner')):
        importlib.import_module(found.name)
importlib.import_module({package!r} + '.__main__')
"""

HELP = """
import json, sys
from lattice.cli.__main__ import main
sys.argv = ['lattice', '--help']
try:
    main()
except SystemExit:
    pass
"""


def loaded(code: str) -> set[str]:
    """The top-level names that a fresh interpreter has loaded after the code."""
    done = subprocess.run([sys.executable, "-c", code + LOADED], capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOADED ")]
    assert lines, f"the program cannot be imported:\n{done.stderr[-2000:]}"
    return set(json.loads(lines[-1].removeprefix("LOADED ")))


@pytest.mark.parametrize(
    ("package", "unwanted"),
    [
        ("lattice_agent", {"pydantic", "kubernetes", "kopf", "numpy"}),
        ("lattice_controllers.scheduler", {"kopf", "kubernetes", "numpy"}),
        ("lattice_webhooks", {"kopf", "kubernetes", "numpy"}),
        ("lattice_gateway", {"pydantic", "kubernetes", "kopf", "numpy"}),
        ("lattice_controllers.operator", {"kubernetes", "numpy"}),
    ],
    ids=["agent", "scheduler", "webhook", "gateway", "operator"],
)
def test_a_daemon_loads_only_what_it_needs(package: str, unwanted: set[str]) -> None:
    assert loaded(EVERY_MODULE.format(package=package)) & unwanted == set()


def test_help_of_the_command_line_loads_nothing_heavy() -> None:
    unwanted = {"pydantic", "kubernetes", "kopf", "numpy", "aiohttp", "grpc", "rich", "ssl", "asyncio"}
    assert loaded(HELP) & unwanted == set()


STATUS = """
import json, sys
from lattice.cli.__main__ import parse
import lattice.cli.console, lattice.cli.surroundings
import lattice.cli.from_memory, lattice.cli.stream, lattice.cli.own_writes, lattice.kube.credentials, lattice.kube.kubeconfig
import lattice.cli.verbs.status_view
parse("status", [])
"""


def test_a_list_from_the_gateway_is_shown_without_what_takes_longer_to_load() -> None:
    unwanted = {"msgspec", "yaml", "dataclasses", "inspect", "decimal", "tempfile", "shutil", "random", "asyncio"}
    assert loaded(STATUS) & unwanted == set()


@pytest.mark.parametrize("module", ["lattice.kube.kubeconfig", "lattice.kube.blocking"])
def test_one_shot_verbs_talk_to_the_server_without_aiohttp(module: str) -> None:
    assert loaded(f"import json, sys, {module}\n") & {"aiohttp", "kubernetes", "pydantic"} == set()


@pytest.mark.parametrize(
    "module", ["lattice.views", "lattice.models.conditions", "lattice.models.reasons", "lattice.units", "lattice.errors"]
)
def test_what_every_process_shares_is_light(module: str) -> None:
    assert loaded(f"import json, sys, {module}\n") & {"pydantic", "aiohttp", "grpc", "asyncio", "ssl"} == set()


AUTHORITIES = """
import importlib, json, ssl, sys
importlib.import_module({package!r} + '.__main__')
import aiohttp.connector as found
mine = (found._SSL_CONTEXT_VERIFIED, found._SSL_CONTEXT_UNVERIFIED)
assert not any(one.get_ca_certs() for one in mine), "aiohttp has read the system's authorities"
assert found._SSL_CONTEXT_VERIFIED.verify_mode is ssl.CERT_REQUIRED
assert ssl.create_default_context().get_ca_certs(), "they can no longer be read"
"""


@pytest.mark.parametrize(
    "package", ["lattice_agent", "lattice_controllers.scheduler", "lattice_webhooks", "lattice_gateway", "lattice_controllers.operator"]
)
def test_a_daemon_holds_no_authorities_that_it_does_not_ask_for_and_trusts_nobody_by_them(package: str) -> None:
    assert "aiohttp" in loaded("import json, sys\n" + AUTHORITIES.format(package=package))


@pytest.mark.parametrize("package", ["lattice_agent", "lattice_controllers.scheduler", "lattice_webhooks", "lattice_gateway"])
def test_a_daemon_reads_no_yaml_to_start(package: str) -> None:
    assert "yaml" not in loaded(f"import importlib, json, sys\nimportlib.import_module({package + '.__main__'!r})\n")


def test_an_agent_holds_no_library_for_what_other_processes_do_for_it() -> None:
    unwanted = {"cryptography", "tarfile", "yaml", "zstandard", "pydantic"}
    assert loaded("import importlib, json, sys\nimportlib.import_module('lattice_agent.__main__')\n") & unwanted == set()


STANDALONE = """
import json, sys
from types import ModuleType
sys.modules["lattice_agent"] = package = ModuleType("lattice_agent")
package.__path__ = [{folder!r}]
import lattice_agent.standalone.runner, lattice_agent.standalone.shim, lattice_agent.standalone.hold, lattice_agent.standalone.hook
"""


def test_the_runner_and_the_shims_that_it_forks_load_no_module_that_they_could_do_without() -> None:
    code = STANDALONE.format(folder=str(Path(runner.__file__).parent.parent)) + LOADED
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    unwanted = {"dataclasses", "inspect", "typing", "traceback", "socket", "ast", "tokenize", "subprocess", "logging", "tempfile"}
    assert set(json.loads(done.stdout.rpartition("LOADED ")[2])) & unwanted == set()
