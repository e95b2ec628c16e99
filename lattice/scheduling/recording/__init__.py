"""Cycles on record: what a cycle read, what it decided, and the same decision made again from the record.

What belongs here: snapshots of a cycle's input, their encoding, their comparison byte by byte. What does not: files and
folders (`lattice.cycle_files`).
"""
