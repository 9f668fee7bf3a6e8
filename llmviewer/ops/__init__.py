"""Shapes -> Operator, one family per file.

Conventions: a multiply-accumulate is 2 FLOP; weights are read once a step, activations read once and written once.
An operator declares what it reads and writes; nobody here writes a byte formula.
"""
