"""`--speculative rest`: phrases found in a datastore on the host are merged into a trie that one pass verifies."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.errors import UserError
from llmviewer.serving.generation import PLAIN, Generation
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_options import required_acceptance, scheme_name
from llmviewer.techniques.speculation.verification import tree_verification_pass
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

WHERE = "--speculative rest"
#: Tokens of the trie in the paper's code (num_draft), and how far ahead its phrases reach.
NODES = Parameter(name="nodes", default=64, low=0, high=4096, whole=True)
DEPTH = Parameter(name="depth", default=10, low=1, high=64, whole=True)
#: The retrieval is said to take less than a millisecond.
RETRIEVAL = Parameter(name="retrieval_us", default=1000.0, low=0.0, high=1e6)
#: Of UltraChat; The Stack takes 27 GB, the small ones 0.5 and 0.9 GB.
DATASTORE = Parameter(name="datastore_gb", default=12.0, low=0.0, high=1e6)
DEFAULT = "rest-vicuna-7b"


def retrieval_round(nodes: float, depth: float, rates: Acceptance, retrieval_s: float) -> Generation:
    """A round: phrases that follow the longest suffix found in the datastore, then one pass over their trie.

    rates: how often the trie holds the next token, by level.  Its shape is not published: nodes lie evenly on `depth`
    levels, as of nodes / depth phrases that part at the root.
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
        return change_generation(scheme_name("rest", text), lambda _: PLAIN)
    round_ = retrieval_round(nodes, depth, rates, retrieval_us * 1e-6)
    generation = replace(round_, facts={**round_.facts, "datastore_bytes_on_host": gigabytes * 1e9})
    return change_generation(scheme_name("rest", text), lambda _: generation)


TECHNIQUE = Technique(
    name="rest",
    kind="speculation",
    summary="Phrases from a datastore on the host are merged into a trie that the model verifies with tree "
    "attention; no draft model.",
    parameters={
        "nodes": "tokens of the trie; 64 unless said",
        "depth": "tokens of its longest phrase; 10 unless said",
        "acceptance": f"rate by level, or a published preset; {DEFAULT} unless said",
        "retrieval_us": "search on the host [µs]; 1000 unless said",
        "datastore_gb": "what the host holds [GB]; 12 unless said",
    },
    formula="time per token = (verification of nodes + 1 tokens, of which a node at depth d sees d + 1, + retrieval) "
    "/ E; E = 1 + sum over levels of a_1 ... a_i",
    source="REST arXiv 2311.08252; https://github.com/FasterDecoding/REST",
    example="llmviewer analyze llama-2-7b --hardware a100 --speculative rest,nodes=64",
    make=_make,
)
