"""Every number in the text of the survey (arXiv 2402.16363) and of the other first documents is a claim, judged."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llmviewer import analyze
from llmviewer.cli import main
from llmviewer.cli.survey import run_query
from llmviewer.core.errors import UserError
from llmviewer.reports.survey import load
from llmviewer.reports.survey.claims import (
    SETTINGS,
    UNITS,
    Judged,
    TextClaim,
    as_markdown,
    command,
    documents,
    judge,
    line,
    records,
    section_titles,
    tally,
    text_claims,
    total,
)
from llmviewer.reports.survey.peer import SurveyQuery
from llmviewer.reports.survey.rules import RULES, Finding
from llmviewer.result.result import Result
from llmviewer.techniques.options import OPTIONS

SEEDS = Path(__file__).resolve().parent.parent.parent / "shared" / "seeds"
SEED = SEEDS / "003_ce5c1f9de3b263a9.txt"
#: Claims that our counts and times do not confirm.
NOT_CONFIRMED = {
    "Ternary weights are below 2 bits.",
    "QuIP reaches bits below 2.",
    "Partial binarization pushes weights under 2 bits.",
    "Weights take almost 1 bit.",
    "OPT-175B decodes around 3.25 times as fast on A100 GPUs.",
    "The KV cache takes 2 bits.",
    "Contextual sparsity makes inference over 2 times as fast.",
    "The speedup over CALM comes from fewer classifiers.",
    "Inference always leaves a surplus of computation.",
    "Heads on a frozen model make decoding over 2.2 times as fast.",
    "Retrieved continuations make decoding 1.62 to 2.36 times as fast.",
    "Larger batches than 64 lose throughput.",
}
#: Numbers given as the best, of which ours are beyond the tolerance.
EXCEEDED = {
    "W8A8 speeds inference up by as much as 1.56.",
    "The smaller cache allows a batch up to 4 times as large.",
}
#: Numbers of which ours can only be said not to be less.
BOUNDED = {"Llama-2-70b runs at over 300 tokens per second and user."}
#: Claims whose configuration is refused today; they are judged as soon as it is not.
REFUSED: set[str] = set()
LISTED = {
    says: finding
    for finding, listed in (
        (Finding.FAILS, NOT_CONFIRMED),
        (Finding.EXCEEDED, EXCEEDED),
        (Finding.BOUND, BOUNDED),
    )
    for says in listed
}
RUN = [claim for claim in text_claims() if not claim.figure]
NAMED = {f"{claim.section} {claim.says}": claim for claim in RUN}


@cache
def outcome(query: SurveyQuery) -> Result | UserError:
    try:
        return run_query(query)
    except UserError as refusal:
        return refusal


def judged(claim: TextClaim) -> Judged:
    return judge(claim, {query: outcome(query) for query in claim.queries}, {})


def the(says: str) -> Judged:
    """The claim that begins with these words, judged."""
    (claim,) = (claim for claim in RUN if claim.says.startswith(says))
    return judged(claim)


@pytest.mark.parametrize("name", NAMED)
def test_every_claim_has_the_finding_that_is_listed_here(name: str) -> None:
    claim = NAMED[name]
    found = judged(claim)
    if claim.cannot or claim.says in REFUSED:
        assert found.finding is Finding.OPEN
        assert bool(found.ours) == bool(claim.of and claim.says not in REFUSED)
    else:
        assert found.finding is LISTED.get(claim.says, Finding.HOLDS), found.ours
    assert ("refused: " in found.because) == (claim.says in REFUSED)


def test_every_listed_claim_exists() -> None:
    assert {claim.says for claim in RUN} >= LISTED.keys() | REFUSED
    assert len(LISTED) == len(NOT_CONFIRMED | EXCEEDED | BOUNDED)
    assert len({(claim.section, claim.subject, claim.says) for claim in text_claims()}) == len(text_claims())


@pytest.mark.parametrize("claim", text_claims(), ids=lambda claim: f"{claim.section} {claim.says}")
def test_every_entry_is_complete(claim: TextClaim) -> None:
    assert claim.section in {*section_titles(), *documents()} and claim.quoted and claim.setting in SETTINGS
    if claim.figure:
        assert claim.says in {own.says for own in load(claim.figure).claims}
        return
    assert bool(claim.cannot) != bool(claim.rule), "a claim is judged by a rule, or says why not"
    assert claim.paper.startswith("https://") or not claim.paper
    if claim.of:
        assert claim.unit in UNITS and claim.measure in ("value", "share", "speedup")
        assert bool(claim.change) or claim.measure == "value"
    if claim.rule:
        assert claim.rule in RULES and claim.of
    for query in claim.queries:
        of_training = {"optimizer", "recompute"} if query.command == "train" else set()
        assert {name for name, _ in query.options} <= {*OPTIONS} | of_training


def test_sections_are_in_the_order_of_the_survey_and_then_documents() -> None:
    order = [*section_titles(), *documents()]
    places = [order.index(claim.section) for claim in text_claims()]
    assert places == sorted(places) and set(places) == set(range(len(order)))


@pytest.mark.parametrize(
    ("rule", "limits", "inside", "outside"),
    [
        ("at least", (2.0, 2.0), 2.0, 1.999),
        ("at most", (2.0, 2.0), 2.0, 2.001),
        ("below", (2.0, 2.0), 1.999, 2.0),
        ("more than", (2.0, 2.0), 2.11, 2.09),  # 5 % of 2.0 is 0.1
        ("equals", (2.0, 2.0), 2.09, 2.11),  # 5 % of 2.0 is 0.1
        ("about", (2.0, 2.0), 1.51, 1.49),  # 25 % is 0.5
        ("up to", (2.0, 2.0), 1.51, 1.49),
        ("between", (2.0, 4.0), 4.19, 4.21),  # 5 % of 4.0 is 0.2
    ],
)
def test_a_rule_has_the_tolerance_that_it_states(
    rule: str, limits: tuple[float, float], inside: float, outside: float
) -> None:
    findings = [RULES[rule].finding(ours, *limits) for ours in (inside, outside)]
    assert findings == [Finding.HOLDS, Finding.FAILS]


def test_more_than_a_best_number_is_exceeded_and_a_bound_never_holds() -> None:
    """5 % of 2.0 is 0.1."""
    assert RULES["up to"].finding(2.09, 2.0, 2.0) is Finding.HOLDS
    assert RULES["up to"].finding(2.11, 2.0, 2.0) is Finding.EXCEEDED
    assert [RULES["bounded by"].finding(ours, 2.0, 2.0) for ours in (9.0, 1.9)] == [Finding.BOUND, Finding.FAILS]


@pytest.mark.parametrize("claim", [claim for claim in RUN if claim.rule], ids=lambda claim: claim.says)
def test_a_number_that_is_given_as_the_best_is_compared_as_such(claim: TextClaim) -> None:
    """Contexts of up to 1 million tokens, models of up to 175 billion and batches of up to 64 are sizes, not gains."""
    sizes = ("Contexts of up to", "It serves models of up to", "Batches of up to")
    best = "up to" in f"{claim.says} {claim.quoted}" and not claim.says.startswith(sizes)
    assert best == (claim.rule == "up to")


@pytest.mark.parametrize("says", sorted(EXCEEDED | BOUNDED))
def test_what_is_exceeded_or_a_bound_says_why(says: str) -> None:
    assert len(the(says).claim.note.split()) > 10


@pytest.mark.parametrize("name", [name for name, claim in NAMED.items() if claim.rule and claim.says not in REFUSED])
def test_a_finding_follows_the_number(name: str) -> None:
    """A limit of twice and of half our number: one of them changes the finding."""
    claim = NAMED[name]
    outcomes = {query: outcome(query) for query in claim.queries}
    ours = float(judged(claim).ours or 0.0)
    moved = {judge(replace(claim, limit=limit), outcomes, {}).finding for limit in (2.0 * ours, ours, 0.5 * ours)}
    assert moved >= {Finding.FAILS} and (moved > {Finding.FAILS} or claim.rule in ("below", "more than"))


def test_a_claim_of_a_figure_has_the_verdict_of_the_figure() -> None:
    claim = next(claim for claim in text_claims() if claim.figure == "figure_11")
    findings = [judge(claim, {}, {("figure_11", claim.says): held}).finding for held in (True, False)]
    assert findings == [Finding.HOLDS, Finding.FAILS]


def test_the_feed_forward_part_of_llama_2_7b_by_hand() -> None:
    """32 layers x 3 x 4096 x 11008 of 6,738,415,616 parameters."""
    assert the("The feed-forward part").ours == pytest.approx(32 * 3 * 4096 * 11008 / 6_738_415_616, rel=1e-9)


def test_stored_bits_by_hand() -> None:
    """PB-LLM: 1 + 0.1 x 12; KIVI: 2 + 32/32; GPTQ: 4 + 20/128."""
    assert the("Partial binarization").ours == pytest.approx(2.2)
    assert the("The KV cache takes 2 bits").ours == pytest.approx(3.0)
    assert the("Weights are reduced to 3 to 4 bits").ours == pytest.approx(4.15625)


def test_the_contexts_of_kvquant_by_hand() -> None:
    """2 x 32 layers x 4096 x 2 bits are 65,536 bytes a token: 80 GiB less 12.6 GiB of weights hold 1.10 million, eight
    devices with an eighth of each 10.26 million."""
    whole, token = 80 * 2**30, 2 * 32 * 4096 * 2 / 8
    weights = 13_476_831_232
    one, eight = (the(says).ours for says in ("On one A100 it allows 1", "A quantized cache allows a context of 10"))
    assert one == pytest.approx((whole - weights) / token, rel=5e-3)
    assert eight == pytest.approx((8 * whole - weights) / token, rel=5e-3)


def test_the_cache_of_the_article_by_hand() -> None:
    """2 x 32 layers x 4096 x 2 bytes = 524,288."""
    assert the("A token of Llama-2-7b takes").ours == 2 * 32 * 4096 * 2
    assert the("4,096 tokens take").ours == 4096 * 2 * 32 * 4096 * 2


def test_the_memory_of_llm_int8_by_hand() -> None:
    """OPT-175B: of 174.6 billion parameters 0.65 are embeddings, which stay in 16 bit: 50.2 % of the weights."""
    weights = [
        analyze("opt-175b", "a100-80gb-sxm", tensor_parallel_size=8, quantization=name).memory["weights_bytes"]
        for name in ("none", "llm-int8")
    ]
    assert weights[1] / weights[0] == pytest.approx(0.502, abs=2e-3)
    assert the("Eight-bit weights halve").ours == pytest.approx(0.509, abs=2e-3)  # with cache and activations


def test_numbers_in_notes() -> None:
    """Deja Vu without predictors, and the maps of the linear jump as a share of the weights."""
    dense, sparse = (
        analyze("opt-175b", "a100-80gb-sxm", input_len=512, output_len=64, tensor_parallel_size=8, **options).tpot_s
        for options in ({}, {"contextual_sparsity": "attention=0.5,mlp=0.1,predictor=0"})
    )
    assert f"it would be {dense / sparse:.2f}x" in the("Contextual sparsity makes inference").claim.note
    plain, jump = (
        analyze("llama-2-7b", "a100-80gb-sxm", early_exit=words).memory["weights_bytes"]
        for words in ("mean=0.6", "mean=0.6,jump")
    )
    assert f"the maps add {jump / plain - 1.0:.0%} to the weights".replace("%", " %") in the("A linear map").claim.note


def test_the_speculator_of_granite_by_hand() -> None:
    """Four stages of 49,152 x 4,096 twice, a matrix from 6,144 or 4,096, and a norm: 3.37 GB as in its repository."""
    drafting = the("A speculator makes Granite").claim.change["speculative"]
    plain, heads = (
        analyze("granite-20b-code", "a100-80gb-sxm", speculative=words).memory["weights_bytes"]
        for words in ("none", drafting)
    )
    assert heads - plain == pytest.approx(3.37e9, rel=2e-3)


def test_a_speedup_is_what_analyze_answers() -> None:
    requested: dict[str, Any] = {"input_len": 512, "output_len": 64, "tensor_parallel_size": 8}
    plain, sparse = (
        analyze("opt-175b", "a100-80gb-sxm", **requested, **options).tpot_s
        for options in ({}, {"contextual_sparsity": "attention=0.5,mlp=0.1"})
    )
    assert the("Contextual sparsity makes inference").ours == pytest.approx(plain / sparse, rel=1e-12)


@pytest.mark.parametrize("says", ["Llama-2-70b decodes", "Chunked prefills", "Only 13 billion"])
def test_a_printed_command_gives_the_number(says: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = the(says)
    values = []
    for query in found.claim.queries:
        words = command(query).replace("'", "").split()[1:]
        assert main([*words, "--format", "json"]) == 0
        values.append(total(json.loads(capsys.readouterr().out), found.claim.of))
    ours = {"value": values[-1], "share": values[-1] / values[0], "speedup": values[0] / values[-1]}
    assert found.ours == pytest.approx(ours[found.claim.measure])


def test_the_page_says_number_rule_reason_and_command() -> None:
    words = "2 bit (below 2 bit), our setting, its own paper is titled 2-bit quantization"
    assert line(the("QuIP reaches")).words == words
    assert line(the("INT8 weights and")).words == "Accuracy is not predicted"
    (shown,) = line(the("Only 13 billion")).commands
    assert shown == "llmviewer analyze mixtral-8x7b --hardware h200"


def test_the_page_and_the_data_list_every_claim() -> None:
    everything = [judged(claim) for claim in RUN]
    text = "\n\n".join(as_markdown(everything))
    assert all(claim.says in text and claim.quoted in text for claim in RUN)
    assert [row["claim"] for row in records(everything)] == [claim.says for claim in RUN]
    counted = {finding: sum(one.finding is finding for one in everything) for finding in Finding}
    assert [int(number) for number in re.findall(r"\d+", tally(everything))] == list(counted.values())


NUMBER = re.compile(r"\d+(?:\.\d+)?(?:-\d+)?\s?(?:%|x\b|-?bits?\b|GB|TOP/s|k |million|billion|tokens|parameters|B\b)")


@pytest.mark.skipif(not SEED.exists(), reason="the survey's text is not here")
def test_every_number_of_the_text_is_in_a_claim() -> None:
    """English lines without citations and pictures; numbers with a unit."""
    english = (row for row in SEED.read_text(encoding="utf-8").splitlines() if not re.search(r"[\u4e00-\u9fff]", row))
    text = re.sub(r"\[[^\]]*\]|\([^)]*\d{4}[^)]*\)|<img[^>]*>", "", " ".join(english))
    quoted = " ".join(f"{claim.quoted} {claim.says}" for claim in text_claims())
    numbers = [number for found in NUMBER.findall(text) for number in re.findall(r"\d+(?:\.\d+)?", found)]
    assert len(numbers) > 40
    missing = [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", quoted)]
    assert not missing


@pytest.mark.skipif(not SEEDS.exists(), reason="the texts of the documents are not here")
def test_every_size_and_speedup_of_the_other_documents_is_in_a_claim() -> None:
    """Sizes of NVIDIA's article, its share of DistilBERT, and speedups and heads of the others."""
    quoted = " ".join(f"{claim.quoted} {claim.says}" for claim in text_claims() if claim.document is not None)
    names = ("000_f468ccf1342c5862.txt", "002_42a2645aab7374ea.txt", "004_591d66a9a00404f0.txt")
    text = " ".join((SEEDS / name).read_text(encoding="utf-8") for name in names)
    numbers = re.findall(r"(\d+) ?(?:GB|MB|KB)\b", text) + re.findall(r"(\d+)x\b", text)
    numbers += re.findall(r"快 ?(\d+)%", text)
    numbers += [number for pair in re.findall(r"(\d) - (\d)个", text) for number in pair]
    assert len(numbers) > 10
    missing = [number for number in numbers if not re.search(rf"(?<![\d.]){number}(?!\d)", quoted)]
    assert set(missing) <= {"40"}  # GB of the GPU in a picture of FlashAttention
