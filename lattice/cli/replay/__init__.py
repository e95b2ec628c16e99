"""The actions of `lattice replay`, one module each: traces, recorded cycles, capture, generation, the regression suite.

What belongs here: flags, files, compression, progress, the choice of the engine, and the reports as text. What does not: the
engines and what they measure (`lattice.replay`), and the decisions of a cycle (`lattice.scheduling`).
"""
