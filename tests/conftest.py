"""What holds for every test: properties are judged by what they find, never by how fast the machine is that looks.

The profile `gate` draws the same examples each time, so that a change is judged by what it changes and not by the draw. The profile
`search` (LATTICE_PROPERTIES=search, as `make test-all` sets it) draws new ones, five times as many: it is where latent defects are found.

Tests start programs as other users, which Python does by fork: gRPC's handlers of forks run its poller in the child before the exec, where
it dies of SIGSEGV now and then. They are off before gRPC is imported; Lattice's daemons start programs by vfork, which runs no handlers.

A run that was started in the background of a script (nohup, `&`) has SIGINT, SIGQUIT or SIGHUP ignored, and so had every program that it
starts: these get their defaults back.
"""

import os
import signal
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

PROFILE = os.environ.get("LATTICE_PROPERTIES", "gate")
SEARCH_FACTOR = 5

_NO_CONSTANTS = Constants()


def _no_local_constants() -> Constants:
    return _NO_CONSTANTS


for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)  # a handler, even one that does nothing, is the default again in whatever is started
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
settings.register_profile("lattice", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("gate", settings.get_profile("lattice"), derandomize=True, database=None)
settings.register_profile("search", settings.get_profile("lattice"), database=None)
settings.load_profile(PROFILE)
if PROFILE == "gate":
    # Hypothesis mixes the constants of all imported modules of ours into its examples: one number changed anywhere would draw others in a
    # property that never tests it. This reaches into it, which the locked version allows; tests/unit/test_properties.py holds that it works.
    providers._get_local_constants = _no_local_constants


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Lets properties and state machines that name their own number of examples draw SEARCH_FACTOR times as many where they search."""
    if PROFILE != "search":
        return
    raised: set[int] = set()
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        machine = getattr(item, "cls", None)
        for holder, name in ((test, "_hypothesis_internal_use_settings"), (machine, "settings")):
            found = getattr(holder, name, None)
            if isinstance(found, settings) and id(holder) not in raised:
                raised.add(id(holder))
                setattr(holder, name, settings(found, max_examples=found.max_examples * SEARCH_FACTOR))
