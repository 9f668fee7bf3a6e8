"""The largest batch and context name what they assume: token budget of a prefill pass, engine, share of the memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.reports import analysis_page, comparison_page, terminal
from llmviewer.reports.terminal import Screen
from llmviewer.result.comparison import Comparison
from llmviewer.result.result import Result

PLAIN = Screen(width=160, colour=False)


def analyzed(**options: Any) -> Result:
    return lv.analyze("llama-2-7b", "h100-sxm", **({"efficiency": "calibrated", "batch_size": 64} | options))


def memory(**options: Any) -> dict[str, Any]:
    return analyzed(**options).memory


def compared(*results: Result) -> str:
    return terminal.text(comparison_page.page(Comparison(results=results)), PLAIN)


def test_the_default_token_budget_is_that_of_the_engine() -> None:
    """vLLM prefills at most 8,192 tokens a pass; without an engine all 64 prompts of 1,024 tokens run together, whose
    activations leave room for fewer sequences."""
    known = [memory(engine=engine) for engine in ("vllm", "kernels")]
    assert [one["token_budget"] for one in known] == [8192, None]
    assert [one["engine"] for one in known] == ["vllm", "kernels"]
    assert known[0]["gpu_memory_utilization"] == 0.9
    assert known[0]["max_batch_size"] > known[1]["max_batch_size"]


def test_a_token_budget_of_0_prefills_all_prompts_together_with_every_engine() -> None:
    """As its help says: 64 x 1,024 = 65,536 tokens in one pass, as without an engine."""
    engine, none = analyzed(engine="vllm", max_num_batched_tokens=0), analyzed()
    assert engine.memory["token_budget"] is None
    assert engine.analysis.schedule.prefill_passes == 1 and analyzed(engine="vllm").analysis.schedule.repeats[0] == 8.0
    assert engine.memory["activations_bytes"] == pytest.approx(none.memory["activations_bytes"], rel=0.2)


def test_steps_with_chunks_need_a_token_budget() -> None:
    with pytest.raises(UserError, match="max_num_batched_tokens 0: a step with chunks has a token budget; give it"):
        analyzed(batching="chunked", max_num_batched_tokens=0)


def test_tables_name_what_limits_assume(capsys: pytest.CaptureFixture[str]) -> None:
    budgeted, whole = analyzed(engine="vllm"), analyzed(kv_cache_free_gpu_memory_fraction=0.8)
    page = terminal.text(analysis_page.page(budgeted), PLAIN)
    assert "Limits for       prefill of ≤ 8,192 tokens a pass, engine vllm, 90 % of memory" in page
    page = terminal.text(analysis_page.page(whole), PLAIN)
    assert "prefill of all prompts together, no engine, KV cache in 80 % of free memory" in page
    assert "Limits for      prefill of ≤ 8,192 tokens a pass, engine vllm, 90 %" in compared(budgeted, budgeted)
    assert "column 2: prefill of all prompts together, no engine" in compared(budgeted, whole)
    main(["analyze", "llama-2-7b", "--hardware", "h100", "--engine", "vllm", "--format", "markdown"])
    assert "prefill of ≤ 8,192 tokens a pass, engine vllm, 90 % of memory" in capsys.readouterr().out


def test_a_context_beyond_the_models_own_is_said_to_be() -> None:
    """A batch of 1 has room for far more than the 4,096 tokens of Llama-2; one of 64 has not."""
    one, many = analyzed(batch_size=1), analyzed(batch_size=64)
    assert one.memory["max_context_len"] > 4096 > many.memory["max_context_len"]
    assert one.memory["model_max_context_len"] == 4096
    words = "(the model was built for 4,096)"
    assert words in terminal.text(analysis_page.page(one), PLAIN)
    assert words not in terminal.text(analysis_page.page(many), PLAIN)
    assert "built for" in compared(one, many) and "built for" not in compared(many, many)


def test_rows_of_a_comparison_carry_the_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    words = "compare llama-2-7b --hardware h100,a100 --efficiency calibrated --engine vllm --format json"
    main(words.split())
    first = json.loads(capsys.readouterr().out)["configurations"][0]["memory"]
    assert (first["token_budget"], first["engine"], first["model_max_context_len"]) == (8192, "vllm", 4096)


def test_the_ideal_pipeline_says_that_it_bounds_all_chunk_sizes() -> None:
    """Unless the user sets the token budget."""
    free, uncut = (
        lv.analyze("phi-1.5", "h100-sxm", efficiency="ideal", pipeline_parallel_size=4, **more)
        for more in ({}, {"max_num_batched_tokens": 0})
    )
    pages = [terminal.text(analysis_page.page(result), PLAIN) for result in (free, uncut)]
    assert "prefill of the whole batch in chunks of any size" in pages[0]
    assert "prefill of the whole batch in one pass" in pages[1]
    assert ["bounds_all_chunks" in one.to_dict()["efficiency"] for one in (free, uncut)] == [True, False]
