"""The library that every Lattice process shares; it imports no daemon."""

__version__ = "0.1.0"
