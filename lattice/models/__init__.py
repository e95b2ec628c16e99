"""The kinds as people write them: pydantic models, one module a kind, with the CRD's rules beside the fields.

What belongs here: fields, defaults, limits, CEL rules, printer columns. What does not: decisions
(`lattice.admission`, `lattice.lifecycle`), the structs that daemons cache (`lattice.views`), I/O.
`conditions`, `forms` and `reasons` are free of pydantic, so that every process can load them.
"""
