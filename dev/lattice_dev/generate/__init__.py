"""What is generated and committed: CRDs, protobuf stubs, the reference pages.

What belongs here: pure functions from the sources (models, reasons, proto files) to the text of each
generated file. What does not: anything that a running system needs.
"""
