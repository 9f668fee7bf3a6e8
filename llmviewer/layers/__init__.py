"""The parts of a decoder layer: frozen dataclasses that turn a step and an input tensor into operators.

A mixer (attention, recurrence) or a feed-forward part has `.operators(step, x)`; its last operator's output is the
result.  A mixer also has `.states()`: what it keeps between steps.
"""
