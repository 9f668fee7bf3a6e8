"""Operators built from shapes, one family per file.

Conventions: a multiply-accumulate is 2 FLOP; weights are read once per forward pass, activations are read once and
written once.  An operator declares its reads and writes; bytes are derived from them in core/ir.py.
"""
