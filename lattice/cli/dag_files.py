"""Reads the files of `lattice dag submit`: a DAG of ours, or either form of the book."""

from __future__ import annotations

from typing import Any, BinaryIO, Final

from lattice.cli.files import read_bounded, read_file
from lattice.cli.submission import slug
from lattice.errors import Rejected
from lattice.scripts.book import is_book
from lattice.scripts.book_dags import dag_from_book, is_workflow

_LONGEST: Final = 8 * 1024 * 1024


def read_dag(path: str, stdin: BinaryIO) -> dict[str, Any]:
    """Returns the one DAG of a YAML or JSON file (`-`: standard input); a name of the book's form becomes one of an object.

    Raises Rejected for other kinds, a file with none or several, and one of more than 8 MiB.
    """
    import yaml

    data = read_bounded(stdin, _LONGEST, "standard input") if path == "-" else read_file(path, _LONGEST)
    try:
        documents = [document for document in yaml.safe_load_all(data.decode()) if document is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Rejected(f"{path} is no YAML: {' '.join(str(error).split())}", reason="BadDocument") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise Rejected(f"{path} holds {len(documents)} documents: `lattice dag submit` takes one DAG", reason="BadDocument")
    document = documents[0]
    if is_book(document):
        if not is_workflow(document):
            raise Rejected(f"{path} is no workflow: it has neither allocations nor dag. Hint: `lattice submit -f`", reason="BadDocument")
        made = dag_from_book(document)
        name = made["metadata"].get("name", "")
        made["metadata"] = {"name": slug(name)[:63].strip("-")} if name else {}
        return made
    if document.get("kind") != "DAG":
        raise Rejected(f"{path} holds a {document.get('kind')}: `lattice dag submit` takes a DAG", reason="BadDocument")
    return document
