"""Layers that early exit may skip: those that the tokens of an answer pass, without the encoder of their input."""

from __future__ import annotations

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.ir import Block, Graph
from llmviewer.layers.encoder import after_encoder, decoder_depth


def skippable(graph: Graph) -> list[Block]:
    """The blocks of layers that tokens may skip; the encoder of an encoder-decoder runs whole."""
    return [block for block in after_encoder(graph) if block.is_layer]


def depth(graph: Graph) -> int:
    """Number of layers that a token passes; a decoder layer with cross attention is one layer of two blocks."""
    return decoder_depth(graph) or sum(block.repeats for block in skippable(graph))


def layer_indices(graph: Graph) -> list[list[int]]:
    """For every block of `skippable`, the layers, from 0, that its repetitions belong to."""
    blocks = skippable(graph)
    blocks_of_a_layer = sum(block.repeats for block in blocks) // depth(graph)
    return [[number // blocks_of_a_layer for number in listed] for listed in layer_numbers(blocks)]
