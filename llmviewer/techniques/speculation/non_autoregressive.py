"""`--speculative nat`: a non-autoregressive decoder writes the whole answer at once and refines it in a few passes."""

from __future__ import annotations

import numpy as np

from llmviewer.serving.denoising import Cached, Denoising
from llmviewer.techniques.speculation.diffusion import denoising_change
from llmviewer.techniques.speculation.draft_options import scheme_name
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_numbers

WHERE = "--speculative nat"
ITERATIONS = Parameter(name="iterations", default=1, low=1, high=4096)


def _make(text: str) -> Change:
    given = parse_numbers(WHERE, text, (ITERATIONS,))
    whole = Denoising(block=np.inf, steps=given["iterations"], cached=Cached.BLOCKS)
    return denoising_change(scheme_name("nat", text), whole, given)


TECHNIQUE = Technique(
    name="nat",
    kind="speculation",
    summary="A non-autoregressive decoder predicts all tokens of the answer in one pass, and refines them in further "
    "ones (NAT, Mask-Predict, SUNDAE).",
    parameters={
        "iterations": "passes over the whole answer, a mean: 1 for NAT, 4 to 10 for Mask-Predict (default: 1)",
    },
    formula="iterations passes over n tokens that see each other and the input: n (n + S) pairs; the input is read "
    "once, with one token of the decoder, which stands for the prediction of the length",
    source="NAT arXiv 1711.02281, Mask-Predict arXiv 1904.09324, SUNDAE arXiv 2112.06749; survey arXiv 2402.16363, "
    "section 4.2.2",
    example="llmviewer analyze t5-v1.1-base --hardware v100 --input-len 32 --output-len 32 "
    "--speculative nat,iterations=4",
    make=_make,
)
