"""Parts of a decoder layer: frozen dataclasses that turn a step and an input tensor into operators.

A mixer (attention, recurrence) or feed-forward part has `.operators(step, x)`; the output of the last operator is the
result.  A mixer also has `.states()`: its KV cache or recurrent state.
"""
