"""Speculative decoding as the engines launch it: a smaller model, MTP modules of the checkpoint, or n-gram look-up."""

from __future__ import annotations

import json

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen


@frozen
class Draft:
    """The drafter of `--speculative`.  method: draft, mtp or ngram.  tokens: of a round.  model: of method draft."""

    method: str
    tokens: int
    model: str = ""


#: Methods that need nothing but what the configuration names; heads of EAGLE, Medusa ... are checkpoints of their own.
METHODS = ("draft", "mtp", "ngram")


def parse(text: str) -> Draft | None:
    """The drafter of a value of --speculative, None for no draft tokens.  Raises UserError for other methods."""
    word, _, rest = text.partition(",")
    method, _, model = (piece.strip() for piece in word.partition("="))
    if method not in METHODS:
        raise UserError(
            f"speculative {quoted(method)}: a launch needs the checkpoint of its heads, which no option names; "
            f"allowed: {', '.join(METHODS)}"
        )
    values = dict(part.strip().partition("=")[::2] for part in rest.split(",") if part)
    tokens = values.get("tokens", "1" if method == "mtp" else "")
    if not tokens.isdigit():
        raise UserError(f"speculative {quoted(text)}: a launch needs the number of draft tokens, such as tokens=4")
    return Draft(method=method, tokens=int(tokens), model=model) if int(tokens) else None


def vllm(draft: Draft) -> list[str]:
    """The flags of vLLM.  Source: vllm/config/speculative.py."""
    method = {"draft": {"method": "draft_model", "model": draft.model}}.get(draft.method, {"method": draft.method})
    return ["--speculative-config", json.dumps(method | {"num_speculative_tokens": draft.tokens})]


def sglang(draft: Draft) -> list[str]:
    """The flags of SGLang: chains of draft tokens, of which the pass that verifies them has one more."""
    if draft.method == "ngram":
        return ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(draft.tokens)]
    name = ["NEXTN"] if draft.method == "mtp" else ["STANDALONE", "--speculative-draft-model-path", draft.model]
    steps = ["--speculative-num-steps", str(draft.tokens), "--speculative-eagle-topk", "1"]
    return ["--speculative-algorithm", *name, *steps, "--speculative-num-draft-tokens", str(draft.tokens + 1)]


def trtllm(draft: Draft) -> dict[str, object]:
    """The option of TensorRT-LLM's LLM API.  Raises UserError for a drafter whose options changed between versions."""
    if draft.method != "mtp":
        raise UserError(f"speculative {draft.method}: manifests of TensorRT-LLM 1.2.0 have mtp only")
    return {"decoding_type": "MTP", "num_nextn_predict_layers": draft.tokens}
