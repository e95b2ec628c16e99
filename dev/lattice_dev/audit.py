"""The API server's audit policy: all writes by name, and reads of people, of Secrets, and of what agents must not read."""

from __future__ import annotations

from pathlib import Path

import yaml

READS = ["get", "list", "watch"]
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "nonResourceURLs": ["*"]},
        {"level": "None", "verbs": READS, "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {"level": "None", "verbs": READS, "users": ["system:apiserver", "system:kube-controller-manager"]},
        {"level": "Metadata", "verbs": READS, "resources": [{"group": "", "resources": ["secrets"]}]},
        {"level": "None", "verbs": READS, "userGroups": ["lattice:agents"], "resources": [
            {"group": "lattice.dev", "resources": ["latticenodes", "latticenodes/status", "nodegroupplans", "latticeconfigs"]},
        ]},
        {"level": "Metadata", "userGroups": ["lattice:agents"]},
        {"level": "None", "verbs": READS, "userGroups": ["system:masters", "system:serviceaccounts"]},
        {
            "level": "None",
            "verbs": READS,
            "users": ["lattice:scheduler", "lattice:operator", "lattice:webhook", "lattice:gateway", "lattice:hollow"],
        },
        {"level": "None", "verbs": ["create"], "resources": [
            {"group": "authentication.k8s.io"}, {"group": "authorization.k8s.io"},
        ]},
        {"level": "Metadata"},
    ],
}  # fmt: skip


EVERY_REQUEST = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "None", "nonResourceURLs": ["*"]}, {"level": "Metadata"}],
}
"""The policy of a benchmark that counts requests, reads too."""


def write_policy(path: Path, *, reads: bool = False) -> None:
    """Writes the API server's audit policy to `path`, unless the file has that text; `reads`: a policy that logs every read too."""
    text = yaml.safe_dump(EVERY_REQUEST if reads else POLICY, sort_keys=False)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
