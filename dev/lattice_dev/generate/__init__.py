"""Generates committed files from their sources: CRDs, protobuf stubs, reference pages, schemas.

What belongs here: pure functions from the sources (models, reasons, proto files) to the text of each generated file. What does not:
anything that a running system needs.
"""
