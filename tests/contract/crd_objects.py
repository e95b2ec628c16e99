"""Requests on the objects of one kind at a real API server, and what their answers must be."""

from __future__ import annotations

from typing import Any

from tests.servers import MERGE, Answer, ApiServer

API = "/apis/lattice.dev/v1alpha1"
STRICT = {"fieldValidation": "Strict"}


class Collection:
    """Requests on the objects of one kind."""

    def __init__(self, server: ApiServer, plural: str, kind: str, namespace: str = "") -> None:
        self.server = server
        self.kind = kind
        self.path = f"{API}/{f'namespaces/{namespace}/' if namespace else ''}{plural}"

    def create(self, name: str, **parts: Any) -> Answer:
        manifest = {"apiVersion": "lattice.dev/v1alpha1", "kind": self.kind, "metadata": {"name": name}, **parts}
        return self.server.request("POST", self.path, manifest, query=STRICT)

    def read(self, name: str) -> Any:
        answer = self.server.request("GET", f"{self.path}/{name}")
        assert answer.ok, answer.message
        return answer.body

    def merge(self, name: str, patch: Any, *, status: bool = False) -> Answer:
        target = f"{self.path}/{name}/status" if status else f"{self.path}/{name}"
        return self.server.request("PATCH", target, patch, content_type=MERGE, query=STRICT)

    def put(self, name: str, body: Any, *, status: bool = False) -> Answer:
        target = f"{self.path}/{name}/status" if status else f"{self.path}/{name}"
        return self.server.request("PUT", target, body, query=STRICT)

    def drop(self, name: str) -> None:
        self.server.request("DELETE", f"{self.path}/{name}")


def refused(answer: Answer, sentence: str, status: int = 422) -> None:
    assert answer.status == status, (answer.status, answer.message or answer.body)
    assert sentence in answer.message


def accepted(answer: Answer) -> Any:
    assert answer.ok, answer.message
    return answer.body


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
