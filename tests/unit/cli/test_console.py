"""What a run has at hand: a cluster that cannot be found is said as such, and a dry run needs none."""

from __future__ import annotations

import argparse
import io
import os
import time

import pytest

from lattice.cli.configuration import Configuration
from lattice.cli.console import Console, Outside
from lattice.errors import NotFound
from lattice.kube.kubeconfig import ClusterConfig

from .conftest import Bench


def test_a_missing_kubeconfig_is_not_taken_for_a_missing_tenant() -> None:
    def configure(path: str | None, _context: str | None) -> ClusterConfig:
        raise NotFound(f"there is no kubeconfig {path}", reason="KubeconfigNotFound")

    def unreachable(*_: object) -> None:
        raise AssertionError("nothing is connected to without a kubeconfig")

    outside = Outside(
        stdin=io.BytesIO(),
        stdout=io.StringIO(),
        stderr=io.StringIO(),
        environ={"LATTICE_TENANT": "physics"},
        directory=os.sep,
        columns=0,
        now=time.monotonic,
        sleep=unreachable,
        configure=configure,
        connect=unreachable,  # type: ignore[arg-type]  # never called
        stream=unreachable,  # type: ignore[arg-type]  # never called
        random=str,
    )
    args = argparse.Namespace(kubeconfig="none", context=None, namespace=None, tenant=None)
    with pytest.raises(NotFound) as missing:
        _ = Console(args, outside, Configuration()).namespace
    assert missing.value.reason == "KubeconfigNotFound"


def test_a_dry_run_without_a_cluster_leaves_the_walltime_to_the_vcluster(bench: Bench) -> None:
    result = bench.run("submit", "--dry-run=client", "--", "true")
    assert result.code == 0, result.err
    assert "spec.lifecycle.walltime is not set: the vcluster's default is taken" in result.err
