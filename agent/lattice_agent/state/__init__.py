"""Keeps a node's files on its disk and in this boot's memory: journals, claims, ends, output, and the room for them.

Belongs here: reading and writing of the state directory and the run directory (docs/explanation/formats.md), synchronous and without
decisions. Does not belong here: what a shim writes itself (`standalone`), and when the files are asked (`host`).
"""
