"""`--speculative rest`: continuations from a datastore on the host form a trie that one pass verifies (REST)."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.errors import UserError
from llmviewer.serving.generation import AUTOREGRESSIVE, Generation
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_options import required_acceptance, scheme_name
from llmviewer.techniques.speculation.verification import tree_verification_pass
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

WHERE = "--speculative rest"
#: Tokens of the trie in the paper's code (num_draft), and its depth.
NODES = Parameter(name="nodes", default=64, low=0, high=4096, whole=True)
DEPTH = Parameter(name="depth", default=10, low=1, high=64, whole=True)
#: The paper states a retrieval time of less than a millisecond.
RETRIEVAL = Parameter(name="retrieval_us", default=1000.0, low=0.0, high=1e6)
#: Size of the UltraChat datastore; The Stack has 27 GB, the small ones 0.5 and 0.9 GB.
DATASTORE = Parameter(name="datastore_gb", default=12.0, low=0.0, high=1e6)
DEFAULT = "rest-vicuna-7b"


def retrieval_round(nodes: float, depth: float, rates: Acceptance, retrieval_s: float) -> Generation:
    """A round: retrieval of continuations of the longest matching suffix, then one pass over their trie.

    rates: probability that the trie contains the next token, by level.  Its shape is not published; assumed: `nodes`
    spread evenly over `depth` levels, as nodes / depth phrases that branch at the root.
    """
    depth = min(depth, nodes)
    return Generation(
        shape=tree_verification_pass(nodes, depth),
        tokens=rates.tokens(depth),
        extra_s=retrieval_s,
        facts={"drafted_tokens": nodes, "depth": depth, "acceptance": str(rates)},
    )


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("nodes", "depth", "acceptance", "retrieval_us", "datastore_gb"))
    nodes, depth, retrieval_us, gigabytes = (one.value(given, WHERE) for one in (NODES, DEPTH, RETRIEVAL, DATASTORE))
    if "depth" in given and 0.0 < nodes < depth:
        raise UserError(f"{WHERE}: {nodes:g} nodes do not reach a depth of {depth:g}")
    rates = required_acceptance(WHERE, given, DEFAULT)
    if not nodes:
        return change_generation(scheme_name("rest", text), lambda _: AUTOREGRESSIVE)
    round_ = retrieval_round(nodes, depth, rates, retrieval_us * 1e-6)
    generation = replace(round_, facts={**round_.facts, "datastore_bytes_on_host": gigabytes * 1e9})
    return change_generation(scheme_name("rest", text), lambda _: generation)


TECHNIQUE = Technique(
    name="rest",
    kind="speculation",
    summary="Continuations retrieved from a datastore on the host form a trie that the target verifies with tree "
    "attention; no draft model.",
    parameters={
        "nodes": "tokens of the trie (default: 64)",
        "depth": "tokens of its longest phrase (default: 10)",
        "acceptance": f"acceptance rate by level, or a published preset (default: {DEFAULT})",
        "retrieval_us": "search time on the host [µs] (default: 1000)",
        "datastore_gb": "size of the datastore in host memory [GB] (default: 12)",
    },
    formula="time per token = (verification of nodes + 1 tokens, a node at depth d attends d + 1, + retrieval) / E; "
    "E = 1 + sum over levels of a_1 ... a_i",
    source="REST arXiv 2311.08252; https://github.com/FasterDecoding/REST",
    example="llmviewer analyze llama-2-7b --hardware a100 --speculative rest,nodes=64",
    make=_make,
)
